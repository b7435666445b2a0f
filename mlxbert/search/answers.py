"""Answers a query with a part of the passages that a search found."""

import math
from collections.abc import Iterable, Sequence

from mlxbert.model import Model
from mlxbert.results.text_results import Answer
from mlxbert.search.hit import Hit, SearchAnswer, SimilarPassage
from mlxbert.tasks.answer import AnswerTask, check_question
from mlxbert.tasks.options import AnswerOptions

_TINY = 1e-300  # a probability may be 0 in float64


def answer_from(hits: Sequence[Hit], query: str, model: Model) -> SearchAnswer:
    """Returns the best answer in the passages of a search.

    The probabilities of spans are those within one passage. Passages are compared by the logarithm of the ratio of the
    probabilities of the best span and of "no answer", in which the sum over the other spans cancels: it is the
    difference of the model's raw scores.

    Of a hit, the passages with nearly equal texts are read, too, unless their texts are the same.

    Args:
        model: A model with a question-answering head.

    Raises:
        InputError: The question is empty, or longer than half a window of the model.
    """
    task = AnswerTask(model, AnswerOptions())
    check_question(task.tokenizer, query)
    read = [(hit.rank, passage) for hit in hits for passage in _texts(hit) if passage.text.strip()]
    pairs = [(query, passage.text) for _, passage in read]
    results = [answer for answer in task.run(pairs) if isinstance(answer, Answer)]
    ranked = [(_margin(answer), -rank, answer, passage) for (rank, passage), answer in zip(read, results, strict=True)]
    if not ranked:
        return SearchAnswer(query, None, 0.0, hits=tuple(hits))
    margin, rank, best, found = max(ranked, key=lambda entry: entry[:2])
    score = 1 / (1 + math.exp(-margin)) if margin > -700 else 0.0
    if best.answer is None or best.start is None:
        return SearchAnswer(query, None, score, hits=tuple(hits))
    line = None if found.start_line is None else found.start_line + found.text.count("\n", 0, best.start)
    return SearchAnswer(
        *(query, best.answer, score, -rank, found.path, found.place, line, found.page),
        *(best.start, best.end, found.chunk, tuple(hits)),
    )


def _texts(hit: Hit) -> Iterable[Hit | SimilarPassage]:
    """Returns a hit, and one passage for each other text that is like it."""
    texts: dict[str, Hit | SimilarPassage] = {hit.text: hit}
    for other in hit.duplicates:
        texts.setdefault(other.text, other)
    return texts.values()


def _margin(answer: Answer) -> float:
    """Returns how much higher the score of the best span is than the score of "no answer"."""
    return math.log(max(answer.score, _TINY)) - math.log(max(answer.no_answer_score, _TINY))
