"""The results of tasks: frozen dataclasses, one per line of the JSON output; and their JSON.

Offsets are `[start, end)` in code points of the input text. `position` counts tokens from the first special token on,
as if the model took a text of any length.
"""
