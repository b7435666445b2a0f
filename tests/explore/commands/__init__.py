"""Tests of commands of explore."""
