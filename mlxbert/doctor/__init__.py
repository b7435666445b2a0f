"""Measures the speed of this machine for `mlxbert bench`, and checks its results for `mlxbert doctor --check`."""
