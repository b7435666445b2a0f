"""Tests of files of records."""
