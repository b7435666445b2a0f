"""What differs between two recordings of `behaviour.py`, in few lines."""

import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load

MOST = 15  # lines about one thing
_LONGEST = 160  # characters of a line
_CONTEXT = 20  # characters before two values part
_SPEED = re.compile(rb"[\d,]+ tokens in [\d.]+ s: .*")  # what a run says of how fast it was
_LACKING = "(nothing)"


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, object]]:
    """The values of JSON by their dotted names."""
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in pairs:
            yield from leaves(entry, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def parsed(content: bytes) -> dict[str, object] | None:
    """JSON, or lines of it, as names and values; `None` where it is something else."""
    try:
        text = content.decode()
        lines = [text] if text.startswith("{\n") else text.splitlines()
        found = [json.loads(line) for line in lines]
    except ValueError:
        return None
    if not all(isinstance(value, dict | list) for value in found):
        return None
    return dict(leaves(found[0] if len(found) == 1 else {f"line {n}": value for n, value in enumerate(found, 1)}))


def arrays(content: bytes, ending: str) -> dict[str, Any] | None:
    """The arrays of a file; `None` where there are none, or of kinds that numpy lacks."""
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
        one, other = a.get(name), b.get(name)
        if one is None or other is None or one.shape != other.shape:
            shapes = (_LACKING if array is None else str(array.shape) for array in (one, other))
            yield f"{name}: {' | '.join(shapes)}"
        elif one.tobytes() != other.tobytes():
            apart = np.abs(one.astype("f8") - other.astype("f8"))
            yield f"{name}: {np.count_nonzero(one != other)} numbers differ, at most by {np.nanmax(apart):.3g}"


def _next_to(one: str, other: str) -> str:
    """Two values, long ones from shortly before they part."""
    parted = (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    start = max(next(parted, min(len(one), len(other))) - _CONTEXT, 0)
    if start == 0 or len(one) + len(other) <= _LONGEST // 2:
        return f"{one} | {other}"
    sides = (side[start : start + _LONGEST // 2 - _CONTEXT] for side in (one, other))
    return " | ".join(f"…{side}" for side in sides)


def changes(a: bytes, b: bytes, ending: str = "") -> Iterator[str]:
    """How two contents differ: by names of JSON, by arrays, or by lines."""
    numbers = arrays(a, ending), arrays(b, ending)
    if numbers[0] is not None and numbers[1] is not None:
        yield from _number_lines(numbers[0], numbers[1])
        return
    found = parsed(a), parsed(b)
    if found[0] is not None and found[1] is not None:
        one, other = found[0], found[1]
        for name in [*one, *(name for name in other if name not in one)]:
            values = [json.dumps(side[name], ensure_ascii=False) if name in side else _LACKING for side in (one, other)]
            if values[0] != values[1]:
                yield f"{name}: {_next_to(values[0], values[1])}"
        return
    try:
        one_text, other_text = a.decode().splitlines(), b.decode().splitlines()
    except UnicodeDecodeError:
        yield f"{len(a):,} | {len(b):,} bytes"
        return
    yield from list(difflib.unified_diff(one_text, other_text, "A", "B", n=1, lineterm=""))[2:]


def short(lines: Iterator[str]) -> Iterator[str]:
    """The first lines, cut, and how many there are."""
    found = list(lines) or ["other bytes"]
    for line in found[:MOST]:
        yield line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    if len(found) > MOST:
        yield f"… and {len(found) - MOST} more lines"


def _files(a: Path, b: Path, one: dict[str, str], other: dict[str, str]) -> Iterator[str]:
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) == other.get(name):
            continue
        if name not in one or name not in other:
            yield f"{name}: only in {'A' if name in one else 'B'}"
            continue
        yield f"{name}: {one[name][:12]} | {other[name][:12]}"
        paths = [side / "files" / name for side in (a, b)]
        if all(path.is_file() for path in paths):
            yield from (
                f"  {line}" for line in short(changes(paths[0].read_bytes(), paths[1].read_bytes(), Path(name).suffix))
            )


def differences(a: Path, b: Path, *, stderr: bool) -> dict[str, list[str]]:
    """What differs of a command: lines about its argv, status, stdout, files and, if wanted, stderr."""
    one, other = (json.loads((side / "record.json").read_text(encoding="utf-8")) for side in (a, b))
    found = {key: [f"{one[key]} | {other[key]}"] for key in ("argv", "status") if one[key] != other[key]}
    for stream in ("stdout", "stderr") if stderr else ("stdout",):
        paths = [side / stream for side in (a, b)]
        contents = [_SPEED.sub(b"", path.read_bytes()) if path.is_file() else b"" for path in paths]
        if contents[0] != contents[1]:
            found[stream] = list(short(changes(contents[0], contents[1])))
    if one["files"] != other["files"]:
        found["files"] = list(_files(a, b, one["files"], other["files"]))
    return found


def compare(a: Path, b: Path, *, stderr: bool = False) -> int:
    """Prints what differs between two recordings.

    Args:
        a: A recording.
        b: Another one.
        stderr: Whether stderr counts, too.

    Returns:
        How many commands differ.
    """
    names = [sorted(path.name for path in (side / "commands").iterdir()) for side in (a, b)]
    count = 0
    for name in sorted({*names[0], *names[1]}):
        if name not in names[0] or name not in names[1]:
            found = {"command": [f"only in {'A' if name in names[0] else 'B'}"]}
        else:
            found = differences(a / "commands" / name, b / "commands" / name, stderr=stderr)
        count += bool(found)
        print(f"{name}: differs in {', '.join(found)}" if found else f"{name}: identical")
        for kind, lines in found.items():
            print("".join(f"  {kind}: {line}\n" for line in lines), end="")
    print(f"{count} of {len({*names[0], *names[1]})} differ")
    return count
