r"""Which modules the settings of a PEFT adapter choose, and the rank and alpha of each.

PEFT takes any regular expression for the names of modules, and some of them hardly ever end. Here a pattern consists of
text, `.`, `[…]`, `\d` and `\w`, each also with `*`, `+` or `?`, and of groups of alternatives, also with `?`: all of
its matches are followed at once, so that the time is bounded.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from mlxbert.errors import ConfigError
from mlxbert.weights.formats.config_json import ConfigJson

ALL_LINEAR = "all-linear"
_MOST_CHARACTERS, _MOST_REPEATS = 20_000, 500  # of all patterns of an adapter; each has a name for each module at most
_DEEPEST = 20  # groups in groups
_CLASS = r"\[\^?(?:\\[dw]|\\[^A-Za-z0-9]|[^\]\\\[])+\]"
_CHARACTER = re.compile(rf"(\\[dw]|\\[^A-Za-z0-9]|{_CLASS}|[^\\()\[\]{{}}|*+?^$])([*+?]?)\??")
_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")  # PEFT's own, where layers_pattern is not given


@dataclass(frozen=True)
class _PatternPart:
    """One character, maybe repeated; a place (`^`, `$`); or a group of alternatives."""

    character: re.Pattern[str] | None = None
    repeat: str = ""
    place: str = ""
    group: "_Alternatives" = ()

    def ends(self, name: str, starts: set[int]) -> set[int]:
        """Where it can end in a name, from any of these starts."""
        if self.place:
            return starts & {0 if self.place == "^" else len(name)}
        found = set(starts) if self.repeat in ("?", "*") else set()
        if self.character is None:
            return found | _ends(self.group, name, starts)
        while starts:
            starts = {at + 1 for at in starts if self.character.match(name, at)} - found
            found |= starts
            if self.repeat in ("", "?"):
                break
        return found


_Alternatives = tuple[tuple[_PatternPart, ...], ...]


def _ends(alternatives: _Alternatives, name: str, starts: set[int]) -> set[int]:
    found: set[int] = set()
    for steps in alternatives:
        places = starts
        for step in steps:
            places = step.ends(name, places) if places else places
        found |= places
    return found


def _parsed(pattern: str, at: int = 0, depth: int = 0) -> tuple[_Alternatives, int]:
    """The alternatives of a pattern, or of a group that begins at a place, and where they end."""
    if depth > _DEEPEST:
        raise ValueError
    found: list[list[_PatternPart]] = [[]]
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            found.append([])
            at += 1
        elif pattern[at] in "^$":
            found[-1].append(_PatternPart(place=pattern[at]))
            at += 1
        elif pattern[at] == "(":
            group, at = _parsed(pattern, at + (3 if pattern.startswith("(?:", at) else 1), depth + 1)
            repeat = "?" if pattern.startswith("?", at) else ""
            found[-1].append(_PatternPart(group=group, repeat=repeat))
            at += len(repeat)
        elif matched := _CHARACTER.match(pattern, at):
            found[-1].append(_PatternPart(re.compile(matched[1]), matched[2]))
            at = matched.end()
        else:
            raise ValueError
    if (at < len(pattern)) != (depth > 0):  # a parenthesis without the other
        raise ValueError
    return tuple(map(tuple, found)), at + (depth > 0)


@dataclass(frozen=True, eq=False)
class Selection:
    """What the settings of an adapter say about modules; names are whole, as in `BertModel.named_modules()`.

    Attributes:
        settings: The `adapter_config.json`.
    """

    settings: ConfigJson
    _patterns: dict[str, _Alternatives] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        whole = {key: [value] for key, value in self._names.items() if isinstance(value, str)}
        layers = self.settings.get("layers_pattern", [])
        written = {
            **{key: patterns for key, patterns in whole.items() if patterns != [ALL_LINEAR]},
            "layers_pattern": [layers] if isinstance(layers, str) else self.settings.strings("layers_pattern"),
            **{key: [*self.settings.nested(key).values] for key in ("rank_pattern", "alpha_pattern")},
        }
        every = [*chain.from_iterable(written.values())]
        repeats = sum(text.count(sign) for text in every for sign in "*+")
        if sum(map(len, every)) > _MOST_CHARACTERS or repeats > _MOST_REPEATS:
            raise ConfigError(
                f"{self.settings.path}: its patterns have {sum(map(len, every)):,} characters and {repeats:,} "
                f"repetitions, expected at most {_MOST_CHARACTERS:,} and {_MOST_REPEATS:,}"
            )
        for key, patterns in written.items():
            for pattern in patterns:
                self._patterns[pattern] = self._read(key, pattern)

    def _read(self, key: str, pattern: str) -> _Alternatives:
        try:
            return _parsed(pattern)[0]
        except (ValueError, re.error):
            raise ConfigError(
                f"{self.settings.path}: {key} has the pattern {pattern!r:.80}, expected module names; allowed patterns "
                r"are ., [01], \d, \w, each also followed by *, + or ?, and alternatives (a|b)",
                hint="write the names of the modules instead",
            ) from None

    @cached_property
    def _names(self) -> dict[str, str | tuple[str, ...]]:
        """`target_modules` and `exclude_modules`: a pattern, or names."""
        found: dict[str, str | tuple[str, ...]] = {}
        for key in ("target_modules", "exclude_modules"):
            value = self.settings.get(key)
            found[key] = value if isinstance(value, str) else self.settings.strings(key)
        if not found["target_modules"]:
            raise self.settings.refuse("target_modules", "names of modules, or a pattern")
        return found

    def _fits(self, pattern: str, module: str, starts: Iterable[int] = (0,)) -> bool:
        return len(module) in _ends(self._patterns[pattern], module, {*starts})

    def _named(self, key: str, module: str) -> bool:
        names = self._names[key]
        if isinstance(names, str):
            return names == ALL_LINEAR or (bool(names) and self._fits(names, module))
        return module in names or module.endswith(tuple(f".{name}" for name in names))

    def left_out_by(self, module: str) -> str | None:
        """The setting because of which PEFT does not adapt a module; `None` if it does."""
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
            raise self.settings.refuse("layers_to_transform", "a whole number, or a list of them")
        if not layers:
            return True
        if isinstance(self._names["target_modules"], str):
            raise self.settings.refuse("layers_to_transform", "a list of target_modules with it, not a pattern")
        return self._layer_of(module) in layers

    def _layer_of(self, module: str) -> int | None:
        """The number of the layer that a module is in."""
        given = self.settings.get("layers_pattern")
        if not given:
            found = _LAYER.match(module)
            return int(found[1]) if found else None
        parts = module.split(".")
        for pattern in [given] if isinstance(given, str) else given:
            for at in range(1, len(parts) - 1):
                before = ".".join(parts[:at])
                if parts[at].isdecimal() and self._fits(pattern, before, _begins(before)):
                    return int(parts[at])
        return None

    def stated(self, key: str, module: str) -> tuple[ConfigJson, str]:
        """Where the settings state a number of a module: an object and a key in it.

        Args:
            key: `r` or `lora_alpha`; `rank_pattern` and `alpha_pattern` may state another one for some modules.
            module: Its name.
        """
        patterns = self.settings.nested({"r": "rank_pattern", "lora_alpha": "alpha_pattern"}[key])
        for pattern in patterns.values:  # the first one counts
            if self._fits(pattern, module, _begins(module)):
                return patterns, pattern
        return self.settings, key


def _begins(name: str) -> list[int]:
    """Where a pattern for the end of a name may begin: at its beginning, or after a dot."""
    return [0, *(at + 1 for at, sign in enumerate(name) if sign == ".")]
