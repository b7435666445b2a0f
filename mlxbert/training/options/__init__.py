"""The options of training, and the table of the tasks that can be trained."""
