"""What differs between two models apart from their numbers: facts, parts, tokenizers, how vectors are made."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass

from mlxbert.folders.compare.compared_model import OpenedModel
from mlxbert.folders.compare.fixed_texts import PAIRS, TEXTS
from mlxbert.folders.compare.reports import Difference, config_facts
from mlxbert.frozen import frozen
from mlxbert.machine.device import nn
from mlxbert.nn.embedder import Dense, Embedder
from mlxbert.nn.heads import HEADS
from mlxbert.text.encoding import Encoding

TRAINING = ("dropout", "initialization")  # in the names of facts that only training uses
_SHOWN = 120  # characters of a value in a sentence
_WORD = re.compile(r"[\w.+/-]+")


def differ(kind: str, name: str, a: object, b: object, text: str | None = None) -> Difference:
    """A difference between two values; without a text the sentence shows the values."""
    return Difference(kind, name, frozen(a), frozen(b), text or f"{name}: {both(shown(a), shown(b))}")


def both(a: str, b: str) -> str:
    """Two values in a sentence, with the model that each belongs to."""
    return f"{a} in A; {b} in B"


def quoted(text: str | None) -> str:
    """A text or a token on one line, with its spaces visible."""
    return "nothing" if text is None else _short(repr(text))


def shown(value: object) -> str:
    """A fact on one line: words and numbers as they are, other texts in quotes, lists by their entries."""
    if is_dataclass(value):
        return type(value).__name__
    if isinstance(value, str):
        return _short(value) if _WORD.fullmatch(value) else quoted(value)
    if isinstance(value, Mapping):
        return _short(", ".join(f"{key} {shown(entry)}" for key, entry in value.items()) or "none")
    if isinstance(value, tuple | list):
        return _short(", ".join(map(shown, value)) or "none")
    return {None: "none", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def of_config(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """Facts of the encoders, and of the heads that at least one of the models has."""
    for name, one, other in _fields(config_facts(a.config), config_facts(b.config)):
        if name != "pooler" and not _idle(a, b, name):  # the pooler is a part
            yield differ("config", name, one, other)


def of_idle(a: OpenedModel, b: OpenedModel) -> Iterator[str]:
    """Facts that differ without changing an output, each in a sentence."""
    if a.checkpoint.family_name != b.checkpoint.family_name:
        yield f"family: {both(a.checkpoint.family_name, b.checkpoint.family_name)}"
    training = []
    for name, one, other in _fields(config_facts(a.config), config_facts(b.config)):
        if _is_for_training(name):
            training.append(name)
        elif why := _idle(a, b, name):
            yield f"{name}: {both(shown(one), shown(other))}; {why}"
    if training:
        yield f"only training uses what differs in {', '.join(training)}"


def _is_for_training(name: str) -> bool:
    return any(word in name for word in TRAINING)


def _idle(a: OpenedModel, b: OpenedModel, name: str) -> str | None:
    """Why it does not matter that a fact differs, if it does not."""
    if _is_for_training(name):
        return "it matters in training only"
    first, head, *_ = [*name.split("."), ""]
    users = {head} if head in HEADS else {name for name, spec in HEADS.items() if spec.labelled}
    return "it matters to heads that neither has" if first == "heads" and not users & {*a.parts, *b.parts} else None


def _fields(a: object, b: object, before: str = "") -> Iterator[tuple[str, object, object]]:
    """The fields in which two values of one dataclass differ, and the keys that two mappings have, by dotted names."""
    first, second = ((value if isinstance(value, Mapping) else vars(value)) for value in (a, b))
    for name in (name for name in first if name in second):
        one, other = first[name], second[name]
        if one == other:
            continue
        if (is_dataclass(one) or name == "heads") and type(one) is type(other):
            yield from _fields(one, other, f"{before}{name}.")
        else:
            yield f"{before}{name}", one, other


def of_parts(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """Parts that only one model has, or that only one can be run with."""
    for part in dict.fromkeys((*a.parts, *b.parts)):
        present = part in a.parts, part in b.parts
        problems = a.problems.get(part), b.problems.get(part)
        if present[0] != present[1]:
            has, lacks = "AB" if present[0] else "BA"
            yield differ("part", part, *present, f"{part}: {has} has it, {lacks} does not")
        elif problems[0] != problems[1]:
            text = "; ".join(f"{side}: {problem}" for side, problem in zip("AB", problems, strict=True) if problem)
            yield differ("part", part, *problems, text)


def of_tokenizers(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """Vocabularies, special tokens, limits, lower-casing, and how the fixed texts are split."""
    kinds = [type(model.tokenizer.files.tokenizer.model).__name__ for model in (a, b)]
    if kinds[0] != kinds[1]:
        yield differ("tokenizer", "kind", *kinds)
    yield from _of_vocabularies(a, b)
    for role in dict.fromkeys((*a.tokenizer.files.special, *b.tokenizer.files.special)):
        one, other = a.tokenizer.files.special.get(role), b.tokenizer.files.special.get(role)
        if one != other:
            yield differ("tokenizer", f"special.{role}", one, other)
    limits = a.tokenizer.max_length, b.tokenizer.max_length
    if limits[0] != limits[1] and limits != (a.config.max_length, b.config.max_length):
        yield differ("tokenizer", "max_length", *limits)
    lower = a.tokenizer.files.lower_cases, b.tokenizer.files.lower_cases
    if lower[0] != lower[1]:
        yield differ("tokenizer", "lower_case", *lower)
    yield from _of_splits(a, b)


def _of_vocabularies(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """At most one: the sizes, and the first id with another token."""
    one, other = (
        {number: token for token, number in model.tokenizer.files.tokenizer.get_vocab(with_added_tokens=True).items()}
        for model in (a, b)
    )
    if one == other:
        return
    first = min(number for number in one.keys() | other.keys() if one.get(number) != other.get(number))
    tokens = one.get(first), other.get(first)
    sizes = f"{len(one):,} tokens in A, {len(other):,} in B; " if len(one) != len(other) else ""
    message = f"vocabulary: {sizes}the first that differs is id {first}: {both(quoted(tokens[0]), quoted(tokens[1]))}"
    yield differ("tokenizer", "vocabulary", *tokens, message)


def encoded(model: OpenedModel) -> list[Encoding]:
    """The fixed texts and pairs as inputs of a model, truncated to its longest input."""
    tokenizer = model.tokenizer
    bare = len(tokenizer.templates[0]) == 1  # without special tokens, which are all that an empty text has
    single = [tokenizer.encode(text or "a" * bare, overflow="truncate") for text in TEXTS]
    return single + [tokenizer.encode(text, pair, overflow="truncate") for text, pair in PAIRS]


def spelled(model: OpenedModel, encoding: Encoding) -> list[str]:
    """The tokens of an input, which can be compared across vocabularies."""
    return [model.tokenizer.token(number) for number in encoding.ids]


def _of_splits(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """The first text that the models split into different tokens, up to the longest input of either."""
    for text, one, other in zip((*TEXTS, *PAIRS), encoded(a), encoded(b), strict=True):
        truncated = one.truncated or other.truncated
        most = (min(len(one), len(other)) - 1 if isinstance(text, str) else 0) if truncated else None
        tokens = spelled(a, one)[:most], spelled(b, other)[:most]
        shown_text = quoted(text if isinstance(text, str) else " | ".join(text))
        if tokens[0] != tokens[1]:
            message = f"cut: {shown_text} becomes {both(*(quoted(' '.join(names)) for names in tokens))}"
            yield differ("tokenizer", "cut", *tokens, message)
            return
        if (one.offsets[:most], one.token_type_ids[:most]) != (other.offsets[:most], other.token_type_ids[:most]):
            message = f"offsets: the tokens of {shown_text} are the same, their offsets or segments are not"
            yield differ("tokenizer", "offsets", one.offsets[:most], other.offsets[:most], message)
            return


def of_embedders(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """How the models make vectors."""
    one, other = a.embedder, b.embedder
    if not isinstance(one, Embedder) or not isinstance(other, Embedder):
        problems = a.no_vectors, b.no_vectors
        if problems[0] != problems[1]:
            sides = zip("AB", problems, strict=True)
            message = "; ".join(f"{side}: no vectors: {problem}" for side, problem in sides if problem)
            yield differ("embedding", "embedder", *problems, message)
        return
    for name, first, second in _fields(one.config, other.config):
        if name not in ("stated", "max_length"):
            yield differ("embedding", name, first, second)
    limits, of_texts = (
        (getattr(a.model, name).max_length, getattr(b.model, name).max_length)
        for name in ("embed_tokenizer", "tokenizer")
    )
    if limits[0] != limits[1] and limits != of_texts:
        yield differ("embedding", "max_length", *limits)
    layers = layers_of(one), layers_of(other)
    if layers[0] != layers[1]:
        found = (", ".join(names) or "nothing" for names in layers)
        yield differ("embedding", "layers", *layers, f"layers after the pooling: {both(*found)}")


def layers_of(embedder: Embedder) -> list[str]:
    """The layers after the pooling: their kinds, and their facts that are not tensors."""

    def described(layer: nn.Module) -> str:
        if not isinstance(layer, Dense):
            return type(layer).__name__
        return f"Dense ({layer.activation}{', residual' if layer.has_residual else ''})"

    return [described(layer) for layer in embedder.layers]


def same_layers(a: OpenedModel, b: OpenedModel) -> bool:
    """Whether the layers after the pooling are of the same kinds, so that their tensors can be compared."""
    one, other = a.embedder, b.embedder
    return isinstance(one, Embedder) and isinstance(other, Embedder) and layers_of(one) == layers_of(other)
