"""The machine: the device, its memory and its errors, and what macOS and Linux do otherwise."""
