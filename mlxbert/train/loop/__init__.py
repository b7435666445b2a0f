"""The training loop: trains parameters on examples, and yields events. It does not depend on the task."""
