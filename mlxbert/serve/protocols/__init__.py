"""The protocols that the server speaks: a file for each."""
