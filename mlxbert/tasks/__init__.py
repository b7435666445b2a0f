"""The tasks of a model, one module each: a task turns items into results.

A public function takes one item and returns one result, or takes an iterable of any length and returns an iterator of
results in the same order, in constant memory. An unusable item raises an error; with `on_error="return"` a `Failure`
takes the place of its result and the other items are computed.
"""
