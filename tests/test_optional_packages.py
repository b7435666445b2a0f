"""Hints on missing packages name the requirements of pyproject.toml, which pip can install in any folder."""

import importlib.metadata
import shlex
import tomllib

import pytest
from packaging.requirements import Requirement

from mlxbert.other_libraries import install_command, pip_install, required_packages
from tests.docs.pages import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"test", "dev"}))
def test_the_command_installs_what_the_extra_requires(extra: str) -> None:
    packages = shlex.split(required_packages(extra))
    assert install_command(extra) == pip_install(required_packages(extra))
    expected = [Requirement(text) for text in EXTRAS[extra]]
    assert {(one.name, one.specifier) for one in map(Requirement, packages)} == {
        (one.name, one.specifier) for one in expected
    }


def test_source_that_was_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert required_packages("mcp") == '"mlxbert[mcp]"'
