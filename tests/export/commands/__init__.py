"""Tests of commands of export."""
