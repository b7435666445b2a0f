r"""The modules that the settings of a PEFT adapter select, and the rank and alpha of each module.

PEFT accepts any regular expression for the names of modules, but matching some of them takes almost forever. A pattern
here may contain only text, `.`, `[…]`, `\d` and `\w`, each optionally followed by `*`, `+` or `?`, and groups of
alternatives, optionally followed by `?`. All possible matches are followed at once, which bounds the time.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from mlxbert.errors import ConfigError
from mlxbert.weights.formats.config_json import ConfigJson

ALL_LINEAR = "all-linear"
# In all patterns of an adapter together; one name per module suffices.
_MAX_CHARACTERS, _MAX_REPEATS = 20_000, 500
_MAX_DEPTH = 20  # maximum depth of nested groups
_CLASS = r"\[\^?(?:\\[dw]|\\[^A-Za-z0-9]|[^\]\\\[])+\]"
_CHARACTER = re.compile(rf"(\\[dw]|\\[^A-Za-z0-9]|{_CLASS}|[^\\()\[\]{{}}|*+?^$])([*+?]?)\??")
_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")  # PEFT's default for layers_pattern


@dataclass(frozen=True)
class _PatternPart:
    """One part of a pattern: a character, possibly repeated; an anchor (`^`, `$`); or a group of alternatives."""

    character: re.Pattern[str] | None = None
    repeat: str = ""
    anchor: str = ""
    group: "_Alternatives" = ()

    def ends(self, name: str, starts: set[int]) -> set[int]:
        """Returns the offsets in a name at which a match can end if it begins at one of the offsets `starts`."""
        if self.anchor:
            return starts & {0 if self.anchor == "^" else len(name)}
        offsets = set(starts) if self.repeat in ("?", "*") else set()
        if self.character is None:
            return offsets | _ends(self.group, name, starts)
        while starts:
            starts = {at + 1 for at in starts if self.character.match(name, at)} - offsets
            offsets |= starts
            if self.repeat in ("", "?"):
                break
        return offsets


_Alternatives = tuple[tuple[_PatternPart, ...], ...]


def _ends(alternatives: _Alternatives, name: str, starts: set[int]) -> set[int]:
    offsets: set[int] = set()
    for steps in alternatives:
        reached = starts
        for step in steps:
            reached = step.ends(name, reached) if reached else reached
        offsets |= reached
    return offsets


def _parse(pattern: str, at: int = 0, depth: int = 0) -> tuple[_Alternatives, int]:
    """Parses a pattern, or the group that begins at offset `at`.

    Returns the alternatives and the offset after them.
    """
    if depth > _MAX_DEPTH:
        raise ValueError
    alternatives: list[list[_PatternPart]] = [[]]
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            alternatives.append([])
            at += 1
        elif pattern[at] in "^$":
            alternatives[-1].append(_PatternPart(anchor=pattern[at]))
            at += 1
        elif pattern[at] == "(":
            group, at = _parse(pattern, at + (3 if pattern.startswith("(?:", at) else 1), depth + 1)
            repeat = "?" if pattern.startswith("?", at) else ""
            alternatives[-1].append(_PatternPart(group=group, repeat=repeat))
            at += len(repeat)
        elif matched := _CHARACTER.match(pattern, at):
            alternatives[-1].append(_PatternPart(re.compile(matched[1]), matched[2]))
            at = matched.end()
        else:
            raise ValueError
    if (at < len(pattern)) != (depth > 0):  # unbalanced parentheses
        raise ValueError
    return tuple(map(tuple, alternatives)), at + (depth > 0)


@dataclass(frozen=True, eq=False)
class Selection:
    """The settings of an adapter that select modules.

    The names of modules are full names, as in `BertModel.named_modules()`.
    """

    settings: ConfigJson  # the content of `adapter_config.json`
    _patterns: dict[str, _Alternatives] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        single = {key: [value] for key, value in self._names.items() if isinstance(value, str)}
        layers = self.settings.get("layers_pattern", [])
        patterns_by_key = {
            **{key: patterns for key, patterns in single.items() if patterns != [ALL_LINEAR]},
            "layers_pattern": [layers] if isinstance(layers, str) else self.settings.strings("layers_pattern"),
            **{key: [*self.settings.nested(key).values] for key in ("rank_pattern", "alpha_pattern")},
        }
        all_patterns = [*chain.from_iterable(patterns_by_key.values())]
        repeats = sum(text.count(sign) for text in all_patterns for sign in "*+")
        if sum(map(len, all_patterns)) > _MAX_CHARACTERS or repeats > _MAX_REPEATS:
            raise ConfigError(
                f"{self.settings.path}: the patterns have {sum(map(len, all_patterns)):,} characters and {repeats:,} "
                f"repetitions, expected at most {_MAX_CHARACTERS:,} characters and {_MAX_REPEATS:,} repetitions"
            )
        for key, patterns in patterns_by_key.items():
            for pattern in patterns:
                self._patterns[pattern] = self._read(key, pattern)

    def _read(self, key: str, pattern: str) -> _Alternatives:
        try:
            return _parse(pattern)[0]
        except (ValueError, re.error):
            raise ConfigError(
                f"{self.settings.path}: {key} has the pattern {pattern!r:.80}, expected module names, or a pattern "
                r"made only of ., [01], \d, \w, alternatives (a|b) and the repetitions *, + and ?",
                hint="write the names of the modules instead",
            ) from None

    @cached_property
    def _names(self) -> dict[str, str | tuple[str, ...]]:
        """Maps `target_modules` and `exclude_modules` to their values: a pattern (a string) or names (a tuple)."""
        names: dict[str, str | tuple[str, ...]] = {}
        for key in ("target_modules", "exclude_modules"):
            value = self.settings.get(key)
            names[key] = value if isinstance(value, str) else self.settings.strings(key)
        if not names["target_modules"]:
            raise self.settings.refuse("target_modules", "names of modules, or a pattern")
        return names

    def _fits(self, pattern: str, module: str, starts: Iterable[int] = (0,)) -> bool:
        return len(module) in _ends(self._patterns[pattern], module, {*starts})

    def _named(self, key: str, module: str) -> bool:
        names = self._names[key]
        if isinstance(names, str):
            return names == ALL_LINEAR or (bool(names) and self._fits(names, module))
        return module in names or module.endswith(tuple(f".{name}" for name in names))

    def left_out_by(self, module: str) -> str | None:
        """Returns the key of the setting that makes PEFT skip a module, or `None` if PEFT adapts the module."""
        if self._named("exclude_modules", module):
            return "exclude_modules"
        inside = (*module.split("."),)
        for name in self.settings.strings("modules_to_save"):
            parts = (*name.split("."),)
            if any(inside[at : at + len(parts)] == parts for at in range(len(inside))):
                return "modules_to_save"
        if not self._named("target_modules", module):
            return "target_modules"
        return None if self._in_layer(module) else "layers_to_transform"

    def _in_layer(self, module: str) -> bool:
        value = self.settings.get("layers_to_transform", [])
        layers = [value] if isinstance(value, int) else value
        if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
            raise self.settings.refuse("layers_to_transform", "a whole number or a list of whole numbers")
        if not layers:
            return True
        if isinstance(self._names["target_modules"], str):
            raise self.settings.refuse("layers_to_transform", "null, because target_modules is a pattern")
        return self._layer_of(module) in layers

    def _layer_of(self, module: str) -> int | None:
        """Returns the number of the layer that contains a module, or `None` if no layer contains it."""
        patterns = self.settings.get("layers_pattern")
        if not patterns:
            layer = _LAYER.match(module)
            return int(layer[1]) if layer else None
        parts = module.split(".")
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            for at in range(1, len(parts) - 1):
                before = ".".join(parts[:at])
                if parts[at].isdecimal() and self._fits(pattern, before, _suffix_starts(before)):
                    return int(parts[at])
        return None

    def stated(self, key: str, module: str) -> tuple[ConfigJson, str]:
        """Returns where the rank or the alpha of a module is stated: the JSON object, and the key in this object.

        Args:
            key: `r` for the rank or `lora_alpha` for the alpha. For some modules, `rank_pattern` or `alpha_pattern` may
                override the value of this key.
        """
        patterns = self.settings.nested({"r": "rank_pattern", "lora_alpha": "alpha_pattern"}[key])
        for pattern in patterns.values:  # the first one counts
            if self._fits(pattern, module, _suffix_starts(module)):
                return patterns, pattern
        return self.settings, key


def _suffix_starts(name: str) -> list[int]:
    """Returns the offsets in a dotted name at which a suffix can begin: 0, and the offset after each dot."""
    return [0, *(at + 1 for at, sign in enumerate(name) if sign == ".")]
