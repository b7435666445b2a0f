"""Summarizes the differences between two recordings of `scripts/behaviour`."""

import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load

MAX_LINES = 15  # about one difference
_MAX_LENGTH = 160  # characters of a line
_CONTEXT = 20  # characters before the first difference
_SPEED = re.compile(rb"[\d,]+ tokens in [\d.]+ s: .*")  # the reported speed of a run
_MISSING = "(nothing)"


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, object]]:
    """The values of JSON, each with its dotted name."""
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in pairs:
            yield from leaves(entry, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def parsed(content: bytes) -> dict[str, object] | None:
    """JSON, or lines of JSON, as names and values; `None` if the content is something else."""
    try:
        text = content.decode()
        lines = [text] if text.startswith("{\n") else text.splitlines()
        values = [json.loads(line) for line in lines]
    except ValueError:
        return None
    if not all(isinstance(value, dict | list) for value in values):
        return None
    return dict(leaves(values[0] if len(values) == 1 else {f"line {n}": value for n, value in enumerate(values, 1)}))


def arrays(content: bytes, ending: str) -> dict[str, Any] | None:
    """The arrays of a file; `None` if it has none, or if numpy lacks their dtype."""
    try:
        if ending == ".safetensors":
            return dict(load(content))
        if ending == ".npy":
            return {"array": np.frombuffer(content[128:], "<f4")}
    except (ValueError, KeyError, TypeError):
        pass
    return None


def _number_lines(a: dict[str, Any], b: dict[str, Any]) -> Iterator[str]:
    for name in sorted(a.keys() | b.keys()):
        first, second = a.get(name), b.get(name)
        if first is None or second is None or first.shape != second.shape:
            shapes = (_MISSING if array is None else str(array.shape) for array in (first, second))
            yield f"{name}: {' | '.join(shapes)}"
        elif first.tobytes() != second.tobytes():
            distance = np.abs(first.astype("f8") - second.astype("f8"))
            yield f"{name}: {np.count_nonzero(first != second)} numbers differ, at most by {np.nanmax(distance):.3g}"


def _next_to(first: str, second: str) -> str:
    """Two values side by side; long values start shortly before the first difference."""
    differing = (place for place, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
    start = max(next(differing, min(len(first), len(second))) - _CONTEXT, 0)
    if start == 0 or len(first) + len(second) <= _MAX_LENGTH // 2:
        return f"{first} | {second}"
    sides = (side[start : start + _MAX_LENGTH // 2 - _CONTEXT] for side in (first, second))
    return " | ".join(f"…{side}" for side in sides)


def changes(a: bytes, b: bytes, ending: str = "") -> Iterator[str]:
    """The differences between two contents: by names in JSON, by arrays, or by lines."""
    numbers = arrays(a, ending), arrays(b, ending)
    if numbers[0] is not None and numbers[1] is not None:
        yield from _number_lines(numbers[0], numbers[1])
        return
    both = parsed(a), parsed(b)
    if both[0] is not None and both[1] is not None:
        a_values, b_values = both[0], both[1]
        for name in [*a_values, *(name for name in b_values if name not in a_values)]:
            values = [
                json.dumps(side[name], ensure_ascii=False) if name in side else _MISSING
                for side in (a_values, b_values)
            ]
            if values[0] != values[1]:
                yield f"{name}: {_next_to(values[0], values[1])}"
        return
    try:
        first_text, second_text = a.decode().splitlines(), b.decode().splitlines()
    except UnicodeDecodeError:
        yield f"{len(a):,} | {len(b):,} bytes"
        return
    yield from list(difflib.unified_diff(first_text, second_text, "A", "B", n=1, lineterm=""))[2:]


def short(lines: Iterator[str]) -> Iterator[str]:
    """The first lines, truncated, and the number of further lines."""
    all_lines = list(lines) or ["other bytes"]
    for line in all_lines[:MAX_LINES]:
        yield line if len(line) <= _MAX_LENGTH else f"{line[:_MAX_LENGTH]}…"
    if len(all_lines) > MAX_LINES:
        yield f"… and {len(all_lines) - MAX_LINES} more lines"


def _files(a: Path, b: Path, first: dict[str, str], second: dict[str, str]) -> Iterator[str]:
    for name in sorted(first.keys() | second.keys()):
        if first.get(name) == second.get(name):
            continue
        if name not in first or name not in second:
            yield f"{name}: only in {'A' if name in first else 'B'}"
            continue
        yield f"{name}: {first[name][:12]} | {second[name][:12]}"
        paths = [side / "files" / name for side in (a, b)]
        if all(path.is_file() for path in paths):
            yield from (
                f"  {line}" for line in short(changes(paths[0].read_bytes(), paths[1].read_bytes(), Path(name).suffix))
            )


def differences(a: Path, b: Path, *, stderr: bool) -> dict[str, list[str]]:
    """The differences in a command: lines about its argv, status, stdout, files and, optionally, stderr."""
    first, second = (json.loads((side / "record.json").read_text(encoding="utf-8")) for side in (a, b))
    lines = {key: [f"{first[key]} | {second[key]}"] for key in ("argv", "status") if first[key] != second[key]}
    for stream in ("stdout", "stderr") if stderr else ("stdout",):
        paths = [side / stream for side in (a, b)]
        contents = [_SPEED.sub(b"", path.read_bytes()) if path.is_file() else b"" for path in paths]
        if contents[0] != contents[1]:
            lines[stream] = list(short(changes(contents[0], contents[1])))
    if first["files"] != second["files"]:
        lines["files"] = list(_files(a, b, first["files"], second["files"]))
    return lines


def compare(a: Path, b: Path, *, stderr: bool = False) -> int:
    """Prints the differences between two recordings.

    Args:
        a: A recording.
        b: Another recording.
        stderr: Whether stderr is compared, too.

    Returns:
        The number of commands that differ.
    """
    names = [sorted(path.name for path in (side / "commands").iterdir()) for side in (a, b)]
    count = 0
    for name in sorted({*names[0], *names[1]}):
        if name not in names[0] or name not in names[1]:
            lines_by_kind = {"command": [f"only in {'A' if name in names[0] else 'B'}"]}
        else:
            lines_by_kind = differences(a / "commands" / name, b / "commands" / name, stderr=stderr)
        count += bool(lines_by_kind)
        print(f"{name}: differs in {', '.join(lines_by_kind)}" if lines_by_kind else f"{name}: identical")
        for kind, lines in lines_by_kind.items():
            print("".join(f"  {kind}: {line}\n" for line in lines), end="")
    print(f"{count} of {len({*names[0], *names[1]})} differ")
    return count
