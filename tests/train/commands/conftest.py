"""What tests of commands share."""

from tests.cli.conftest import _loud, _new_day  # noqa: F401
