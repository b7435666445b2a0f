"""Tests of data of train."""
