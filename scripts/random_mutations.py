"""Draws mistakes at random and counts those that the fast tests catch.

    python scripts/random_mutations.py mlxbert/text weights --count 60 --seed 1 [--tests tests/text …]

A mistake changes one operator, constant or condition, or drops one call, in a clone of the checkout. The tests that run
its line, according to the coverage of the unchanged source, are run until one fails. Some changes keep what a program
does, and no test can catch them. What counts is the comparison of two states of the tests over the same mistakes.
"""

import argparse
import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
COMPARED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
COMPUTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+"}
AT_MOST = 60  # tests per mistake: those that run the fewest lines, as they are the nearest


@dataclass(frozen=True)
class Mistake:
    """A change of one line of the source."""

    file: str
    line: int
    begin: int  # in bytes of the line
    end: int
    new: str

    def __str__(self) -> str:
        line = (ROOT / self.file).read_bytes().splitlines()[self.line - 1]
        return f"{line[self.begin : self.end].decode()} → {self.new} in {line.decode().strip()!r}"


def mistakes(file: str) -> Iterator[Mistake]:
    """Yields every change of a file that could be made."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        new = changed(node)
        if new is not None and isinstance(node, ast.expr | ast.stmt) and node.end_lineno == node.lineno:
            yield Mistake(file, node.lineno, node.col_offset, node.end_col_offset or 0, new)


def changed(node: ast.AST) -> str | None:
    """Returns the source of a changed node; None if nothing is to be changed in it."""
    match node:
        case ast.Compare(left, [operator], [right]):
            return f"({ast.unparse(left)} {COMPARED[type(operator)]} {ast.unparse(right)})"
        case ast.BinOp(left, operator, right) if type(operator) in COMPUTED and not isinstance(left, ast.Constant):
            return f"({ast.unparse(left)} {COMPUTED[type(operator)]} {ast.unparse(right)})"
        case ast.BoolOp(operator, values):
            word = " or " if isinstance(operator, ast.And) else " and "
            return f"({word.join(f'({ast.unparse(value)})' for value in values)})"
        case ast.Constant(bool() as value):
            return repr(not value)
        case ast.Constant(int() as value):
            return repr(value + 1)
        case ast.UnaryOp(ast.Not(), value):
            return f"bool({ast.unparse(value)})"
        case ast.Expr(ast.Call()):
            return "pass"
        case _:
            return None


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest in the clone."""
    command = [
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-q",
        "-n0",
        "--dist=no",
        "--no-header",
        "--tb=no",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )


def measured(folder: Path, tests: Sequence[str], kept: Path | None) -> dict[tuple[str, int], list[str]]:
    """Returns the fast tests that run each line, the nearest first."""
    record = kept or folder / ".coverage"
    if not record.exists():
        options = [f"--cov={name}" for name in ("mlxbert", "cli", "weights")]
        done = run(folder, *tests, *options, "--cov-context=test", "--cov-report=")
        if done.returncode:
            sys.exit(f"the tests fail without any mistake:\n{done.stdout[-3000:]}")
        if kept:
            shutil.copy(folder / ".coverage", kept)
    data = CoverageData(basename=str(record))
    data.read()
    lines: dict[tuple[str, int], list[str]] = {}
    for path in data.measured_files():
        name = os.path.relpath(os.path.realpath(path), os.path.realpath(folder)) if kept is None else _within(path)
        for line, tests_of_line in data.contexts_by_lineno(path).items():
            lines[name, line] = [test.partition("|")[0] for test in tests_of_line if test]
    sizes: dict[str, int] = {}
    for names in lines.values():
        for test in names:
            sizes[test] = sizes.get(test, 0) + 1
    return {place: sorted({*names}, key=lambda test: (sizes[test], test)) for place, names in lines.items()}


def _within(path: str) -> str:
    """The path of a source file inside any copy."""
    parts = Path(path).parts
    first = max(place for place, part in enumerate(parts) if part in ("mlxbert", "cli", "weights"))
    return str(Path(*parts[first:]))


def caught(folder: Path, mistake: Mistake, tests: Sequence[str]) -> str | None:
    """Returns the test that fails with a mistake; None if none does."""
    path = folder / mistake.file
    original = path.read_bytes()
    lines = original.splitlines(keepends=True)
    line = lines[mistake.line - 1]
    lines[mistake.line - 1] = line[: mistake.begin] + mistake.new.encode() + line[mistake.end :]
    path.write_bytes(b"".join(lines))
    try:
        done = run(folder, "-x", *tests)
    finally:
        path.write_bytes(original)
    if done.returncode == 0:
        return None
    return next((row for row in done.stdout.splitlines() if row.startswith(("FAILED", "ERROR"))), "ERROR at the start")


def main() -> int:
    """Prints a line per mistake; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", help="files and folders in which mistakes are made")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="*", default=["tests"])
    parser.add_argument("--coverage", type=Path, help="where the coverage is kept, or was")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
        lines = measured(folder, arguments.tests, arguments.coverage)
        listed = [str(path.relative_to(ROOT)) for name in arguments.folders for path in _sources(ROOT / name)]
        # A draw depends on the text of a mistake alone, so that an added line leaves the others as they were.
        drawn = sorted(
            (mistake for file in listed for mistake in mistakes(file) if (file, mistake.line) in lines),
            key=lambda mistake: hashlib.sha256(
                f"{arguments.seed} {Path(mistake.file).name} {mistake}".encode()
            ).digest(),
        )
        found = 0
        for mistake in drawn[: arguments.count]:
            tests = lines[mistake.file, mistake.line][:AT_MOST]
            failed = caught(folder, mistake, tests) if tests else None
            found += failed is not None
            print(
                f"{mistake.file}:{mistake.line}: {mistake}: {failed or f'NOT CAUGHT by {len(tests)} tests'}", flush=True
            )
        print(f"{found} of {min(len(drawn), arguments.count)} caught")
    return 0


def _sources(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


if __name__ == "__main__":
    sys.exit(main())
