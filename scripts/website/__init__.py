"""The documentation site (see `__main__.py`)."""
