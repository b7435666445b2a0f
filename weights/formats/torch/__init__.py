"""Reads checkpoints that torch.save wrote, without torch."""
