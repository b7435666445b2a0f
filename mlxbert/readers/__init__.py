"""Files to records and documents: a registry of formats, and a file for each."""
