"""Tests of commands of search."""
