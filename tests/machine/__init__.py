"""The machine: its device, memory, signals and faults."""
