"""A release: its tag and changelog, the addresses that are written before it is built, its page on PyPI."""

import re
import runpy
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mlxbert.version import __version__

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


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_addresses_are_those_of_the_repository_at_the_tag(checkout: Path) -> None:
    SCRIPT["prepare"](TAG, checkout, ENVIRONMENT | {"DOCUMENTATION_URL": "https://docs.example"})
    before, after = (tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")) for root in (ROOT, checkout))
    assert after["project"].pop("urls") == {
        "Homepage": ADDRESS, "Documentation": "https://docs.example", "Source": f"{ADDRESS}/tree/{TAG}",
        "Issues": f"{ADDRESS}/issues", "Changelog": f"{ADDRESS}/blob/{TAG}/CHANGELOG.md",
    }  # fmt: skip
    assert after["project"].pop("readme") == "PYPI.md"
    del before["project"]["readme"]
    assert after == before
    assert (checkout / "README.md").read_bytes() == (ROOT / "README.md").read_bytes()


def test_the_repository_has_no_address_and_without_pages_there_is_none_of_the_documentation(checkout: Path) -> None:
    assert "urls" not in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    SCRIPT["prepare"](TAG, checkout, ENVIRONMENT | {"DOCUMENTATION_URL": ""})
    assert (
        "Documentation"
        not in tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    )


def test_links_on_pypi_lead_to_files_of_the_repository(checkout: Path) -> None:
    SCRIPT["prepare"](TAG, checkout, ENVIRONMENT)
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


def test_a_checkout_that_is_prepared_is_not_prepared_again(checkout: Path) -> None:
    SCRIPT["prepare"](TAG, checkout, ENVIRONMENT)
    before = _contents(checkout)
    with pytest.raises(SystemExit, match=r"urls"):
        SCRIPT["prepare"](TAG, checkout, ENVIRONMENT)
    assert _contents(checkout) == before


@pytest.mark.parametrize(
    "head", [f"## {__version__} (unreleased)", f"## {__version__} (soon)", "## 9.9.9 (2026-12-01)"]
)
def test_a_tag_without_a_date_in_the_changelog_is_refused(checkout: Path, head: str) -> None:
    _date(checkout, head)
    before = _contents(checkout)
    with pytest.raises(SystemExit, match=re.escape(f"## {__version__} (YYYY-MM-DD)")):
        SCRIPT["prepare"](TAG, checkout, ENVIRONMENT)
    assert _contents(checkout) == before


@pytest.mark.parametrize("tag", ["v9.9.9", __version__, f"v{__version__}rc1", "main", ""])
def test_a_tag_that_is_not_the_version_is_refused(checkout: Path, tag: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(f"expected {TAG}")):
        SCRIPT["prepare"](tag, checkout, ENVIRONMENT)


def test_a_readme_or_an_environment_that_lacks_something_is_refused(checkout: Path) -> None:
    with pytest.raises(SystemExit, match="GITHUB_REPOSITORY"):
        SCRIPT["prepare"](TAG, checkout, {"GITHUB_SERVER_URL": "https://forge.example"})
    readme = (checkout / "README.md").read_text(encoding="utf-8")
    (checkout / "README.md").write_text(readme.replace("pip install . &&", "pip install -e . &&"), encoding="utf-8")
    before = _contents(checkout)
    with pytest.raises(SystemExit, match="pip install"):
        SCRIPT["prepare"](TAG, checkout, ENVIRONMENT)
    assert _contents(checkout) == before


def test_classifiers_are_those_that_pypi_knows_and_name_the_pythons_that_are_tested() -> None:
    known = pytest.importorskip("trove_classifiers", reason="`.[dev]` has it")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    given = project["classifiers"]
    assert given == sorted(set(given)) and set(given) <= known.classifiers
    pythons = {
        found[1] for name in given if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", name))
    }
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
