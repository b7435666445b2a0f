"""The loop of training: from examples to trained parameters, as events. It knows no task."""
