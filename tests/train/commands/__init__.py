"""Tests of commands of train."""
