"""Tests of mlxbert.readers.documents."""
