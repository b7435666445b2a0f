"""The classes of a head, and tagging schemes."""
