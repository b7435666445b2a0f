"""Tasks through Python."""
