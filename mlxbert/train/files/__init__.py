"""What the folder of a trained model holds."""
