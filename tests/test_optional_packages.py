"""Hints on missing packages name the requirements of pyproject.toml, which pip can install in any folder."""

import importlib.metadata
import shlex
import tomllib
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement

from mlxbert.other_libraries import install_command, pip_install, required_packages
from tests.docs.pages import ROOT
from tests.helpers.cases import together

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


@together("extra", sorted(EXTRAS.keys() - {"test", "dev"}))
def test_the_command_installs_what_the_extra_requires(extra: str) -> None:
    packages = shlex.split(required_packages(extra))
    assert install_command(extra) == pip_install(required_packages(extra))
    found, expected = (
        {(one.name, one.specifier) for one in map(Requirement, each)} for each in (packages, EXTRAS[extra])
    )
    assert found == expected


def test_source_that_was_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Mock(side_effect=importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert required_packages("mcp") == '"mlxbert[mcp]"'
