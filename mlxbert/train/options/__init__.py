"""The training options, and the registry of the tasks that can be trained."""
