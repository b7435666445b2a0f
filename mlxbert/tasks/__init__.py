"""What a model can do: one file per task, text in, results out.

A task takes one input and gives one result, or takes an iterable of any length and gives an iterator of results in
the same order, in constant memory. An input that cannot be used raises; with `on_error="return"` a `Failure` takes
the place of its result and the rest goes on.
"""
