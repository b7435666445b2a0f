"""Builds the documentation site and checks it: `python scripts/website [FOLDER]`, by default `build/site`.

The pages are those of `docs/`, the files that `docs/navigation.toml` names, one page per command and the pages of the
Python API. A warning of Sphinx ends the build: a broken link, or a page that is not in the navigation. So does
everything that `checks.py` finds. Needs the extra `docs`.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
import mlxbert
from scripts.website.api import Api
from scripts.website.checks import problems
from scripts.website.commands import write_commands
from scripts.website.pages import Site
from tests.helpers.commands import COMMANDS


def build(root: Path, site: Path) -> None:
    """Builds the site of a checkout into a folder.

    Raises:
        ValueError: A link or a public name has no place on the site.
        SystemExit: Sphinx has warned.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, doctrees = Path(folder, "source"), Path(folder, "doctrees")
        source.mkdir()
        Site(root, source).write()
        write_commands(source)
        Api(root).write(source)
        options = ["-W", "--keep-going", "-q", "-E", "-j", "auto", "-c", str(Path(__file__).parent), "-d", str(doctrees)]
        done = subprocess.run([sys.executable, "-m", "sphinx", "-b", "html", *options, source, site], check=False)
        if done.returncode:
            raise SystemExit("error: the site has not been built: see the warnings above")


def main() -> None:
    """Builds and checks the site, and says how large it is."""
    site, start = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site"), time.perf_counter()
    if site.exists() and not (site / "objects.inv").is_file():
        raise SystemExit(f"error: {site} exists, and is no site that could be replaced")
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
