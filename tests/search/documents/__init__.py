"""Tests of mlxbert.search.documents."""
