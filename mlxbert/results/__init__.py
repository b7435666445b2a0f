"""The results of tasks: frozen dataclasses and their JSON, which the command line prints one per line.

Offsets are `[start, end)` in code points of the input text. `position` counts tokens from the first special token on,
as if no text were too long for the model.
"""
