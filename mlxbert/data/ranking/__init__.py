"""Queries, the texts that answer them, and how well these do: readers of the usual layouts."""
