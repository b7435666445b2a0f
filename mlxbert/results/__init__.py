"""What tasks return: frozen dataclasses, one per line of the JSON output; and their JSON.

Offsets are `[start, end)` in code points of the text that was given. `position` counts tokens from the first special
token on, as if the model took a text of any length.
"""
