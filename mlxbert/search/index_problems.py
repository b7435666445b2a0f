"""The problems of the files of an index: bounded in number when a file is written, grouped by reason when shown.

Of each file, an index keeps the first hundred problems of each kind and pattern; the last one of them also counts the
problems that follow. The pattern of a reason is the reason without its numbers and quotations. After a hundred
patterns, all others of a kind count as one.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mlxbert.search.documents.document import ReadProblem
from mlxbert.search.store import IndexProblem, storable

_PLACES, _PATTERNS = 100, 100  # problems of each kind and pattern, and kinds with patterns, of a file
_MAX_REASON = 500  # characters
_VARIABLE = re.compile(r"""'[^']*'|"[^"]*"|\b\w*\d\w*(?:[,.]\d+)*""")


class ProblemList:
    """Collects the problems of a file.

    Args:
        path: The path of the file; `None` for records that are added, whose problems are all kept.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._groups: dict[tuple[str, str], list[IndexProblem]] = {}

    def add(self, place: str, problem: ReadProblem) -> None:
        """Adds a problem, or counts it if enough like it are kept.

        Args:
            place: The part of the file, without characters that no database stores.
        """
        reason = storable(problem.reason)[:_MAX_REASON]
        key = problem.kind, pattern_of(reason)
        if key not in self._groups and len(self._groups) >= _PATTERNS:
            key = problem.kind, ""
        group = self._groups.setdefault(key, [])
        if self._path is None or len(group) < _PLACES:
            group.append(IndexProblem(self._path, place, problem.kind, reason))
        else:
            group[-1] = replace(group[-1], more=group[-1].more + 1)

    def kept(self) -> list[IndexProblem]:
        return [problem for group in self._groups.values() for problem in group]


@dataclass(frozen=True)
class ProblemGroup:
    """Problems of the same kind and pattern."""

    kind: str
    reason: str  # the reason or, if reasons differ, their pattern
    count: int  # the number of problems, including those whose places are not kept
    problems: Sequence[IndexProblem]


def grouped(problems: Iterable[IndexProblem]) -> list[ProblemGroup]:
    """Groups problems by kind and pattern, the largest groups first."""
    groups: dict[tuple[str, str], list[IndexProblem]] = {}
    for problem in problems:
        groups.setdefault((problem.kind, pattern_of(problem.reason)), []).append(problem)
    return sorted(
        (
            ProblemGroup(
                kind,
                group[0].reason if len({problem.reason for problem in group}) == 1 else pattern,
                sum(1 + problem.more for problem in group),
                group,
            )
            for (kind, pattern), group in groups.items()
        ),
        key=lambda group: -group.count,
    )


def pattern_of(reason: str) -> str:
    """Replaces numbers and quoted text in a reason by `…`, so that like reasons group."""
    return _VARIABLE.sub("…", reason)
