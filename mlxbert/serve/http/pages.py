"""The page at `/` for trying every task. Its three files are kept in memory, and each has its own address."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mlxbert.frozen_dict import FrozenDict

# The files by their addresses: no file path is ever derived from a request.
FILES: Mapping[str, tuple[str, str]] = FrozenDict({
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
})  # fmt: skip
# The page may only load its own files and call this server.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated each time, so that page and server match after an update
}


def page_routes() -> list[Route]:
    """Returns the routes of the page; they need no key, since a browser cannot send one for them."""
    folder = Path(__file__).with_name("page")
    return [
        Route(path, _endpoint((folder / name).read_bytes(), media_type), methods=["GET"], name=name)
        for path, (name, media_type) in FILES.items()
    ]


def _endpoint(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": tag}

    async def endpoint(request: Request) -> Response:
        cached = request.headers.get("if-none-match", "")
        if cached.strip() == "*" or tag in (other.strip().removeprefix("W/") for other in cached.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return endpoint
