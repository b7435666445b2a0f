"""Origins of pages that may send requests: which ones a given origin stands for, and which cannot be given."""

import pytest

from mlxbert.errors import ArgumentError
from mlxbert.serve.http.request_guards import compile_origins
from tests.helpers.cases import together

WEB = ("http://localhost", "http://localhost:3000", "http://localhost:65535", "https://localhost:3000")
OTHERS = (
    "http://localhost.evil.example",
    "http://localhost:3000.evil",
    "http://xlocalhost:3000",
    "null",
    "",
    "http://",
)


@together(
    "given,sent",
    [
        ("http://localhost:3000", {"http://localhost:3000"}),
        ("http://localhost:*", {"http://localhost", "http://localhost:3000", "http://localhost:65535"}),
        ("http://localhost", {"http://localhost"}),
        ("null", {"null"}),
        ("https://*.localhost", set()),
    ],
)
def test_an_origin_stands_for_itself_and_a_star_for_ports(given: str, sent: set[str]) -> None:
    pattern = compile_origins([given])
    assert {origin for origin in (*WEB, *OTHERS) if pattern.fullmatch(origin)} == sent


def test_a_star_stands_for_hosts_of_programs_and_names_below_a_domain() -> None:
    pattern = compile_origins(["vscode-webview://*", "https://*.example.org", "http://[::1]:*", "tauri://localhost"])
    for origin in (
        "vscode-webview://0jd1lpqmnv", "https://a.example.org", "https://a.b.example.org", "http://[::1]:80", "tauri://localhost",
        "http://[::1]",
    ):  # fmt: skip
        assert pattern.fullmatch(origin)
    for origin in (
        "vscode-webview://", "vscode-webviewx://a", "https://example.org", "https://a.example.org.evil", "http://a.example.org",
        "https://a.example.org:8080", "https://evil/.example.org", "https://a.exampleXorg", "tauri://localhost:1", "vscode-webview://a/b",
    ):  # fmt: skip
        assert not pattern.fullmatch(origin)


def test_without_origins_there_is_none() -> None:
    assert not any(compile_origins([]).fullmatch(origin) for origin in (*WEB, *OTHERS))


@together(
    "given,hint",
    [
        ("*", "every website"),
        ("http://*", "every website"),
        ("https://*:*", "every website"),
        ("https://*:8443", "every website"),
        ("http://a.example/", "use http://a.example"),
        ("https://A.example", "use https://a.example"),
        ("https://a.example:443", "use https://a.example"),
        ("http://a.example:80/x?y", "use http://a.example"),
        ("http://me@a.example:81", "use http://a.example:81"),
        ("https://b\u00fccher.example", "use https://xn--bcher-kva.example"),
        ("file:///srv/page.html", "null"),
        ("localhost:3000", None),
        ("http://", None),
        ("http://local*", None),
        ("http://a b", None),
        ("http://localhost:30*", None),
        ("http://localhost:123456", None),
        ("http://localhost:65536", None),
        ("http://localhost:03000", None),
        ("http*://localhost", None),
        ("Null", None),
        ("", None),
    ],
)
def test_what_no_browser_sends_or_every_website_would_is_refused(given: str, hint: str | None) -> None:
    with pytest.raises(ArgumentError) as refused:
        compile_origins(["http://localhost:3000", given])
    assert repr(given) in refused.value.message and "expected" in refused.value.message
    assert hint in refused.value.hint if hint and refused.value.hint else hint is refused.value.hint
