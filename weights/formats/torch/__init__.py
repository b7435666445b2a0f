"""Checkpoints written by torch.save, read without torch."""
