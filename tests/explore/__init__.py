"""Tests of what concerns many texts together."""
