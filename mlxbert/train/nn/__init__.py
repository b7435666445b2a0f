"""What training adds to networks: losses, and adapters of linear layers."""
