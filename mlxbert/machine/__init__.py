"""The machine: the BLAS, the device, the cores, and the processes that share a run."""
