"""Views of results in a terminal; the only place with colours."""
