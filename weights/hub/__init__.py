"""Models on the Hugging Face hub, and the cache that all programs on a machine share."""
