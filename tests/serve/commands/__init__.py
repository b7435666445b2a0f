"""Tests of commands of serve."""
