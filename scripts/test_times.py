"""Writes the dearest test files into CONTRIBUTING.md: `python scripts/test_times.py [ARGUMENT OF PYTEST …]`.

The tests run in one process, and their CPU seconds include the processes that they start. Without arguments, all tests
run, the slow ones too. A fixture counts for the first test that needs it.
"""

import os
import platform
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Generator
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"(<!-- test times -->\n).*?(?=<!-- end of test times -->)", re.DOTALL)
_ROWS = 12


class CpuTimes:
    """CPU seconds and numbers of tests by file, of the fast tests and of the slow ones."""

    def __init__(self) -> None:
        self.seconds: dict[bool, dict[str, float]] = {False: defaultdict(float), True: defaultdict(float)}
        self.tests: Counter[tuple[bool, str]] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = sum(os.times()[:4])
        result = yield
        slow, file = item.get_closest_marker("slow") is not None, item.nodeid.partition("::")[0]
        self.seconds[slow][file] += sum(os.times()[:4]) - before
        self.tests[slow, file] += 1
        return result


def table(times: CpuTimes) -> str:
    """Returns the dearest files of both kinds, side by side."""
    heads, columns = [], []
    for slow, name in ((False, "fast"), (True, "slow")):
        seconds = times.seconds[slow]
        number = sum(count for (kind, _), count in times.tests.items() if kind == slow)
        heads.append(f"{number:,} {name} tests: {sum(seconds.values()):.0f} s | |")
        dearest = sorted(seconds.items(), key=lambda item: -item[1])[:_ROWS]
        rows = [f"`{file}`, {times.tests[slow, file]} tests | {value:.1f} |" for file, value in dearest]
        columns.append(rows + [" | |"] * (_ROWS - len(rows)))
    lines = ["| " + " ".join(heads), "|---|---|---|---|", *(f"| {' '.join(row)}" for row in zip(*columns, strict=True))]
    return "\n".join(
        [*lines, "", f"CPU seconds, {platform.machine()}, Python {platform.python_version()}, {date.today()}.", ""]
    )


def main(arguments: list[str]) -> int:
    """Runs the tests and writes the table; returns pytest's exit status."""
    times = CpuTimes()
    status = pytest.main(["-n0", "-q", "-p", "no:cacheprovider", *(arguments or ["-m", ""])], plugins=[times])
    page = ROOT / "CONTRIBUTING.md"
    text, count = TABLE.subn(lambda match: match[1] + "\n" + table(times) + "\n", page.read_text(encoding="utf-8"))
    if not count:
        raise SystemExit("error: CONTRIBUTING.md has no place for the table, expected <!-- test times -->")
    page.write_text(text, encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
