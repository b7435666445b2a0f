"""Serves models to many callers: the engine, and the HTTP server in front of it."""
