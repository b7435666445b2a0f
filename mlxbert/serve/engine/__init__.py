"""The engine: models on one thread, asked by any number of others."""
