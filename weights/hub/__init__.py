"""Models on the Hugging Face hub, and the hub's cache, which all programs on a machine share."""
