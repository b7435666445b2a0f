"""The machine: the BLAS, the device, the cores, and processes that share a run."""
