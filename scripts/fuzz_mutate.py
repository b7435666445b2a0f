"""Mutations of files, of raw bytes and of their structure, with repaired checksums so that they reach the parsers."""

import io
import json
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

Mutate = Callable[[Random, bytes], bytes]

_NUMBERS = (0, 1, -1, 2**7, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_DEEP = 10**5
# JSON to insert in place of other values.
_VALUES = (
    *("null", "true", "false", "0", "1", "-1", "2", "0.5", "-0.0", "1e-320", "NaN", "Infinity", "-Infinity", "1e999"),
    *(str(number) for number in _NUMBERS),
    *("1" + "0" * 30, "9" * 5000, '""', '"\\u0000"', '"\\ud800"', '" "', '"\\u2581"', '"[UNK]"', '"a"', '"\u00e9"'),
    *('"../up"', '"/"', '"."', '"a/b"', '"' + "x" * 300 + '"', '"' + "x" * 10**6 + '"', "[]", "{}", "[[]]", "[0]"),
    *("[null]", '{"a": 1}', "[" * 100 + "]" * 100, "[" * _DEEP + "]" * _DEEP, '{"a":' * _DEEP + "0" + "}" * _DEEP),
    *("[" + ",".join(["0"] * 10000) + "]", '{"Regex": "(a+)+$"}', '{"Regex": "("}', '{"Regex": ""}'),
    *('{"Regex": "(?:(?:a{1000}){1000}){1000}"}', '{"Regex": "(.*)*\\\\1b"}', '{"String": ""}', "", "}"),
)
_RARE = 1000  # longer values are chosen less often, because they are slow


def flip(rng: Random, data: bytes) -> bytes:
    """Makes one random change of bytes."""
    size = len(data)
    place = rng.randrange(size + 1)
    length = min(rng.choice((1, 1, 2, 4, 8, 16, 64, 1024)), size - place)
    other = rng.randrange(size + 1)
    match rng.randrange(9):
        case 0 if size:
            place = rng.randrange(size)
            return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        case 1:
            return data[:place] + rng.randbytes(length) + data[place + length :]
        case 2:
            return data[:place] + rng.randbytes(rng.choice((1, 2, 4, 8))) + data[place:]
        case 3:
            return data[:place] + data[place + length :]
        case 4:
            return data[: place + length] + data[place : place + length] * rng.choice((1, 1, 2, 100)) + data[place:]
        case 5:
            return data[:place]
        case 6:
            block = data[other : other + length]
            return data[:place] + block + data[place + len(block) :]
        case 7:
            width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
            place -= place % width
            number = (rng.choice(_NUMBERS) % 256**width).to_bytes(width, order)
            return data[:place] + number + data[place + width :]
        case _:
            return data[:place] + bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF))]) * length + data[place + length :]


def flips(rng: Random, data: bytes) -> bytes:
    """Makes one to four random changes of bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = flip(rng, data)
    return data


def same_size(rng: Random, data: bytes) -> bytes:
    """Changes bytes and keeps their number."""
    return flips(rng, data)[: len(data)].ljust(len(data), b"\0")


def _places(value: object, places: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Collects every dict or list, paired with each of its keys."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            _places(value[key], places)
    return places


def _change_place(rng: Random, places: list[tuple[Any, Any]], mark: str, marks: dict[str, str]) -> None:
    """Changes the value at one of the places; `marks` maps placeholders to text that `json` cannot write."""
    table, key = rng.choice(places[1:] or places)
    text = rng.choice(_VALUES)
    if len(text) > _RARE and rng.random() < 0.7:
        text = rng.choice(_VALUES[:20])
    other, another = rng.choice(places)
    match rng.randrange(8):
        case 0:
            del table[key]
        case 1 if isinstance(table, dict):
            table[rng.choice(("", "x" * 200, "type", "\u00e9", "__metadata__", str(another)))] = table.pop(key)
        case 2:
            table[key] = json.loads(json.dumps(other[another]))
        case 3 if isinstance(table, dict):  # the same key twice
            marks[mark] = f"{text or 0}, {json.dumps(str(key))}: {json.dumps(table[key])}"
            table[key] = mark
        case 4 if isinstance(table, list):
            table[key : key + 1] = [table[key]] * rng.choice((2, 2, 300))
        case _:
            marks[mark] = text
            table[key] = mark


def change_json(rng: Random, data: bytes) -> bytes:
    """Changes a value, key or the order somewhere in a JSON file; or bytes, see `flips`."""
    if rng.random() < 0.2:
        return flips(rng, data)
    value = [json.loads(data)]
    marks: dict[str, str] = {}
    for number in range(rng.choice((1, 1, 1, 2, 3))):
        places = _places(value, [])
        if places:
            _change_place(rng, places, f"@@{number}@@", marks)
    written = json.dumps(value[0]) if value else ""
    for mark, text in marks.items():
        written = written.replace(f'"{mark}"', text)
    return written.encode()


def varint(value: int) -> bytes:
    """A number as protobuf and LevelDB write it."""
    out = b""
    while value >= 128:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


_PREFIX = {0: re.compile(rb"[\x80-\xff]{0,9}[\0-\x7f]"), 1: re.compile(rb"(?s).{8}"), 5: re.compile(rb"(?s).{4}")}


def _message(data: bytes) -> list[tuple[int, int, bytes]] | None:
    """The fields of a protobuf message: number, wire type, value; `None` if the bytes are not a message."""
    at, fields = 0, []
    while at < len(data):
        prefix = []
        for _ in range(2):
            number = _PREFIX[0].match(data, at)
            if number is None:
                return None
            prefix.append(sum((byte & 127) << 7 * place for place, byte in enumerate(number[0])))
            at = number.end()
            wire = prefix[0] & 7
            if wire != 2:
                break
        if wire == 2:
            value, at = data[at : at + prefix[1]], at + prefix[1]
        elif wire in _PREFIX and (match := _PREFIX[wire].match(data, at)):
            value, at = match[0], match.end()
        else:
            return None
        if at > len(data) or not prefix[0] >> 3:
            return None
        fields.append((prefix[0] >> 3, wire, value))
    return fields


def change_message(rng: Random, data: bytes) -> bytes:
    """Changes a field somewhere in a protobuf message and repairs the enclosing lengths; or bytes, see `flips`."""
    fields = _message(data)
    if not fields or rng.random() < 0.15:
        return flips(rng, data)
    place = rng.randrange(len(fields))
    number, wire, value = fields[place]
    match rng.randrange(8):
        case 0:
            del fields[place]
        case 1:
            fields[place : place + 1] = [fields[place]] * rng.choice((2, 2, 200))
        case 2:
            fields[place] = (rng.choice((number + 1, max(number - 1, 1), 15, 2**20)), wire, value)
        case 3:
            fields[place] = (number, 0, varint(rng.choice(_NUMBERS) % 2**64))
        case 4:
            rng.shuffle(fields)
        case _:
            changed = {0: lambda: varint(rng.choice(_NUMBERS) % 2**64), 2: lambda: change_message(rng, value)}
            fields[place] = (number, wire, changed.get(wire, lambda: same_size(rng, value))())
    lie = rng.randrange(len(fields) + 1) if rng.random() < 0.1 else -1
    out = b""
    for at, (number, wire, value) in enumerate(fields):
        size = varint(rng.choice(_NUMBERS) % 2**64 if at == lie else len(value)) if wire == 2 else b""
        out += varint(number << 3 | wire) + size + value
    return out


def change_zip(inside: Mapping[str, Mutate]) -> Mutate:
    """Returns a mutation of zip files: changes bytes, or one member and repairs its checksum.

    Args:
        inside: The mutations of members by name suffix; `flips` for all others.
    """

    def mutate(rng: Random, data: bytes) -> bytes:
        if rng.random() < 0.3:
            return flips(rng, data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info, archive.read(info)) for info in archive.infolist()]
        place = rng.randrange(len(members))
        info, content = members[place]
        match rng.randrange(10):
            case 0:
                del members[place]
            case 1:
                info.filename = rng.choice(("", "/", "../a.npy", "a.npy", "x" * 70, "data.pkl", "archive/data/9"))
            case _:
                change = next((change for end, change in inside.items() if info.filename.endswith(end)), flips)
                members[place] = (info, change(rng, content))
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for info, content in members:
                method = rng.choice((zipfile.ZIP_STORED,) * 9 + (zipfile.ZIP_DEFLATED,))
                archive.writestr(info.filename or "a", content, info.compress_type or method)
        return out.getvalue()

    return mutate


def change_headed(rng: Random, data: bytes) -> bytes:
    """Changes bytes of a safetensors file, or its JSON header, and repairs the length of the header."""
    if rng.random() < 0.3:
        return flips(rng, data)
    end = 8 + struct.unpack_from("<Q", data)[0]
    header = change_json(rng, data[8:end])
    return struct.pack("<Q", len(header)) + header + data[end:]
