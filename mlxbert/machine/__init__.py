"""What computes here: the BLAS, the device, cores, and processes that share a run."""
