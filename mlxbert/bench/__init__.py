"""What `mlxbert bench` measures."""
