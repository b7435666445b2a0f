"""The special tokens around texts: as a tokenizer class defines them, or as a `tokenizer.json` overrides them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, processors

from mlxbert.weights.tokenizers.text_growth import steps_of


@dataclass(frozen=True)
class Ends:
    """The special tokens that a tokenizer class puts around texts."""

    first: str  # the role of the token before a text
    last: str  # the role of the token after a text
    # The layout of two texts: `segments` is `[CLS] A [SEP] B [SEP]` with B in segment 1; `doubled` is `<s> A </s></s> B
    # </s>` in one segment; `trimmed` is like `doubled`, but offsets exclude the spaces at the ends of a token; `each`
    # is `<bos> A <eos> <bos> B <eos>` with the second half in segment 1.
    pair: Literal["segments", "doubled", "trimmed", "each"]
    # When these tokens are used with a `tokenizer.json`: `always`, `never`, or `missing`, that is, only if the file has
    # no post-processor.
    used: Literal["always", "missing", "never"] = "always"

    def applies(self, tokenizer: Tokenizer, tokens: Mapping[str, AddedToken]) -> bool:
        """Whether these tokens apply to a `tokenizer.json` and are in its vocabulary."""
        enabled = self.used == "always" or (self.used == "missing" and tokenizer.post_processor is None)
        names = [tokens[role].content for role in (self.first, self.last) if role in tokens]
        return enabled and len(names) == 2 and None not in map(tokenizer.token_to_id, names)

    def build(self, tokenizer: Tokenizer, tokens: Mapping[str, AddedToken], settings: Mapping[str, Any]) -> Any:
        """Builds the post-processor with the ids in the vocabulary; `tokens` holds the special tokens by role."""
        first, last = ((name := tokens[role].content, _id(tokenizer, name)) for role in (self.first, self.last))
        if self.pair == "each":
            return _around_each(first, last, settings)
        if self.pair == "trimmed":
            trims, spaced = settings.get("trim_offsets") is not False, settings.get("add_prefix_space") is True
            return processors.RobertaProcessing(last, first, trim_offsets=trims, add_prefix_space=spaced)
        single = [f"{first[0]}:0", "$A:0", f"{last[0]}:0"]
        second = ["$B:1", f"{last[0]}:1"] if self.pair == "segments" else [f"{last[0]}:0", "$B:0", f"{last[0]}:0"]
        return processors.TemplateProcessing(single=single, pair=single + second, special_tokens=[first, last])


NO_ENDS = processors.TemplateProcessing(single=["$A:0"], pair=["$A:0", "$B:1"], special_tokens=[])


def _id(tokenizer: Tokenizer, token: str) -> int:
    return tokenizer.token_to_id(token) or 0


def _around_each(bos: tuple[str, int], eos: tuple[str, int], settings: Mapping[str, Any]) -> Any:
    """Builds the layout `<bos> A <eos> <bos> B <eos>`.

    If `add_bos_token` or `add_eos_token` is false, this token is omitted. If both settings are missing, both tokens are
    added, as in the training of EmbeddingGemma, although transformers would add neither.
    """
    before, after = (
        [end] if settings.get(f"add_{role}_token") is not False else [] for role, end in (("bos", bos), ("eos", eos))
    )
    first, second = (
        [*(f"{token}:{number}" for token, _ in before), text, *(f"{token}:{number}" for token, _ in after)]
        for number, text in enumerate(("$A:0", "$B:1"))
    )
    return processors.TemplateProcessing(single=first, pair=first + second, special_tokens=[*before, *after])


def effect(tokenizer: Tokenizer) -> tuple[list[tuple[int, int]], ...]:
    """Returns the ids and segments of a sample text and a sample pair, to compare the effect of two post-processors."""
    encodings = (tokenizer.encode("a"), tokenizer.encode("a", "a"))
    return tuple(list(zip(encoding.ids, encoding.type_ids, strict=True)) for encoding in encodings)


def other_ids(tokenizer: Tokenizer) -> dict[str, tuple[int, int | None]]:
    """Returns special tokens whose id in the post-processor differs from their id in the vocabulary, with both ids."""
    before, numbers = tokenizer.post_processor, dict[str, tuple[int, int | None]]()
    for step in [] if before is None else steps_of(json.loads(before.__getstate__())):
        pairs = [tuple(step[role]) for role in ("cls", "sep") if role in step]
        for special in step.get("special_tokens", {}).values():
            pairs += zip(special["tokens"], special["ids"], strict=False)
        numbers |= {token: (number, tokenizer.token_to_id(token)) for token, number in pairs}
    return {token: ids for token, ids in numbers.items() if ids[0] != ids[1]}
