"""Draws what `mlxbert inspect` finds out about a model."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich

if TYPE_CHECKING:
    from mlxbert.config import EncoderConfig
    from mlxbert.folders.inspection import EmbeddingFacts, Fit, Inspection, NoEmbedding, PartFacts, TensorFacts

_Rows = Iterator[tuple[str, object]]
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)|(?<=layer_)\d+(?=/)")  # TensorFlow's names have slashes
_ANY = "any that you name with --labels (a GLiNER model)"
_MAX_NAMES = 6  # in the short form
_OTHER_COLUMNS = 30  # columns of a terminal for dtype, shape and the space between columns


def short(model: "Inspection", name: str) -> Iterator["rich.RenderableType"]:
    """Draws ten lines about a model: its kind, size, tasks, inputs and outputs, and its problems."""
    yield from console.facts(name, _short_rows(model))
    yield rich.Text("--all shows the configuration, all parts and what each tensor becomes", style="dim")


def _short_rows(model: "Inspection") -> _Rows:
    from mlxbert.folders.inspection import NoEmbedding, TokenVectorFacts

    config, weights, tokenizer, embedding = (model.config, model.weights, model.tokenizer, model.embedding)
    architectures = f" ({_first(model.architectures)})" if model.architectures else ""
    layers = console.counted(len(config.layer_schedule), "layer")
    yield "is", f"{model.family}{architectures}: {layers} of {config.hidden_size} values"
    here = "" if weights.here else ", on the hub, not downloaded"
    yield ("size", f"{model.parameters['total']:,} parameters, {console.size(weights.bytes)} of {weights.format}{here}")
    yield from _not_numbers(weights.with_nan)
    yield from _adapter(model)
    commands, lacking = _commands(model)
    yield "can", _as_text(commands)
    if lacking:
        yield "cannot", _as_text(lacking)
    vectors = None if isinstance(embedding, NoEmbedding) else embedding.max_length
    limit = "" if vectors in (None, model.max_length) else f", for vectors {vectors}"
    lower = ", lower-cased" if tokenizer.lower_case else ""
    yield "input", f"up to {model.max_length} tokens{limit}; {tokenizer.kind} of {tokenizer.vocab_size:,}{lower}"
    if not isinstance(embedding, NoEmbedding):
        unit = ", scaled to length 1" if embedding.unit else ""
        yield "vectors", f"{embedding.size} values by {'+'.join(embedding.poolings)} pooling{unit}"
    if isinstance(tokens := model.token_vectors, TokenVectorFacts):
        lengths = f"up to {tokens.query_tokens} tokens of a query and {tokens.text_tokens} of a text"
        yield "vectors", f"{tokens.size} values per token, of {lengths}"
    yield "memory", _fit(model.fit)
    if _finds_any(model):
        yield "labels", _ANY
    elif model.labels:
        yield ("labels", _first(tuple(model.labels.values()) if isinstance(model.labels, Mapping) else model.labels))
    if model.unused:
        count = len(model.unused)
        yield "not used", _example(console.counted(count, "tensor"), model.unused[0].name, count)
    yield "problems", "; ".join(_problems(model)) or "none"


def _commands(model: "Inspection") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the commands that the model can be used for, with the kinds of its vectors, and the other commands."""
    from mlxbert.weights.vector_kinds import TASKS

    kinds = [TASKS[task] for task in model.tasks if task in TASKS]
    stated = "" if kinds == [*TASKS.values()][:1] else f" ({' and '.join(kinds)})"
    embeds = (f"embed{stated}",) if kinds else ()
    usable = tuple(task for task in model.tasks if task not in TASKS)
    return (*usable, *embeds), tuple(task for task in model.lacking if not kinds or task not in TASKS)


def _finds_any(model: "Inspection") -> bool:
    return "open_entities" in model.parts


def _fit(fit: "Fit") -> str:
    """Describes in one line whether this machine has enough memory to run and train the model."""
    longest = _longest(fit)
    needed = f"{console.size(fit.weights + fit.batch)} to run, {longest}{console.size(fit.finetuning)} to train"
    if fit.available is None:
        return needed
    memory = f"{console.size(fit.available)}{console.and_free(fit.free)}"
    text, run = f"a text of {fit.longest_tokens:,} tokens", fit.weights + fit.batch
    parts = (("it", run, ""), (text, fit.weights + fit.longest, ""), ("training", fit.finetuning, console.LESS_MEMORY))
    for what, size, less in parts:
        if (verdict := console.fitting(size, fit.available, fit.free)) != "fits":
            advice = less if size > fit.available else console.CLOSE
            return f"{needed}, of {memory}: {what} {verdict}{f'; {advice}' * bool(advice)}"
    return f"{needed}: {'all' if longest else 'both'} fit {memory}"


def _longest(fit: "Fit") -> str:
    """Describes how much memory the longest text takes; empty if a batch of the default size takes as much."""
    if fit.longest <= fit.batch:
        return ""
    return f"{console.size(fit.weights + fit.longest)} with a text of {fit.longest_tokens:,} tokens, "


def _fit_rows(fit: "Fit") -> _Rows:
    from mlxbert.memory_estimate import TEXT, TEXTS

    parts = f"{console.size(fit.weights)} of weights in {fit.dtype}, {console.size(fit.batch)} for a batch"
    yield "memory", f"{_fits(fit.weights + fit.batch, fit)} ({parts} of {fit.batch_tokens:,} tokens)"
    yield "longest text", f"{_fits(fit.weights + fit.longest, fit)} ({fit.longest_tokens:,} tokens)"
    less = f"; {console.LESS_MEMORY}" if fit.finetuning_fits is False else ""
    yield "to train", f"{_fits(fit.finetuning, fit)} (all weights, {TEXTS} texts of {TEXT} tokens){less}"


def _fits(needed: int, fit: "Fit") -> str:
    if fit.available is None:
        return f"takes about {console.size(needed)}"
    verdict = console.fitting(needed, fit.available, fit.free)
    return f"{verdict}: about {console.portion(needed, fit.available)}{console.and_free(fit.free)}"


def _first(names: Iterable[object]) -> str:
    texts = [str(name) for name in names]
    more = f" and {len(texts) - _MAX_NAMES} more" if len(texts) > _MAX_NAMES else ""
    return ", ".join(texts[:_MAX_NAMES]) + more


def _example(subject: str, name: str | None, count: int) -> str:
    return f"{subject}{', for example' if count > 1 else ':'} {name}"


def _problems(model: "Inspection") -> Iterator[str]:
    """Yields the problems that keep a part of the model from being used."""
    from mlxbert.folders.inspection import NoEmbedding
    from mlxbert.nn.heads import titles

    tokenizer = model.tokenizer
    if tokenizer.vocab_size > tokenizer.word_embeddings:
        yield f"the tokenizer belongs to another model: the model has {tokenizer.word_embeddings:,} word embeddings"
    others = any(task.startswith("embed-") for task in model.tasks)  # vectors of another kind
    if isinstance(model.embedding, NoEmbedding) and not others:
        yield f"no vectors: {model.embedding.problem}"
    if isinstance(model.token_vectors, NoEmbedding):
        yield f"no token vectors: {model.token_vectors.problem}"
    for part, facts in model.parts.items():
        if facts.problem:
            yield f"the {titles([part])} cannot be loaded: {facts.problem}"


def inspection(model: "Inspection", *, whole: bool) -> Iterator["rich.RenderableType"]:
    """Draws all facts about a model. Unless `whole` is true, a tensor that several layers have gets a single line."""
    yield from console.facts(f"{model.family} in {model.folder}", _summary(model))
    yield from console.facts("configuration", _config_rows(model.config))
    tokenizer = model.tokenizer
    rows: list[tuple[str, object]] = [
        ("kind", tokenizer.kind),
        ("vocabulary", f"{tokenizer.vocab_size} tokens for {tokenizer.word_embeddings} word embeddings"),
        ("special", _as_text(tokenizer.special)),
        ("lower-cases", _as_text(tokenizer.lower_case)),
    ]
    yield from console.facts("tokenizer", rows)
    yield from console.facts("vectors", _vector_rows(model.embedding))
    if model.token_vectors is not None:
        yield from console.facts("token vectors", vars(model.token_vectors).items())
    yield from console.facts("parts", _part_rows(model.parts.items()))
    total = model.parameters["total"]
    yield from console.facts(
        "parameters", [(part, f"{count:>14,}  {count / total:6.1%}") for part, count in model.parameters.items()]
    )
    yield from console.facts("memory", [(dtype, f"{console.size(size):>14}") for dtype, size in model.memory.items()])
    yield from console.facts("this machine", _fit_rows(model.fit))
    if unused := list(_unused_rows(model)):
        yield from console.facts("not used", unused)
    yield _tensors(model.tensors if whole else by_layer(model.tensors))


def _summary(model: "Inspection") -> _Rows:
    from mlxbert.folders.inspection import NoEmbedding

    weights, embedding = model.weights, model.embedding
    files = console.counted(len(weights.files), "file")
    yield "because", model.because
    yield "architectures", _as_text(model.architectures)
    yield "can", _as_text(model.tasks)
    for task, reason in model.lacking.items():
        yield f"cannot {task}", reason
    places = " and ".join({"config": "positions"}.get(name, name) for name in model.limited_by)
    yield "longest input", f"{model.max_length} tokens, by its {places}"
    if model.limits.sentence_transformers is not None and not isinstance(embedding, NoEmbedding):
        yield "for vectors", f"{embedding.max_length} tokens, by its sentence-transformers files"
    where = "" if weights.here else ", on the hub, not downloaded"
    yield "weights", f"{weights.format}, {weights.storage}, {console.size(weights.bytes)} in {files}{where}"
    yield from _not_numbers(weights.with_nan)
    yield from _adapter(model)
    if model.adapters:
        yield "adapters", _as_text(model.adapters)
    if model.labels or _finds_any(model):
        yield "labels", _ANY if _finds_any(model) else _as_text(model.labels)


def _not_numbers(names: Sequence[str]) -> _Rows:
    if names:
        yield "damaged", f"NaN in {console.counted(len(names), 'tensor')}, the first {names[0]}"


def _adapter(model: "Inspection") -> _Rows:
    if (adapter := model.adapter) is not None:
        changes = f"changes {console.counted(adapter.changed, 'matrix', 'matrices')}"
        changes += f" and replaces {console.counted(adapter.replaced, 'tensor')}" * bool(adapter.replaced)
        name, base = console.visible(adapter.folder.name), console.visible(str(adapter.base))
        yield "adapter", f"{name}, {console.size(adapter.bytes)}, {changes} of {base}"


def _as_text(value: object) -> object:
    """Formats a value on one line. A tuple or mapping is shown as its entries, a dataclass as its name and fields."""
    if is_dataclass(value) and not isinstance(value, Mapping):
        facts = ", ".join(f"{field.name} {_as_text(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({facts})" if facts else type(value).__name__
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_as_text(fact)}" for name, fact in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(str(_as_text(entry)) for entry in value) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _config_rows(config: "EncoderConfig") -> _Rows:
    from mlxbert.folders.inspection import all_config_facts

    for key, value in all_config_facts(config).items():
        if key == "layer_schedule":
            stored = len(set(value))
            yield "layers", f"{len(value)}" if stored == len(value) else f"{len(value)} steps through {stored} stored"
        elif key in ("heads", "biases"):
            facts = value if isinstance(value, dict) else vars(value)
            yield from ((f"{key}.{name}", _as_text(fact)) for name, fact in facts.items() if fact is not None)
        elif key == "type_vocab_size":
            yield key, value or "0 (no segments)"
        else:
            yield key, _as_text(value)


def _vector_rows(embedding: "EmbeddingFacts | NoEmbedding") -> _Rows:
    from mlxbert.folders.inspection import NoEmbedding

    if isinstance(embedding, NoEmbedding):
        yield "impossible", embedding.problem
        return
    stated = "" if embedding.stated else " (default: no sentence-transformers files)"
    yield "pooling", f"{_as_text(embedding.poolings)}{stated}"
    for module in embedding.modules:
        shapes = "; ".join(f"{name} {_size(shape)}" for name, shape in module.shapes.items())
        yield "then", f"{module.kind} {shapes}"
    yield "size", f"{embedding.size} values{', scaled to length 1' if embedding.unit else ''}"
    for key in ("similarity", "prompts", "default_prompt_name", "include_prompt", "lower_case"):
        value = getattr(embedding, key)
        yield key, "none" if value is None else _as_text(value)


def _part_rows(parts: Iterable[tuple[str, "PartFacts"]]) -> _Rows:
    for part, facts in parts:
        problem = f"; cannot be loaded: {facts.problem}" if facts.problem else ""
        yield part, f"{facts.in_file} → {facts.in_network}, {console.counted(facts.tensors, 'tensor')}{problem}"


def _unused_rows(model: "Inspection") -> _Rows:
    for tensor in model.unused:
        yield tensor.name, tensor.why
    count, example = model.skipped.count, model.skipped.example
    if count:
        yield console.counted(count, "more entry", "more entries"), _example("not weights of the model", example, count)


def _size(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _names(tensor: "TensorFacts") -> list[str]:
    """Returns the names that a tensor has in the file, in transformers and in the network, without repetitions."""
    return [name for name in (tensor.stored_as, tensor.name, tensor.becomes) if name is not None]


def _tensors(rows: Iterable["TensorFacts"]) -> "rich.RenderableType":
    """Draws the dtypes, shapes and names of tensors; in a narrow terminal, each name of a tensor gets its own line."""
    rows = list(rows)
    wide = max(len(" → ".join(_names(row))) for row in rows) + _OTHER_COLUMNS <= console.stdout().width
    lines: list[tuple[str, ...]] = []
    for row in rows:
        name, *other_names = _names(row)
        arrows = [f"→ {other}" for other in other_names]
        lines.append((row.dtype, _size(row.shape), " ".join([name, *arrows]) if wide else name))
        lines += [] if wide else [("", "", f"  {other}") for other in arrows]
    return console.listing(("dtype", "shape", "tensor → becomes"), lines)


def by_layer(tensors: Iterable["TensorFacts"]) -> list["TensorFacts"]:
    """Merges the rows of tensors that differ only in the number of the layer."""
    groups: dict[tuple[object, ...], list[TensorFacts]] = {}
    for row in tensors:
        name, becomes = (_LAYER.sub("{}", text) for text in (row.name, row.becomes))
        groups.setdefault((name, becomes, row.dtype, row.shape), []).append(row)
    return [_merged(rows) if len(rows) > 1 else rows[0] for rows in groups.values()]


def _merged(rows: list["TensorFacts"]) -> "TensorFacts":
    """Merges the rows of a tensor in several layers into one, whose names have all layer numbers, as in `{0…11}`.

    If the names in the file differ by more than these numbers, only the first of them is kept, followed by `…`.
    """
    first, numbers = rows[0], sorted({int(match[0]) for row in rows for match in _LAYER.finditer(row.name)})
    whole = numbers == [*range(numbers[0], numbers[-1] + 1)]
    layers = f"{{{numbers[0]}…{numbers[-1]}}}" if whole else f"{{{','.join(map(str, numbers))}}}"
    stored_as = first.stored_as
    if stored_as is not None:
        alike = len({_LAYER.sub("{}", row.stored_as or "") for row in rows}) == 1
        stored_as = _LAYER.sub(layers, stored_as) if alike else f"{stored_as}, …"
    becomes = _LAYER.sub("{}", first.becomes)
    return replace(first, name=_LAYER.sub(layers, first.name), stored_as=stored_as, becomes=becomes)
