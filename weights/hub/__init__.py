"""Models of the Hugging Face hub and the cache that all programs of a machine share."""
