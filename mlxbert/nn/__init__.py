"""The network: its layers, the encoder, the heads, and the pooling that turns hidden states into vectors."""
