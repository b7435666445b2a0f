"""Reads files as records or documents: a registry of formats, and a module for each format."""
