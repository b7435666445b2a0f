"""Models for many callers: the engine, and the server in front of it."""
