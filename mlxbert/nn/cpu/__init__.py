"""The operations of layers, in the forms that are fast on a CPU."""
