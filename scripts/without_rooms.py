"""Takes rooms out of a copy of the checkout, and shows that the rest still works: `python scripts/without_rooms.py`.

For each room of `mlxbert/rooms.py`, and once for all of them, a copy without the room is made: without its folder, its
tests and its entry in the table. The copy is installed, shows its help, fills a mask and embeds a text. With `--tests`,
the fast tests of the core run there, too: all of them without all rooms, and those that use rooms without a single one
(`tests/helpers/rooms.py` marks them). Tests of the whole program (`tests/whole`) and of the docs need all rooms.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
_WHOLE = ("whole", "docs")
# An editable installation of the checkout would find the packages that the copy lacks.
_NO_EDITABLE = 'import sys; sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in str(f)]\n'
_COMMANDS = (
    ("--help",),
    ("fill-mask", "Tokyo is the largest city in [MASK]."),
    ("embed", "The harbour opens at six."),
)


def rooms() -> Iterator[tuple[str, int, int]]:
    """Yields the name of each room, and the first and the last line of its entry in the table."""
    tree = ast.parse((ROOT / "mlxbert/rooms.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and ast.unparse(value.func) == "Room":
                    yield str(key.value), key.lineno, value.end_lineno or 0


def copy_without(names: Collection[str], target: Path) -> None:
    """Copies the files of the checkout, and takes rooms out of the copy."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    left_out = tuple(f"{folder}/{name}/" for folder in ("mlxbert", "tests") for name in names)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists() and not name.startswith(left_out):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    table = target / "mlxbert/rooms.py"
    lines = table.read_text(encoding="utf-8").split("\n")
    for name, first, last in rooms():
        if name in names:
            lines[first - 1 : last] = [""] * (last - first + 1)
    table.write_text("\n".join(lines), encoding="utf-8")
    settings = target / "pyproject.toml"  # its list of packages
    words = "|".join(names)
    text = re.sub(rf'  "mlxbert\.(?:{words})[\w.]*",\n', "", settings.read_text(encoding="utf-8"))
    settings.write_text(re.sub(rf'"mlxbert\.(?:{words})[\w.]*" = .*\n', "", text), encoding="utf-8")


def check(names: Collection[str], *, tests: bool) -> bool:
    """Whether what is left without some rooms can be installed and used; prints what fails."""
    with tempfile.TemporaryDirectory() as folder:
        copy, installed = Path(folder, "copy"), Path(folder, "installed")
        copy_without(names, copy)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
        alone = Path(folder, "alone")
        alone.mkdir()
        (alone / "sitecustomize.py").write_text(_NO_EDITABLE, encoding="utf-8")
        steps = [[*pip, str(installed), str(copy)]]
        steps += [[sys.executable, "-m", "mlxbert", *words] for words in _COMMANDS]
        if tests:
            ignored = [f"--ignore=tests/{name}" for name in (*_WHOLE, *(room for room, *_ in rooms()))]
            # An unmarked test that passes without all rooms passes without one. To find the marked ones, pytest imports
            # every file of the core's tests, so it also sees a missing import.
            chosen = [] if len(names) > 1 else ["-m", "not slow and uses_rooms"]
            steps += [[sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, *ignored]]
        for step in steps:
            is_test = "pytest" in step
            environment = {**os.environ, "PYTHONPATH": f"{alone}:{copy if is_test else installed}"}
            done = subprocess.run(
                step, cwd=copy if is_test else folder, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                print(f"without {', '.join(names)}: {' '.join(step)}\n{(done.stdout + done.stderr)[-4_000:]}")
                return False
    return True


def main() -> int:
    """Checks the rooms that are named, or each room and then all of them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", help="rooms to take out together; by default each by itself, then all")
    parser.add_argument("--tests", action="store_true", help="also run the fast tests of the core")
    arguments = parser.parse_args()
    known = [name for name, *_ in rooms()]
    chosen = [arguments.rooms] if arguments.rooms else [*([name] for name in known), known]
    with ThreadPoolExecutor(2) as threads:  # much of a check is on one core: an installation, a collection of tests
        results = [*threads.map(partial(check, tests=arguments.tests), chosen)]
    for names, works in zip(chosen, results, strict=True):
        print(f"{'works' if works else 'FAILS'} without {', '.join(names)}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
