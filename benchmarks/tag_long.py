"""The peak of memory of tagging a long text.

Run: python benchmarks/tag_long.py MODEL SQUAD.json [--pages 20 200]

MODEL is a token classifier. The text is made of the contexts of SQUAD.json, 3,000 code points to the page. A line of
JSON per size of the text, each measured in a process of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from answer_long import PAGE, paragraphs


def measure(model: str, squad: Path, pages: int) -> dict[str, Any]:
    """Tags a text of so many pages."""
    import mlxbert

    loaded = mlxbert.load(model, task="tag")
    text = "\n\n".join(paragraphs(squad, pages))[: pages * PAGE]
    start = time.perf_counter()
    found = mlxbert.tag(loaded, text)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "pages": pages, "entities": len(found.entities), "seconds": round(seconds, 1), "mib_peak": peak // 1024,
    }  # fmt: skip


def main() -> None:
    """Measures each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("squad", type=Path)
    parser.add_argument("--pages", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measure(given.model, given.squad, given.pages[0])), flush=True)
        return
    for pages in given.pages:
        how = [given.model, str(given.squad), "--pages", str(pages), "--alone"]
        subprocess.run([sys.executable, __file__, *how], check=True)


if __name__ == "__main__":
    main()
