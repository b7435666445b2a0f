"""`mlxbert inspect`."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.options import Offline, OutputOptions, Revision
from mlxbert.cli.views import console, progress

if TYPE_CHECKING:
    from rich.console import RenderableType

_Rows = Iterator[tuple[str, object]]
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)|(?<=layer_)\d+(?=/)")  # TensorFlow's names have slashes
_COLUMNS = 30  # what dtype, shape and the space between columns take of a line


def inspect(
    out: OutputOptions,
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", envvar="MLXBERT_MODEL", help="Hub name, folder of a checkpoint, or 'builtin'."),
    ] = "builtin",
    revision: Revision = None,
    offline: Offline = False,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="Every tensor, instead of one line for all layers.")
    ] = False,
) -> None:
    """Explain a model before it runs: its kind, size, tokenizer, vectors, tasks, and what each tensor becomes.

    Of the weights only the headers are read. Safetensors of a model of the hub that are not in the cache are not
    downloaded.

    Example: mlxbert inspect builtin
    """
    from mlxbert.folders.inspect import inspect_folder
    from mlxbert.weights.source import find_headers

    with progress.download(model) as update:
        folder, headers = find_headers(model, revision=revision, offline=offline, on_progress=update)
    found = inspect_folder(folder, headers)
    listed = found.pop("tensors")
    found |= _tasks(found) | {"tensors": listed}
    session.show_object(found, lambda: _draw(found, whole=tensors), out)


def _tasks(found: dict[str, Any]) -> dict[str, Any]:
    """What the model can be used for, and what the other tasks lack."""
    from mlxbert.model import TASKS

    lacking = {task: reason for task, parts in TASKS.items() if (reason := _lacking(found, task, parts))}
    return {"tasks": [task for task in TASKS if task not in lacking], "lacking": lacking}


def _lacking(found: dict[str, Any], task: str, parts: Iterable[str]) -> str | None:
    tokens, rows = found["tokenizer"]["vocab_size"], found["tokenizer"]["word_embeddings"]
    if tokens > rows:
        return f"the tokenizer has {tokens} tokens, the model {rows} word embeddings: they do not belong together"
    absent = [part for part in parts if part not in found["parts"]]
    if absent:
        return f"needs {' and '.join(absent)}, which the weights do not hold"
    problems = [problem for part in parts if (problem := found["parts"][part]["problem"])]
    problems += [found["embedding"]["problem"]] if task == "embed" and "problem" in found["embedding"] else []
    return "; ".join(problems) or None


def _draw(found: dict[str, Any], *, whole: bool) -> Iterator["RenderableType"]:
    yield from console.facts(f"{found['family']} in {found['folder']}", _summary(found))
    yield from console.facts("configuration", _config_rows(found["config"]))
    yield from console.facts("tokenizer", _tokenizer_rows(found["tokenizer"]))
    yield from console.facts("vectors", _vector_rows(found["embedding"]))
    yield from console.facts("parts", _part_rows(found["parts"]))
    total = found["parameters"]["total"]
    yield from console.facts(
        "parameters", [(part, f"{count:>14,}  {count / total:6.1%}") for part, count in found["parameters"].items()]
    )
    yield from console.facts(
        "memory", [(dtype, f"{console.size(size):>14}") for dtype, size in found["memory"].items()]
    )
    if rows := list(_unused_rows(found)):
        yield from console.facts("not used", rows)
    yield _tensors(found["tensors"] if whole else _by_layer(found["tensors"]))


def _summary(found: dict[str, Any]) -> _Rows:
    weights, limits = found["weights"], found["limits"]
    files = f"{len(weights['files'])} file{'s' if len(weights['files']) > 1 else ''}"
    yield "because", found["because"]
    yield "architectures", _shown(found["architectures"])
    yield "can", _shown(found["tasks"])
    for task, reason in found["lacking"].items():
        yield f"cannot {task}", reason
    places = " and ".join({"config": "positions"}.get(name, name) for name in found["limited_by"])
    yield "longest input", f"{found['max_length']} tokens, by its {places}"
    if limits["sentence_transformers"] is not None:
        yield "for vectors", f"{found['embedding']['max_length']} tokens, by its sentence-transformers files"
    where = "" if weights["here"] else ", on the hub, not downloaded"
    yield "weights", f"{weights['format']}, {weights['storage']}, {console.size(weights['bytes'])} in {files}{where}"
    if found["labels"]:
        yield "labels", _shown(found["labels"])


def _shown(value: object) -> object:
    """A value on one line: a list by its entries, a table by its names and values, a kind of its own by its name."""
    if isinstance(value, dict):
        facts = ", ".join(f"{name} {_shown(fact)}" for name, fact in value.items() if name != "type")
        if "type" in value:
            return f"{value['type']}({facts})" if facts else value["type"]
        return facts or "none"
    if isinstance(value, list):
        return ", ".join(str(_shown(entry)) for entry in value) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _config_rows(config: dict[str, Any]) -> _Rows:
    for key, value in config.items():
        if key == "layer_schedule":
            stored = len(set(value))
            yield "layers", f"{len(value)}" if stored == len(value) else f"{len(value)} steps through {stored} stored"
        elif key in ("heads", "biases"):
            facts = ((name, fact) for name, fact in value.items() if name != "type" and fact is not None)
            yield from ((f"{key}.{name}", _shown(fact)) for name, fact in facts)
        elif key == "type_vocab_size":
            yield key, value or "0 (no segments)"
        else:
            yield key, _shown(value)


def _tokenizer_rows(tokenizer: dict[str, Any]) -> _Rows:
    yield "kind", tokenizer["kind"]
    yield "vocabulary", f"{tokenizer['vocab_size']} tokens for {tokenizer['word_embeddings']} word embeddings"
    yield "special", _shown(tokenizer["special"])
    yield "lower-cases", _shown(tokenizer["lower_case"])


def _vector_rows(embedding: dict[str, Any]) -> _Rows:
    if "problem" in embedding:
        yield "impossible", embedding["problem"]
        return
    stated = "" if embedding["stated"] else " (default: no sentence-transformers files)"
    yield "pooling", f"{_shown(embedding['poolings'])}{stated}"
    for module in embedding["modules"]:
        shapes = "; ".join(f"{name} {_size(shape)}" for name, shape in module["shapes"].items())
        yield "then", f"{module['kind']} {shapes}"
    similarity = embedding["similarity"]
    yield "size", f"{embedding['size']}, {'of length 1' if embedding['unit'] else 'of any length'}"
    other = " (`mlxbert similarity` ranks by cosine)" if similarity not in (None, "cosine") else ""
    yield "similarity", f"{similarity or 'not said'}{other}"
    for key in ("prompts", "default_prompt_name", "include_prompt", "lower_case"):
        yield key, "none" if embedding[key] is None else _shown(embedding[key])


def _part_rows(parts: dict[str, Any]) -> _Rows:
    for part, facts in parts.items():
        problem = f"; cannot be loaded: {facts['problem']}" if facts["problem"] else ""
        yield part, f"{facts['in_file']} → {facts['in_network']}, {facts['tensors']} tensors{problem}"


def _unused_rows(found: dict[str, Any]) -> _Rows:
    for tensor in found["unused"]:
        yield tensor["name"], tensor["why"]
    count, example = found["skipped"]["count"], found["skipped"]["example"]
    if count:
        yield f"{count} more {'entries' if count > 1 else 'entry'}", f"no weights of the model: {example}, say"


def _size(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _tensors(rows: list[dict[str, Any]]) -> "RenderableType":
    """Numbers first; where a terminal is narrow, each name of a tensor and what it becomes has a line of its own."""
    texts = [[row[key] for key in ("stored_as", "name", "becomes") if key in row] for row in rows]
    wide = max(len(" → ".join(names)) for names in texts) + _COLUMNS <= console.stdout().width
    lines: list[tuple[str, ...]] = []
    for row, (name, *others) in zip(rows, texts, strict=True):
        more = [f"→ {other}" for other in others]
        lines.append((row["dtype"], _size(row["shape"]), " ".join([name, *more]) if wide else name))
        lines += [] if wide else [("", "", f"  {other}") for other in more]
    return console.listing(("dtype", "shape", "tensor → becomes"), lines)


def _by_layer(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for tensors that differ only in the number of their layer."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in tensors:
        name, becomes = (_LAYER.sub("{}", row[key]) for key in ("name", "becomes"))
        groups.setdefault((name, becomes, row["dtype"], str(row["shape"])), []).append(row)
    return [_merged(rows) if len(rows) > 1 else rows[0] for rows in groups.values()]


def _merged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row that stands for those that are alike; what the file calls them may have nothing in common."""
    first = rows[0]
    plain = {key: _LAYER.sub("{}", first[key]) for key in ("name", "stored_as", "becomes") if key in first}
    every = f"{{0…{len(rows) - 1}}}"
    plain["name"] = plain["name"].replace("{}", every)
    if "stored_as" in plain:
        alike = len({_LAYER.sub("{}", row.get("stored_as", "")) for row in rows}) == 1
        plain["stored_as"] = plain["stored_as"].replace("{}", every) if alike else f"{first['stored_as']}, …"
    return first | plain
