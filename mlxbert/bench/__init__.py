"""The measurements of `mlxbert bench`, and the checks of `mlxbert doctor --check`."""
