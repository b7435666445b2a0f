"""The backend of a Linux CPU."""
