"""Views of results in a terminal; the only modules that use colours."""
