"""Builds the documentation site and checks it: `python scripts/website [FOLDER]`, by default `build/site`.

The pages are those of `docs/`, the files that `docs/navigation.toml` names, one page per command and the pages of the
Python API. A warning of Sphinx ends the build: a broken link, or a page that is not in the navigation. So does
everything that `checks.py` finds. Needs the extra `docs`.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))
import mlxbert
from tests.helpers.commands import COMMANDS
from website.api import Api
from website.checks import problems
from website.commands import write_commands
from website.pages import Site, render

ROOT = Path(__file__).parents[2]


def build(root: Path, site: Path) -> None:
    """Writes the pages of a checkout, and builds a site of these pages.

    Raises:
        ValueError: A link or a public name has no place on the site.
        SystemExit: Sphinx has warned.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        Site(root, source).write()
        write_commands(root, source)
        Api(root).write(source)
        render(source, site)


def main() -> None:
    """Builds and checks the site, and says how large it is."""
    site, start = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site"), time.perf_counter()
    if site.exists() and not (site / "objects.inv").is_file():
        raise SystemExit(f"error: {site} exists and does not hold a site; name another folder")
    shutil.rmtree(site, ignore_errors=True)
    try:
        build(ROOT, site)
    except ValueError as problem:
        raise SystemExit(f"error: {problem}") from None
    options = {
        name: [option.opts[0] for option in command.params if option.param_type_name == "option" and not option.hidden]
        for name, command in COMMANDS.items()
    }
    if found := [*problems(site, mlxbert.__all__, options)]:  # type: ignore[attr-defined]
        raise SystemExit("\n".join(f"error: {problem}" for problem in found))
    files = [path for path in site.rglob("*") if path.is_file()]
    pages, size = sum(path.suffix == ".html" for path in files), sum(path.stat().st_size for path in files)
    print(f"{pages} pages, {size / 1e6:.1f} MB, {time.perf_counter() - start:.1f} seconds: {site}")


if __name__ == "__main__":
    main()
