"""The computations of `doctor --check` on a device, each compared with a reference."""
