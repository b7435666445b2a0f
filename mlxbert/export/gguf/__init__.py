"""Writes models as GGUF files, which llama.cpp and the programs built on it run."""
