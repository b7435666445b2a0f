"""The results of this room."""
