"""What `doctor --check` computes on a device, each operation next to its reference."""
