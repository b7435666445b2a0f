"""What has to hold for a built site: links lead somewhere, nothing is loaded from other hosts, nothing is missing."""

import re
from collections.abc import Collection, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from website.commands import file_name

_LOADED = {"src", "srcset", "poster", "data", "background"}  # attributes whose addresses a browser loads
_LINKED = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
_ELSEWHERE = re.compile(r"^\s*(?:https?:)?//", re.IGNORECASE)
_CSS_ADDRESS = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])([^'\")]+)")
_SCRIPT_LOADS = re.compile(r"(?:import|fetch|src\s*=|importScripts|open)\s*\(?\s*['\"]((?:https?:)?//[^'\"]+)")


class _Page(HTMLParser):
    """The anchors, the links and the loaded addresses of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and _LINKED & set(values.get("rel", "").split()):
            self.loads.append(values.get("href", ""))
        if tag == "image" or tag == "use":  # of SVG
            self.loads += [values.get("href", ""), values.get("xlink:href", "")]
        for name in _LOADED & values.keys():
            self.loads += [part.split()[0] for part in values[name].split(",") if part.strip()]
        self.loads += _CSS_ADDRESS.findall(values.get("style", ""))


def problems(site: Path, names: Collection[str], options: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yields what is wrong with a site that documents some public names, and commands with their options."""
    pages = {path.relative_to(site).as_posix(): _Page(path) for path in sorted(site.rglob("*.html"))}
    yield from broken_links(site, pages)
    yield from foreign_loads(site, pages)
    documented = {anchor for page in pages.values() for anchor in page.ids}
    yield from (f"the API has no entry for mlxbert.{name}" for name in names if f"mlxbert.{name}" not in documented)
    for command, named in options.items():
        page = f"commands/{file_name(command)}.html"
        ids = pages[page].ids if page in pages else set()
        prefix = f"cmdoption-mlxbert-{file_name(command)}-"
        missing = [option for option in named if not ids & {prefix + form for form in _anchors(option)}]
        yield from (f"{page} does not describe {option}" for option in missing)


def _anchors(option: str) -> set[str]:
    """The ends of the anchors that an option may have on its page."""
    name = option.removeprefix("--")
    return {name, f"no-{name}"}


def broken_links(site: Path, pages: Mapping[str, _Page]) -> Iterator[str]:
    """Yields the links within the site that lead to no page, or to no anchor of their page."""
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            target = target / "index.html" if target.is_dir() else target
            found = target.resolve().relative_to(site.resolve()).as_posix() if target.is_file() else None
            anchor = unquote(parts.fragment)
            if found is None or (anchor and found in pages and anchor not in pages[found].ids):
                yield f"{name}: the link {link} leads nowhere"


def foreign_loads(site: Path, pages: Mapping[str, _Page]) -> Iterator[str]:
    """Yields what pages, styles, pictures and scripts would load from other hosts."""
    for name, page in pages.items():
        yield from (f"{name} loads {address}" for address in page.loads if _ELSEWHERE.match(address))
    for pattern, kinds in ((_CSS_ADDRESS, ("*.css", "*.svg", "*.html")), (_SCRIPT_LOADS, ("*.js", "*.html"))):
        for path in (path for kind in kinds for path in sorted(site.rglob(kind))):
            for address in pattern.findall(path.read_text(encoding="utf-8")):
                if _ELSEWHERE.match(address):
                    yield f"{path.relative_to(site)} loads {address}"
