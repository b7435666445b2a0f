"""Tests of commands of doctor."""
