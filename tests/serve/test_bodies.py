"""Bodies of requests: what is read, what is refused and why, and that no body keeps other requests waiting."""

import asyncio
import json
import threading
import time
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mlxbert.serve.json_bodies import BodyReader, count_values
from mlxbert.serve.protocol import RequestError
from mlxbert.serve.protocols.openai import EmbeddingsBody
from tests.helpers.cases import together

MANY = 10**9


class Body(msgspec.Struct, kw_only=True):
    """A body, as routes have them."""

    texts: list[str | dict[str, str]]
    dimensions: int | None = None

    def __post_init__(self) -> None:
        threads.append(threading.current_thread().name)


class Strict(Body, kw_only=True, forbid_unknown_fields=True):
    """A body of our own routes."""


threads: list[str] = []


def read(body: bytes, kind: Any = Body, max_texts: int = 4096) -> Any:
    return asyncio.run(BodyReader(kind, max_texts).read(body))


def problem(body: bytes, kind: Any = Body, max_texts: int = 4096) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(body, kind, max_texts)
    return caught.value


def test_a_large_body_is_read_apart_from_the_requests() -> None:
    threads.clear()
    assert read(b'{"texts": ["a"]}').texts == ["a"]
    assert read(json.dumps({"texts": ["a" * 100_000]}).encode()).texts == ["a" * 100_000]
    small, large = threads
    assert small == threading.main_thread().name and large != small


@together("body", [
    b'{"texts": ["a"],' + b",".join(b'"text%06d": 1' % number for number in range(1_000_000)) + b"}",
    b'{"texts": ["a"],' + b",".join(b'"text%03d": 1' % number for number in range(4000)) + b"}",
    b'{"texts": ["a"], "' + b"texts" * 3_000_000 + b'": 1}', b'{"texts": [' + b"{}," * 5_000_000 + b"{}]}",
    b'{"texts": [' + b'"ab",' * 3_000_000 + b'"ab"]}',
    b'{"texts": ["a"], "x": "\\ud800", "y": [' + b"[]," * 5_000_000 + b"[]]}", b'{"texts": ' + b"[" * 8_000_000,
])  # fmt: skip
def test_no_body_takes_long(body: bytes) -> None:
    """The first one took more than a minute, in which nothing else was answered."""
    begun = time.process_time()
    with pytest.raises(RequestError) as refused:
        read(body, EmbeddingsBody)
    assert refused.value.kind in ("invalid", "too_large") and time.process_time() < begun + 3


def test_a_thousand_fields_are_compared_with_those_of_the_route_and_no_more() -> None:
    def body(count: int) -> bytes:
        return json.dumps({"texts": ["a"], **{f"x{number}": number for number in range(count)}}).encode()

    assert read(body(999)).texts == ["a"]
    found = problem(body(1000))
    assert (found.kind, "1,001" in found.message, "1,000" in found.message) == ("invalid", True, True)
    assert problem(b'{"texts": ["a"], "user": "\\ud800"}', Strict).kind == "invalid"
    for padding in (b"", b" " * 100_000):
        found = problem(b'{"texts": ["a"], "dimension": 3}' + padding)
        assert found.param == "dimension" and found.hint is not None and "dimensions" in found.hint


def test_as_many_values_as_texts_may_need_are_read() -> None:
    one = {"text": 'a "quoted" [text] {with} \\brackets', **{f"field {number}": "x" for number in range(20)}}
    body = json.dumps({"texts": [one] * 4096}).encode()
    assert len(read(body).texts) == 4096
    assert len(read(body, max_texts=2800).texts) == 4096
    assert problem(body, max_texts=2700).kind == "too_large"
    code = json.dumps({"texts": ['[{"' * 1_000_000]}).encode()  # of a text nothing is counted
    assert len(read(code, max_texts=1).texts[0]) == 3_000_000


VALUES = st.recursive(
    st.none() | st.integers() | st.text('[]{}"\\,:\n\u2028é🙂'),
    lambda part: st.lists(part) | st.dictionaries(st.text('"\\[{a'), part),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(VALUES, st.booleans())
def test_values_are_counted_as_they_are_written(value: Any, ascii_only: bool) -> None:
    def count(one: Any) -> int:
        if isinstance(one, dict):
            return 1 + sum(1 + count(part) for part in one.values())
        if isinstance(one, list):
            return 1 + sum(map(count, one))
        return isinstance(one, str)

    assert count_values(json.dumps(value, ensure_ascii=ascii_only).encode(), MANY) == count(value)


@together("half", ["\\ud800", "\\udc00", "\\ud83d\\ud83d\\ude00", "a\\uDBFF", "\\ude00\\ud83d"])
def test_half_of_a_surrogate_pair_is_refused_where_it_is_read_alone(half: str) -> None:
    ignored = '{"texts": ["a", "\\ud83d\\ude00"], "user": "%s", "%s": {"a": ["%s"]}}' % ((half,) * 3)
    assert read(ignored.encode()).texts == ["a", "\U0001f600"]
    assert read(ignored.encode() + b" " * 100_000).texts == ["a", "\U0001f600"]
    for text in (b'"%s"', b'{"text": "%s"}'):
        found = problem(b'{"texts": ["b", %s]}' % (text % half.encode()))
        assert (found.kind, found.param) == ("bad_text", "texts")
        assert "surrogate" in found.message and found.message.isascii()


@together("body", [
    b'{"texts": ["a"], "dimensions": "\\ud800"}', b'{"texts": "\\ud800"}',
    b'{"texts": ["a"], "x": NaN, "y": "\\ud800"}', b'{"texts": ["a"], "y": "\\ud800"', b'["\\ud800"]',
    b'{"y": "\\ud800"}', b'{"texts": ["a"], "y": "\\ud800", "x": "\xff"}',
    b'{"texts": ["a"], "y": "\\ud800", "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
])  # fmt: skip
def test_what_else_is_wrong_with_a_body_with_half_of_a_pair_is_said(body: bytes) -> None:
    for kind in (Body, Strict):
        found = problem(body, kind)
        assert found.kind in ("invalid", "bad_text")
        json.dumps([found.text, found.param]).encode("ascii")  # an answer can be made of it
        msgspec.json.encode([found.text, found.param])
