"""Tests of the whole program: of every command, every option and every hint."""
