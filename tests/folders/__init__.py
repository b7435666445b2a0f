"""Whole model folders."""
