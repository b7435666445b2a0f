"""The page at `/`, on which every task can be tried: three files, kept in memory, each with one address."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mlxbert.frozen import FrozenDict

# By the only addresses that there are: no path is ever made of what a request says.
FILES: Mapping[str, tuple[str, str]] = FrozenDict({
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
})  # fmt: skip
# What the page may do: everything that it needs comes from here.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept, but asked for again: after an update, page and server fit each other
}


def page_routes() -> list[Route]:
    """The addresses of the page; they need no key, as a browser cannot send one for them."""
    folder = Path(__file__).with_name("page")
    return [
        Route(path, _endpoint((folder / name).read_bytes(), media_type), methods=["GET"], name=name)
        for path, (name, media_type) in FILES.items()
    ]


def _endpoint(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": tag}

    async def endpoint(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if known.strip() == "*" or tag in (one.strip().removeprefix("W/") for one in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return endpoint
