"""The machine: the device, and the processes that share a run."""
