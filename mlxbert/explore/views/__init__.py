"""How the results of this room are drawn in a terminal."""
