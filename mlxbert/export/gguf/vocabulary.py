"""The metadata that describe a tokenizer to llama.cpp.

llama.cpp has its own tokenizers, one for each kind of vocabulary: WordPiece ("bert"), Unigram ("t5"), BPE of bytes
("gpt2") and BPE of SentencePiece ("llama"). A step that they do not have is an error, unless it changes few texts.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from mlxbert.errors import TokenizerError
from mlxbert.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of tokens, as in SentencePiece
_SPACE = "\u2581"
_UNUSED_SCORE = -1_000_000.0
_GPT2 = "gpt-2"
# The pre-tokenizers of byte-level BPE, by the regular expression that splits texts into words.
_WORDS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+": "qwen2",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "gpt-4o",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": _GPT2,
}
# Merges are not applied to a word that is a token as a whole.
_IGNORING_MERGES = ("llama-bpe",)
# Replacements of white space in front of Unigram vocabularies that llama.cpp makes, too: of runs, and at the ends.
_RUNS = (" {2,}", r"\s{2,}|[\n\r\t]", r"\s+", r"\s{2,}")
_AT_ENDS = "^ | $"


class VocabularyReader:
    """Reads a tokenizer of mlxbert into the metadata of llama.cpp."""

    def __init__(self, tokenizer: Tokenizer, rows: int, *, lower_case: bool) -> None:
        """Takes the tokenizer of a model, the number of word embeddings, and whether texts are lowercased before."""
        self._tokenizer, self._rows, self._lower_case = tokenizer, rows, lower_case
        self._state: dict[str, Any] = json.loads(tokenizer.files.tokenizer.to_str())
        self._model: dict[str, Any] = self._state["model"]
        self._added = {entry["id"]: entry for entry in self._state["added_tokens"]}
        self.notes: list[str] = []  # a noun phrase for each step of the tokenizer that llama.cpp does not have

    def read(self) -> dict[str, Any]:
        """Returns the metadata by their whole names."""
        readers = {"WordPiece": self._word_piece, "Unigram": self._unigram, "BPE": self._bpe}
        kind = self._model["type"]
        if kind not in readers:
            raise self._refused(f"the vocabulary is of type {kind}", f"one of {', '.join(readers)}")
        if self._lower_case and kind != "WordPiece":
            raise self._refused("texts are lower-cased before they are split", "texts in which case is kept")
        values = readers[kind]() | self._ends(word_piece=kind == "WordPiece")
        tokens = values["tokens"]
        double, times = Counter(tokens).most_common(1)[0]
        if times > 1:
            raise self._refused(f"{double!r} would stand for two tokens", "tokens that differ")
        return {f"tokenizer.ggml.{name}": value for name, value in values.items()}

    def _refused(self, found: str, expected: str) -> TokenizerError:
        return TokenizerError(f"{found}, expected {expected} in a model for llama.cpp")

    def _tokens(self, vocabulary: Mapping[str, int]) -> tuple[list[str], list[int]]:
        """Returns the text and the type of each token; ids without a token have a name that occurs in no text."""
        texts = [f"[PAD{number}]" for number in range(self._rows)]
        types = [UNUSED] * self._rows
        for text, number in vocabulary.items():
            texts[number], types[number] = text, NORMAL
        for number, entry in self._added.items():
            if number < self._rows:  # not a placeholder for an image
                texts[number], types[number] = entry["content"], CONTROL if entry["special"] else USER_DEFINED
        return texts, types

    def _steps(self, part: str) -> list[dict[str, Any]]:
        """Returns the steps of the `normalizer` or the `pre_tokenizer`, without nesting."""
        inner = part.replace("_", "") + "s"  # "normalizers" or "pretokenizers"

        def flat(step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
            if step is not None and step["type"] == "Sequence":
                for other in step[inner]:
                    yield from flat(other)
            elif step is not None:
                yield step

        return [*flat(self._state[part])]

    def _ends(self, *, word_piece: bool) -> dict[str, Any]:
        """Returns the special tokens, and those that stand before, between and after texts."""
        single, pair = self._tokenizer.files.tokenizer, self._tokenizer.templates
        slots = [place for place, (token, _) in enumerate(pair[0]) if token is None]
        ids = [token for token, _ in pair[0]]
        before, after = ids[: slots[0]], ids[slots[0] + 1 :]
        if len(before) > 1 or len(after) > 1 or (word_piece and not (before and after)):
            expected = "one before it and one after it" if word_piece else "at most one before and after it"
            raise self._refused(f"{len(before)} special tokens stand before a text and {len(after)} after it", expected)
        special = {role: single.token_to_id(token) for role, token in self._tokenizer.special.items()}
        values = {
            "bos_token_id": before[0] if before else special.get("bos"),
            "eos_token_id": after[0] if after else special.get("eos"),
            "unknown_token_id": special.get("unk"),
            "seperator_token_id": special.get("sep"),  # spelled like this in the format
            "padding_token_id": special.get("pad"),
            "cls_token_id": special.get("cls"),
            "mask_token_id": special.get("mask"),
            "add_bos_token": bool(before),
            "add_eos_token": bool(after),
            "add_sep_token": self._separators() > 1,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _separators(self) -> int:
        """The number of special tokens between the texts of a pair."""
        places = [place for place, (token, _) in enumerate(self._tokenizer.templates[1]) if token is None]
        return places[1] - places[0] - 1 if self._tokenizer.prompt is None else 0

    def _word_piece(self) -> dict[str, Any]:
        lower, strip = self._lower_case, False
        for step in self._steps("normalizer"):
            if step["type"] == "BertNormalizer":
                lower = lower or step["lowercase"]
                strip = step["lowercase"] if step["strip_accents"] is None else step["strip_accents"]
                if not step["clean_text"]:
                    self.notes.append("control characters: llama.cpp removes them")
                if not step["handle_chinese_chars"]:
                    self.notes.append("Chinese words as a whole: llama.cpp splits them into characters")
            elif step["type"] in ("Lowercase", "StripAccents", "NFD"):
                lower, strip = lower or step["type"] == "Lowercase", strip or step["type"] == "StripAccents"
            else:
                raise self._refused(f"texts are normalized by {step['type']}", "BertNormalizer")
        if (kinds := [step["type"] for step in self._steps("pre_tokenizer")]) != ["BertPreTokenizer"]:
            raise self._refused(f"texts are split by {', '.join(kinds) or 'nothing'}", "BertPreTokenizer")
        prefix = self._model["continuing_subword_prefix"]
        texts, types = self._tokens(self._model["vocab"])
        marked = [
            text if kind != NORMAL else text.removeprefix(prefix) if text.startswith(prefix) else _SPACE + text
            for text, kind in zip(texts, types, strict=True)
        ]
        return {
            "model": "bert",
            "pre": "default",
            "tokens": [text or texts[number] for number, text in enumerate(marked)],  # "##" itself
            "token_type": types,
            "normalizer.lowercase": lower,
            "normalizer.strip_accents": strip,
        }

    def _unigram(self) -> dict[str, Any]:
        charsmap, names = b"", set()
        normalizers = self._steps("normalizer")
        for step in normalizers:
            names.add(step["type"])
            if step["type"] == "Precompiled":
                charsmap = base64.b64decode(step["precompiled_charsmap"])
        if other := names - {"Precompiled", "Replace", "Strip", "NFC", "NFKC"}:
            raise self._refused(f"texts are normalized by {min(other)}", "a table of replacements")
        if not charsmap and (forms := sorted(names & {"NFC", "NFKC"})):
            self.notes.append(f"the normalization of texts ({', '.join(forms)})")
        spaces = self._white_space(normalizers)
        pieces = self._model["vocab"]
        texts, types = self._tokens({text: number for number, (text, _) in enumerate(pieces)})
        scores = [score for _, score in pieces] + [_UNUSED_SCORE] * (self._rows - len(pieces))
        scores = [score if kind != CONTROL else 0.0 for score, kind in zip(scores, types, strict=True)]
        if self._model["unk_id"] is not None:
            types[self._model["unk_id"]] = UNKNOWN
        values = {
            "model": "t5",
            "pre": "default",
            "tokens": texts,
            "scores": scores,
            "token_type": types,
        } | spaces
        return values | ({"precompiled_charsmap": charsmap} if charsmap else {})

    def _white_space(self, normalizers: list[dict[str, Any]]) -> dict[str, bool]:
        """Returns what becomes of white space in front of a Unigram vocabulary.

        llama.cpp either merges runs of spaces, removes those at the ends, and puts one before each word; or it keeps
        all spaces.
        """
        splits = self._steps("pre_tokenizer")
        if other := {step["type"] for step in splits} - {"Metaspace", "WhitespaceSplit"}:
            raise self._refused(f"texts are split by {min(other)}", "Metaspace")
        words = any(step["type"] == "WhitespaceSplit" for step in splits)
        changes = {self._space_change(step) for step in normalizers}
        merged, trimmed = words or "merged" in changes, words or "trimmed" in changes
        prefix = [step["prepend_scheme"] for step in splits if step["type"] == "Metaspace"]
        prefixed = prefix == ["always"] or (prefix == ["first"] and not words)
        if merged and not prefixed:
            raise self._refused("no space is put before a text, while runs of spaces are merged", "a space before it")
        if merged and not trimmed:
            self.notes.append("spaces at the end of a text: llama.cpp removes them")
        if trimmed and not merged:
            self.notes.append("the removal of spaces around a text")
        if prefixed and not merged:
            self.notes.append("a text that begins with a space: llama.cpp puts another one before it")
        return {"add_space_prefix": prefixed, "remove_extra_whitespaces": merged}

    def _space_change(self, step: dict[str, Any]) -> str | None:
        """Says what a step of the normalizer does to spaces: they are `merged`, `trimmed`, or stay."""
        if step["type"] == "Strip":
            return "trimmed" if step["strip_right"] else None
        if step["type"] != "Replace":
            return None
        pattern, content = next(iter(step["pattern"].values())), step["content"]
        if (pattern, content) == (_AT_ENDS, ""):
            return "trimmed"
        if pattern in _RUNS and content in (" ", _SPACE):
            return "merged"
        if (pattern, content) == (" ", _SPACE):
            return None
        raise self._refused(f"{pattern!r} is replaced by {content!r} in texts", "replacements of spaces")

    def _bpe(self) -> dict[str, Any]:
        normalizers, splits = self._steps("normalizer"), self._steps("pre_tokenizer")
        if any(step["type"] == "ByteLevel" for step in splits):
            return self._byte_level(normalizers, splits)
        if self._model["byte_fallback"] and any(
            step["type"] == "Replace" and step["content"] == _SPACE for step in normalizers
        ):
            return self._sentence_piece(normalizers)
        kinds = ", ".join(step["type"] for step in splits) or "nothing"
        raise self._refused(f"texts are split by {kinds}", "ByteLevel, or tokens for bytes")

    def _byte_level(self, normalizers: list[dict[str, Any]], splits: list[dict[str, Any]]) -> dict[str, Any]:
        if other := {step["type"] for step in normalizers} - {"NFC"}:
            raise self._refused(f"texts are normalized by {min(other)}", "nothing")
        if normalizers:
            self.notes.append("the composition of letters and accents (NFC)")
        bytes_step = next(step for step in splits if step["type"] == "ByteLevel")
        if bytes_step["add_prefix_space"]:
            self.notes.append("the space before a text")
        patterns = [step["pattern"].get("Regex") for step in splits if step["type"] == "Split"]
        pre = _GPT2 if bytes_step["use_regex"] and not patterns else None
        if len(patterns) == 1 and not bytes_step["use_regex"] and len(splits) == 2:
            pre = _WORDS.get(patterns[0])
        if pre is None:
            kinds = ", ".join(step["type"] for step in splits)
            raise self._refused(f"texts are split by {kinds} {patterns or ''}".rstrip(), "one of llama.cpp's patterns")
        if bool(self._model["ignore_merges"]) != (pre in _IGNORING_MERGES):
            self.notes.append("words that are a token as a whole: llama.cpp may split them differently")
        texts, types = self._tokens(self._model["vocab"])
        merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in self._model["merges"]]
        pre = "roberta-bpe" if pre == _GPT2 and self._separators() > 1 else pre
        return {"model": "gpt2", "pre": pre, "tokens": texts, "token_type": types, "merges": merges}

    def _sentence_piece(self, normalizers: list[dict[str, Any]]) -> dict[str, Any]:
        """Reads a vocabulary of SentencePiece with merges. llama.cpp needs scores, which follow the order of merges."""
        if other := {step["type"] for step in normalizers} - {"Replace", "Prepend"}:
            raise self._refused(f"texts are normalized by {min(other)}", "Replace")
        texts, types = self._tokens(self._model["vocab"])
        numbers = self._model["vocab"]
        scores = [0.0 if len(text) == 1 else _UNUSED_SCORE for text in texts]  # single characters need no merge
        merged = set()
        for rank, merge in enumerate(self._model["merges"]):
            number = numbers.get("".join(merge) if isinstance(merge, list) else merge.replace(" ", ""))
            if number is not None and number not in merged:
                scores[number] = -1.0 - rank
                merged.add(number)
        for number, kind in enumerate(types):
            if kind == USER_DEFINED and _SPACE in texts[number] and not self._added[number]["normalized"]:
                types[number] = NORMAL  # it is matched before spaces are replaced, so no text with spaces has it
        for byte in range(256):
            if (number := numbers.get(f"<0x{byte:02X}>")) is not None:
                types[number] = BYTE
        if (unknown := numbers.get(self._model["unk_token"])) is not None:
            types[unknown] = UNKNOWN
        spaced = [
            text.replace(_SPACE, " ") if kind == USER_DEFINED else text for text, kind in zip(texts, types, strict=True)
        ]
        return {
            "model": "llama",
            "pre": "default",
            "tokens": spaced,
            "scores": scores,
            "token_type": types,
            "add_space_prefix": any(step["type"] == "Prepend" for step in normalizers),
        }
