"""`verify`: two model folders compared, their facts, tensors and outputs."""
