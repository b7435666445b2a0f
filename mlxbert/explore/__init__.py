"""Many texts together: which repeat each other, what they are about, and a map of them."""
