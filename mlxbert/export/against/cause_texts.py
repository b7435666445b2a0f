"""Says in words how a recipe differs from the model's own, and what texts cannot show."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mlxbert.export.against.causes import CauseSearch, Recipe
from mlxbert.export.against.recipes import POOLER, Pooled, Reading
from mlxbert.export.vector_verification import VectorCause

_CASES = {"as_is": "as they are", "lower": "lowercased", "kept": "not lowercased"}


def describe(recipe: Recipe, search: CauseSearch) -> Iterator[VectorCause]:
    """Yields the changes between the model's own recipe and another one."""
    differing = len(search.differing(search.own_cosines))
    yield from _reading(recipe.reading, search, differing)
    yield from _pooling(recipe.pooled, search.own.pooled, differing)


def _reading(reading: Reading, search: CauseSearch, differing: int) -> Iterator[VectorCause]:
    own, total = search.own.reading, len(search.numbers)
    lengths = [search.runner.length(number, reading) for number in search.numbers]
    limit = reading.limit or search.runner.limit
    longer = sum(length > min(limit, search.runner.limit) for length in lengths)
    count = f"{longer:,} of {total:,} texts"
    if (reading.part, reading.limit) != (own.part, own.limit):
        if reading.part == "end":
            yield VectorCause("last_part", f"only the last {limit:,} tokens of longer texts are used: {count}", longer)
        elif reading.part == "windows":
            text = f"longer texts are split every {limit:,} tokens and the vectors averaged: {count}"
            yield VectorCause("windows", text, longer)
        elif limit >= max(lengths):
            text = f"texts are not truncated, but the model truncates them at {search.runner.limit:,} tokens: {count}"
            yield VectorCause("limit", text, longer)
        else:
            place = f", not at {search.runner.limit:,}" if limit > search.runner.limit else ""
            end = ", and the special token at the end is dropped" * (reading.part == "unclosed")
            yield VectorCause("limit", f"texts are truncated at {limit:,} tokens{place}{end}: {count}", longer)
    if reading.prompt != own.prompt:
        yield VectorCause("prompt", _prompts(reading.prompt, own.prompt), total)
    if reading.case != own.case:
        count = f"{differing:,} of {total:,} texts"
        yield VectorCause("case", f"texts are {_CASES[reading.case]} before the tokenizer: {count}", differing)
    if reading.special != own.special:
        yield VectorCause("special_tokens", "special tokens such as [CLS] and [SEP] are missing", total)
    if reading.padded != own.padded:
        yield VectorCause("padding", _padding(reading.padded, limit), differing)


def _prompts(prompt: tuple[str | None, str], own: tuple[str | None, str]) -> str:
    def named(each: tuple[str | None, str]) -> str:
        name, text = each
        return f"the prompt {name or text!r}" if text else "no prompt"

    return f"texts have {named(prompt)}, expected {named(own)}"


def _padding(padded: int, limit: int) -> str:
    if padded > 0:
        where = f"to {min(padded, limit):,} tokens"
    else:
        where = "to the longest text of each batch" + f" of {-padded:,}" * (-padded < 10**9)
    return f"the model attends to padding: inputs are padded {where}"


def _pooling(pooled: Pooled, own: Pooled, differing: int) -> Iterator[VectorCause]:
    if pooled.pooling != own.pooling:
        name = "the pooler (pooler_output)" if pooled.pooling == POOLER else f"pooling {pooled.pooling!r}"
        yield VectorCause("pooling", f"vectors come from {name}, expected pooling {own.pooling!r}", differing)
    elif pooled.padding != own.padding:
        yield VectorCause("pooling", "padding is pooled, too", differing)
    if pooled.layer != own.layer:
        name = f"layer {pooled.layer}" if pooled.layer else "the embeddings before the first layer"
        yield VectorCause("layer", f"vectors come from {name}, expected the last layer", differing)
    if pooled.later != own.later:
        yield VectorCause("later_layers", "the layers after the pooling are missing", differing)


def unseen(search: CauseSearch, recipes: Sequence[Recipe]) -> Iterator[str]:
    """Yields what the texts cannot show, as no vector would be different."""
    runner, reading = search.runner, recipes[0].reading if recipes else search.own.reading
    longest, most = max(search.lengths), reading.limit or runner.limit
    if longest <= most:
        yield f"the longest text has {longest:,} tokens: a limit of {longest:,} tokens or more would not show"
    if len(search.numbers) == 1:
        yield "a single text shows neither the order of vectors nor effects of padding"
    elif longest == min(search.lengths):
        yield "all texts have the same number of tokens: attended padding would not show"
    if reading.case == "as_is":
        other = replace(reading, case=runner.cases[-1])  # without the lowercasing of the tokenizer, if it lowercases
        if all(runner.pieces(text, other).ids == runner.pieces(text, reading).ids for text in search.numbers):
            yield "no text has capital letters: lowercasing would not show"
