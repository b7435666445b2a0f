"""What is done with whole model folders: inspect, verify, convert."""
