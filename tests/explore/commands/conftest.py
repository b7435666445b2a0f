"""What tests of commands share."""

from tests.cli.conftest import _loud, _new_day, loaded_once, small  # noqa: F401
