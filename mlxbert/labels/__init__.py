"""The classes of a head, and schemes of tags."""
