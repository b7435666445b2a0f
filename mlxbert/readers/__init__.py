"""Reads files as records and documents: a registry of formats, and a module for each."""
