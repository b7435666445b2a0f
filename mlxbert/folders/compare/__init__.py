"""The comparison behind `verify`: the facts, tensors and outputs of two model folders."""
