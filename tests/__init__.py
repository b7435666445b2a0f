"""Tests of mlxbert."""
