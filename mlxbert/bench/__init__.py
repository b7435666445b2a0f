"""What `mlxbert bench` measures, and `mlxbert doctor --check` checks."""
