"""Checkpoints that torch.save wrote, read without torch."""
