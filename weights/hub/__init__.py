"""Models on the Hugging Face hub, and the hub cache, which all programs on a machine share."""
