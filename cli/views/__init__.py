"""How results look; the only place with colours."""
