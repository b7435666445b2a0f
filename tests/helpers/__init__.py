"""What many tests share: model folders, reference numbers, the program, a hub."""
