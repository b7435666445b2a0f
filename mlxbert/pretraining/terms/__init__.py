"""The losses that pre-training is made of: each is a `Term`, and what is trained is a weighted sum of some."""
