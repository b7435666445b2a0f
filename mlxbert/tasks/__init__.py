"""The tasks of a model, one file each: items in, results out.

A public function takes one item and returns one result, or takes an iterable of any length and returns an iterator of
results in the same order, in constant memory. An item that cannot be used raises; with `on_error="return"` a `Failure`
takes the place of its result and the others are computed.
"""
