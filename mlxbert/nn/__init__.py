"""The network: layers, the encoder built of them, the heads on it, and what makes a vector of its output."""
