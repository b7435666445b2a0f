"""Destinations of training events other than the terminal."""
