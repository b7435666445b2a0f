"""What a script's user sees of an error."""

import traceback

from mlxbert.errors import InputError, MlxbertError


def test_a_traceback_shows_the_hint() -> None:
    shown = traceback.format_exception_only(InputError("`texts` is a DataFrame", hint="give one of its columns"))
    assert "".join(shown).splitlines()[1] == "hint: give one of its columns"
    assert len(traceback.format_exception_only(MlxbertError("no hint"))) == 1
