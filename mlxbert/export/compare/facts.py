"""Finds the differences between two models other than their weights: in facts, parts, tokenizers and embedders."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, cast

from mlxbert.config import EncoderConfig
from mlxbert.errors import MlxbertError
from mlxbert.export.compare.compared_model import OpenedModel
from mlxbert.export.compare.fixed_texts import PAIRS, TEXTS
from mlxbert.export.compare.reports import Difference
from mlxbert.folders.inspection import config_facts
from mlxbert.frozen_dict import frozen
from mlxbert.machine.device import nn
from mlxbert.nn.embedder import Dense, Embedder
from mlxbert.nn.heads import HEADS
from mlxbert.nn.token_embedder import TokenEmbedder
from mlxbert.text.encoding import Encoding
from mlxbert.weights.vector_kinds import KINDS

TRAINING = ("dropout", "initialization")  # words in the names of facts that only training uses
_MAX_CHARACTERS = 120  # of a value in a sentence
_WORD = re.compile(r"[\w.+/-]+")


def differ(kind: str, name: str, a: object, b: object, text: str | None = None) -> Difference:
    """Makes a `Difference` between two values; by default its text shows both values."""
    return Difference(kind, name, frozen(a), frozen(b), text or f"{name}: {both(shown(a), shown(b))}")


def both(a: str, b: str) -> str:
    """Joins two formatted values to a text that says which model has which value."""
    return f"{a} in A; {b} in B"


def quoted(text: str | None) -> str:
    """Formats a text or a token on one line in quotes, so that its spaces are visible."""
    return "nothing" if text is None else _short(repr(text))


def shown(value: object) -> str:
    """Formats the value of a fact on one line. Only texts that are not a single word are quoted, also within lists."""
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
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def config_differences(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """Yields a difference for each fact that differs, about the encoders or about heads that either model has."""
    for name, value_a, value_b in _fields(config_facts(a.config), config_facts(b.config)):
        if name != "pooler" and not _why_idle(a, b, name):  # the pooler is a part
            yield differ("config", name, value_a, value_b)


def encoder_differences(a: EncoderConfig, b: EncoderConfig) -> Iterator[Difference]:
    """Yields a difference for each fact about the encoders that differs and that inference uses."""
    for name, value_a, value_b in _fields(config_facts(a), config_facts(b)):
        if name != "pooler" and not name.startswith("heads") and not _is_for_training(name):  # the pooler is a part
            yield differ("config", name, value_a, value_b)


def idle_differences(a: OpenedModel, b: OpenedModel) -> Iterator[str]:
    """Yields a sentence for each fact that differs without affecting any output."""
    if a.checkpoint.family_name != b.checkpoint.family_name:
        yield f"family: {both(a.checkpoint.family_name, b.checkpoint.family_name)}"
    training = []
    for name, value_a, value_b in _fields(config_facts(a.config), config_facts(b.config)):
        if _is_for_training(name):
            training.append(name)
        elif why := _why_idle(a, b, name):
            yield f"{name}: {both(shown(value_a), shown(value_b))}; {why}"
    if training:
        yield f"differences in facts that only training uses: {', '.join(training)}"


def _is_for_training(name: str) -> bool:
    return any(word in name for word in TRAINING)


def _why_idle(a: OpenedModel, b: OpenedModel, name: str) -> str | None:
    """Returns the reason why a difference in this fact affects no output; `None` if it does affect outputs."""
    if _is_for_training(name):
        return "it matters in training only"
    group, head, *_ = [*name.split("."), ""]
    users = {head} if head in HEADS else {name for name, spec in HEADS.items() if spec.labelled}
    return "it matters to heads that neither has" if group == "heads" and not users & {*a.parts, *b.parts} else None


def _fields(a: object, b: object, before: str = "") -> Iterator[tuple[str, object, object]]:
    """Compares two dataclasses or two mappings.

    Yields:
        The dotted name and both values of each differing field. Keys that only one mapping has are ignored.
    """
    first, second = ((value if isinstance(value, Mapping) else vars(value)) for value in (a, b))
    for name in (name for name in first if name in second):
        value_a, value_b = first[name], second[name]
        if value_a == value_b:
            continue
        if (is_dataclass(value_a) or name == "heads") and type(value_a) is type(value_b):
            yield from _fields(value_a, value_b, f"{before}{name}.")
        else:
            yield f"{before}{name}", value_a, value_b


def part_differences(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """Yields a difference for each part that only one model has, or that has different problems in the two models."""
    for part in dict.fromkeys((*a.parts, *b.parts)):
        present = part in a.parts, part in b.parts
        problems = a.problems.get(part), b.problems.get(part)
        if present[0] != present[1]:
            yield differ("part", part, *present, f"{part}: only {'A' if present[0] else 'B'} has this part")
        elif problems[0] != problems[1]:
            text = "; ".join(f"{side}: {problem}" for side, problem in zip("AB", problems, strict=True) if problem)
            yield differ("part", part, *problems, text)


def tokenizer_differences(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """Yields the differences in vocabulary, special tokens, limits, lowercasing, and the tokens of the fixed texts."""
    kinds = [type(model.tokenizer.files.tokenizer.model).__name__ for model in (a, b)]
    if kinds[0] != kinds[1]:
        yield differ("tokenizer", "kind", *kinds)
    yield from _vocabulary_difference(a, b)
    for role in dict.fromkeys((*a.tokenizer.files.special, *b.tokenizer.files.special)):
        token_a, token_b = a.tokenizer.files.special.get(role), b.tokenizer.files.special.get(role)
        if token_a != token_b:
            yield differ("tokenizer", f"special.{role}", token_a, token_b)
    limits = a.tokenizer.max_length, b.tokenizer.max_length
    if limits[0] != limits[1] and limits != (a.config.max_length, b.config.max_length):
        yield differ("tokenizer", "max_length", *limits)
    lower = a.tokenizer.files.lower_cases, b.tokenizer.files.lower_cases
    if lower[0] != lower[1]:
        yield differ("tokenizer", "lower_case", *lower)
    yield from _split_differences(a, b)


def _vocabulary_difference(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """Yields a difference if the vocabularies differ; it states the sizes and the first id whose tokens differ."""
    tokens_a, tokens_b = (
        {number: token for token, number in model.tokenizer.files.tokenizer.get_vocab(with_added_tokens=True).items()}
        for model in (a, b)
    )
    if tokens_a == tokens_b:
        return
    first = min(number for number in tokens_a.keys() | tokens_b.keys() if tokens_a.get(number) != tokens_b.get(number))
    tokens = tokens_a.get(first), tokens_b.get(first)
    sizes = f"{len(tokens_a):,} tokens in A, {len(tokens_b):,} in B; " if len(tokens_a) != len(tokens_b) else ""
    message = f"vocabulary: {sizes}the first difference is at id {first}: {both(quoted(tokens[0]), quoted(tokens[1]))}"
    yield differ("tokenizer", "vocabulary", *tokens, message)


def encoded(model: OpenedModel) -> list[Encoding]:
    """Tokenizes the fixed texts and pairs, and truncates them to the limit of the model."""
    tokenizer = model.tokenizer
    bare = len(tokenizer.templates[0]) == 1  # without special tokens, an empty text would have no tokens
    single = [tokenizer.encode(text or "a" * bare, overflow="truncate") for text in TEXTS]
    return single + [tokenizer.encode(text, pair, overflow="truncate") for text, pair in PAIRS]


def spelled(model: OpenedModel, encoding: Encoding) -> list[str]:
    """Returns the tokens of an input as strings, so that models with different vocabularies can be compared."""
    return [model.tokenizer.token(number) for number in encoding.ids]


def _split_differences(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """Yields a difference for the first text that the models tokenize differently.

    If a model truncates a text, only the tokens that both models keep are compared. Truncated pairs are not compared.
    """
    for text, encoding_a, encoding_b in zip((*TEXTS, *PAIRS), encoded(a), encoded(b), strict=True):
        truncated = encoding_a.truncated or encoding_b.truncated
        limit = (min(len(encoding_a), len(encoding_b)) - 1 if isinstance(text, str) else 0) if truncated else None
        tokens = spelled(a, encoding_a)[:limit], spelled(b, encoding_b)[:limit]
        shown_text = quoted(text if isinstance(text, str) else " | ".join(text))
        if tokens[0] != tokens[1]:
            message = f"tokens: {shown_text} becomes {both(*(quoted(' '.join(names)) for names in tokens))}"
            yield differ("tokenizer", "cut", *tokens, message)
            return
        offsets = encoding_a.offsets[:limit], encoding_b.offsets[:limit]
        if offsets[0] != offsets[1] or encoding_a.token_type_ids[:limit] != encoding_b.token_type_ids[:limit]:
            message = f"offsets: the tokens of {shown_text} are equal, but their offsets or segments are not"
            yield differ("tokenizer", "offsets", *offsets, message)
            return


def embedder_differences(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """Yields the differences in how the models make vectors."""
    embedder_a, embedder_b = a.embedder, b.embedder
    if not isinstance(embedder_a, Embedder) or not isinstance(embedder_b, Embedder):
        problems = a.no_vectors, b.no_vectors
        if problems[0] != problems[1]:
            sides = zip("AB", problems, strict=True)
            message = "; ".join(f"{side} makes no vectors ({problem})" for side, problem in sides if problem)
            yield differ("embedding", "embedder", *problems, message)
        return
    for name, value_a, value_b in _fields(embedder_a.config, embedder_b.config):
        if name not in ("stated", "max_length"):
            yield differ("embedding", name, value_a, value_b)
    limits, of_texts = (
        (getattr(a.model, name).max_length, getattr(b.model, name).max_length)
        for name in ("embed_tokenizer", "tokenizer")
    )
    if limits[0] != limits[1] and limits != of_texts:
        yield differ("embedding", "max_length", *limits)
    layers = layers_of(embedder_a), layers_of(embedder_b)
    if layers[0] != layers[1]:
        texts = (", ".join(names) or "nothing" for names in layers)
        yield differ("embedding", "layers", *layers, f"layers after the pooling: {both(*texts)}")


def other_vector_differences(a: OpenedModel, b: OpenedModel) -> Iterator[Difference]:
    """Yields the differences in how the models make sparse vectors and token vectors."""
    for kind in dict.fromkeys((*a.others, *b.others)):
        first, second = a.others.get(kind), b.others.get(kind)
        if first is None or second is None:
            message = f"only {'B' if first is None else 'A'} makes {KINDS[kind].title}"
            yield differ("embedding", kind, first is not None, second is not None, message)
        elif isinstance(first, MlxbertError) or isinstance(second, MlxbertError):
            problems = (str(each) if isinstance(each, MlxbertError) else None for each in (first, second))
            yield differ("embedding", kind, *problems)
        else:
            for name, value_a, value_b in _fields(*(cast(Any, each).config for each in (first, second))):
                if name not in ("stated", "max_length"):
                    yield differ("embedding", f"{kind}.{name}", value_a, value_b)
            if isinstance(first, TokenEmbedder) and isinstance(second, TokenEmbedder) and not same_layers(a, b, kind):
                yield differ("embedding", f"{kind}.layers", layers_of(first), layers_of(second))


def layers_of(embedder: Embedder | TokenEmbedder) -> list[str]:
    """Describes the kind and the settings of each layer after the pooling, or of token vectors."""

    def described(layer: nn.Module) -> str:
        if not isinstance(layer, Dense):
            return type(layer).__name__
        return f"Dense ({layer.activation}{', residual' if layer.has_residual else ''})"

    return [described(layer) for layer in embedder.layers]


def same_layers(a: OpenedModel, b: OpenedModel, kind: str = "dense") -> bool:
    """Whether both models have the same kinds of layers for a kind of vectors, whose tensors can then be compared."""
    first, second = (each.embedder if kind == "dense" else each.others.get(kind) for each in (a, b))
    layered = (Embedder, TokenEmbedder)
    return isinstance(first, layered) and isinstance(second, layered) and layers_of(first) == layers_of(second)
