"""The pages that the repository has: copied into one folder for Sphinx, with links that lead to pages of the site."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
NAVIGATION = "docs/navigation.toml"
_FRONT = "docs/index.md"
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)\s:]+)(\))")  # a colon: it leaves the repository
_COPIED = {".csv", ".ipynb", ".png", ".svg"}  # pictures, and files that a reader downloads
_SHOWN = {".py": "python", "": "text"}  # files that are shown as they are, with their language


def navigation(root: Path = ROOT) -> dict[str, list[str]]:
    """The files and generated folders of each part of the navigation, keyed by the title of the part."""
    with (root / NAVIGATION).open("rb") as file:
        return {title: part["pages"] for title, part in tomllib.load(file).items()}


def site_name(path: str) -> str:
    """The name of a repository's file on the site, without an extension: `docs/a.md` is `a`, `b/README.md` is `b`."""
    if path == "docs/search.md":
        return "search-files"  # the page with the results of the site's own search is search.html
    pure = PurePosixPath(path.removeprefix("docs/")).with_suffix("")
    parts = pure.parent.parts if pure.name == "README" and len(pure.parts) > 1 else pure.parts
    return "-".join(parts).lower()


def render(source: Path, site: Path) -> None:
    """Makes a site of the pages in a folder.

    Raises:
        SystemExit: Sphinx has warned: of a broken link, of a page that is not in the navigation, …
    """
    with tempfile.TemporaryDirectory() as state:
        options = ["-W", "--keep-going", "-q", "-j", "auto", "-c", str(Path(__file__).parent), "-d", state]
        command = [sys.executable, "-m", "sphinx", "-b", "html", *options, str(source), str(site)]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit("error: the site is not complete, see the warnings above")


class Site:
    """Writes the pages of a repository into a folder.

    Attributes:
        root: The folder of the repository.
        target: The folder that Sphinx reads.
        parts: The parts of the navigation.
        included: The files that are pages of the site: those of `docs/` and of the navigation.
    """

    def __init__(self, root: Path, target: Path) -> None:
        self.root, self.target, self.parts = root, target, navigation(root)
        listed = {page for pages in self.parts.values() for page in pages if not page.endswith("/")}
        self.included = listed | {f"docs/{path.name}" for path in (root / "docs").glob("*.md")}

    def write(self) -> None:
        """Writes all pages; the front page gets the navigation, as Sphinx needs it.

        Raises:
            ValueError: A link leads to a file that does not exist or cannot be shown, or outside of the repository.
        """
        for page in sorted(self.included):
            text = self._linked(page, (self.root / page).read_text(encoding="utf-8"))
            if programs := self._programs(page, text):
                text += _toctree("", programs)
            if page == _FRONT:
                text += "".join(_toctree(title, pages) for title, pages in self.parts.items())
            (self.target / f"{site_name(page)}.md").write_text(text, encoding="utf-8")

    def _programs(self, page: str, text: str) -> list[str]:
        """The names on the site of the programs in the folder of a page that the page links; they stand below it."""
        paths = sorted((self.root / page).parent.glob("*.py"))
        names = (_source_name(path.relative_to(self.root).as_posix()) for path in paths)
        return [name for name in names if f"]({name}.md)" in text]

    def _linked(self, page: str, text: str) -> str:
        """The text of a page with the links that it needs on the site; blocks of code are not changed."""
        done, end = [], 0
        for fence in _FENCE.finditer(text):
            done += [self._links(page, text[end : fence.start()]), fence[0]]
            end = fence.end()
        return "".join([*done, self._links(page, text[end:])])

    def _links(self, page: str, text: str) -> str:
        return _LINK.sub(lambda match: match[1] + self._target(page, match[2]) + match[3], text)

    def _target(self, page: str, link: str) -> str:
        """What a link of a page leads to on the site."""
        name, hash_sign, anchor = link.partition("#")
        if not name:
            return link
        path = os.path.normpath(PurePosixPath(page).parent / name)
        if path.startswith("..") or not (self.root / path).exists():
            raise ValueError(f"{page}: {link} leads to no file of the repository")
        if path in self.included:
            return f"{site_name(path)}.md{hash_sign}{anchor}"
        if Path(path).suffix in _COPIED:
            shutil.copyfile(self.root / path, self.target / Path(path).name)
            return Path(path).name
        if Path(path).suffix in _SHOWN:
            return self._source(path)
        raise ValueError(f"{page}: {link} leads to a file without a page on the site; add {path} to {NAVIGATION}")

    def _source(self, path: str) -> str:
        """Writes a page that shows a program or another text of the repository, or the names in a folder."""
        name = f"{_source_name(path)}.md"
        file, language = self.root / path, _SHOWN[Path(path).suffix]
        names = sorted(one.name for one in file.iterdir()) if file.is_dir() else []
        text = "\n".join(names) if names else file.read_text(encoding="utf-8")
        lines = ["---", "orphan: true", "---", f"# {path}", f"```{language}", text.rstrip("\n"), "```", ""]
        (self.target / name).write_text("\n".join(lines), encoding="utf-8")
        return name


def _source_name(path: str) -> str:
    """The name on the site of a program or another text that is shown as it is, without an extension."""
    return path.replace("/", "-").removesuffix(".py").lower()


def _toctree(title: str, pages: list[str]) -> str:
    names = [page.rstrip("/") if page.endswith("/") else site_name(page) for page in pages]
    caption = [f":caption: {title}"] if title else []
    return "\n".join(["", "```{toctree}", ":hidden:", *caption, "", *names, "```", ""])
