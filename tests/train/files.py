"""Training data of each task as files, which a tiny model learns."""

import json
from pathlib import Path

from tests.train import test_answer_objective, test_embed_objective, test_finetune, test_tag

TASKS = ("classify", "tag", "answer", "embed")


def data_file(folder: Path, task: str, count: int, seed: int = 0) -> Path:
    """Writes `count` records; long ones become several windows of a tiny model."""
    if task == "classify":
        return test_finetune.write(folder / f"{count}.csv", test_finetune.rows(count))
    if task == "tag":
        return test_tag.write(folder / f"{count}.conll", count, seed=seed)
    path = folder / f"{task}-{count}.jsonl"
    records = test_embed_objective.pairs(count) if task == "embed" else test_answer_objective.records(count, seed)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
