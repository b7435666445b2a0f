"""Results of classification and regression: the labels or numbers of texts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxbert.results.json import NOT_IN_JSON, OMIT_IF_NONE, Each, listed, plain
from mlxbert.results.result import Result
from mlxbert.results.short_repr import Brief


@dataclass(frozen=True)
class Label(Brief):
    """A class and its score.

    Attributes:
        label: The name of the class.
        score: The probability, 0 to 1. The scores of all classes add up to 1, unless several classes may be right.
        chosen: Whether the score reaches the threshold of the class; `None` if only one class can be right.
    """

    label: str
    score: float
    chosen: bool | None = field(default=None, metadata=OMIT_IF_NONE)


@dataclass(frozen=True)
class Classification(Result):
    """The classes of a text or a pair of texts, most probable first.

    Attributes:
        pair: The second text, if there are two.
        truncated: Whether a text was truncated.
    """

    text: str
    labels: tuple[Label, ...]
    pair: str | None = None
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the JSON. It has no `pair` for a single text, and no `chosen` if only one class can be right."""
        return _texts(self) | {"labels": each(self.labels, plain)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Converts JSON to a result (see `Result.from_dict`); if it has no labels, the result is a `Regression`."""
        return super().from_dict(values) if "labels" in values else Regression.from_dict(values)


@dataclass(frozen=True)
class Regression(Result):
    """The number that a model computes for a text or a pair of texts.

    Attributes:
        value: The number; if the model has several outputs, the first one.
        values: All numbers by the names of the outputs, in the model's order; empty if there is only one output.
        pair: The second text, if there are two.
        truncated: Whether a text was truncated.
    """

    text: str
    value: float
    values: tuple[tuple[str, float], ...] = ()
    pair: str | None = None
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the JSON, with `value` for a single output, or with `values` for several."""
        several = [{"label": name, "value": plain(value)} for name, value in self.values]
        return _texts(self) | ({"values": several} if several else {"value": plain(self.value)})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """See `Result.from_dict`."""
        several = [(output["label"], output["value"]) for output in values.get("values", ())]
        return super().from_dict({"value": several[0][1] if several else None, **values, "values": several})


def _texts(result: Classification | Regression) -> dict[str, Any]:
    """Returns the text, and the second text if there is one."""
    return {"text": result.text} | ({} if result.pair is None else {"pair": result.pair})
