"""Which tokens of a text decided a result."""

from dataclasses import dataclass, field

from mlxbert.results.json import NOT_IN_JSON
from mlxbert.results.result import Result
from mlxbert.results.short_repr import Brief

SIMILARITY = "similarity"  # the target of two texts that are compared


@dataclass(frozen=True)
class Share(Brief):
    """The part of a token, or of a word, in a score.

    Attributes:
        token: The token in the spelling of the vocabulary, or the word as it stands in the text.
        text: The number of the text that it belongs to: 0, or 1 for the second text.
        start: The first code point of it in its text; equals `end` for a special token.
        end: The code point after it.
        score: What it adds to the score; negative if it speaks against the target.
    """

    token: str
    text: int
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Explanation(Result):
    """Which tokens decided a result.

    Attributes:
        text: The text.
        pair: The second text; `None` if there is one text.
        target: What is explained: a label, a word, `similarity`, or `relevance`.
        method: `gradients` or `occlusion`.
        score: The output of the model for the target: a logit, or a similarity.
        baseline_score: The same output for the baseline, in which each token of the text is replaced by a neutral one.
        gap: What the sum of the tokens' scores lacks of `score` - `baseline_score`; for the similarity of two texts, of
            twice this difference, as each text has its own baseline. `None` for occlusion: its scores need not add up.
        tokens: The tokens, special ones included, in the order of the input.
        words: The words with the sums of their tokens, in the order of the text.
        truncated: Whether the text was truncated.
    """

    text: str
    pair: str | None
    target: str
    method: str
    score: float
    baseline_score: float
    gap: float | None
    tokens: tuple[Share, ...]
    words: tuple[Share, ...]
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)
