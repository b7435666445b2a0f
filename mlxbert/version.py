"""The version of mlxbert."""

__version__ = "0.1.0"
