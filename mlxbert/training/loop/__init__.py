"""The training loop: from examples to trained parameters, as events. It is independent of the task."""
