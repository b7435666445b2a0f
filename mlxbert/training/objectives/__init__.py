"""What can be trained, one file each."""
