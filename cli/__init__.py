"""The `mlxbert` command."""
