"""Reads files that people write as documents: a registry of kinds, and a module for each."""
