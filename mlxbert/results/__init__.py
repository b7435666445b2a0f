"""The results of tasks: frozen dataclasses and their JSON, which the command line prints one per line.

Offsets are `[start, end)` in code points of the input text. `position` is the index of a token in the
whole input, special tokens included, even if the input was truncated or split into windows.
"""
