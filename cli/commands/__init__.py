"""One file per command: options to records, one call of the library, a view."""
