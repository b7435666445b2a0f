"""Breaks the code in a copy of the repository, one line at a time, and shows which test notices.

`python scripts/mutations.py [NAME…]`: the exit status is the number of mutations that no test caught.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutation:
    """A mistake somebody could make."""

    name: str
    file: str
    old: str
    new: str
    tests: str


_PARITY = "tests/test_parity_goldens.py"
MUTATIONS = (
    Mutation("layer_norm_eps forgotten", "mlxbert/blocks.py", ", eps=config.layer_norm_eps", "", _PARITY),
    Mutation("eps of the embeddings forgotten", "mlxbert/encoder.py", ", eps=config.layer_norm_eps", "", _PARITY),
    Mutation("eps of the head forgotten", "mlxbert/heads.py", ", eps=config.layer_norm_eps", "", _PARITY),
    Mutation("mask ignored", "mlxbert/encoder.py", "Context(mask, output", "Context(None, output", _PARITY),
    Mutation("segments ignored", "mlxbert/encoder.py", "if token_type_ids is None else", "if True else", _PARITY),
    Mutation(
        "segment 0 not added when no ids are given",
        "mlxbert/encoder.py",
        "self.token_type.weight[0] if",
        "0.0 if",
        _PARITY,
    ),
    Mutation(
        "positions from 1",
        "mlxbert/encoder.py",
        "self.first_position : self",
        "self.first_position + 1 : 1 + self",
        _PARITY,
    ),
    Mutation("gelu by tanh", "mlxbert/activations.py", '"gelu": gelu,', '"gelu": gelu_tanh,', _PARITY),
    Mutation("hidden_act ignored", "mlxbert/activations.py", "ACTIVATIONS[name]\n", 'ACTIVATIONS["gelu"]\n', _PARITY),
    Mutation("scale of attention", "mlxbert/blocks.py", "math.sqrt(config.head_size)", "config.head_size", _PARITY),
    Mutation(
        "residual forgotten",
        "mlxbert/blocks.py",
        "self.attention_norm(x + self.dropout(attended))",
        "self.attention_norm(self.dropout(attended))",
        _PARITY,
    ),
    Mutation(
        "bias of the decoder forgotten",
        "mlxbert/heads.py",
        "mx.addmm(self.bias, x,",
        "mx.addmm(0 * self.bias, x,",
        _PARITY,
    ),
    Mutation("pooler of the last token", "mlxbert/encoder.py", "hidden[:, 0]", "hidden[:, -1]", _PARITY),
    Mutation(
        "pooler without tanh",
        "mlxbert/encoder.py",
        "mx.tanh(self.dense(hidden[:, 0]))",
        "self.dense(hidden[:, 0])",
        _PARITY,
    ),
    Mutation("q and k swapped", "weights/families.py", '"attention.self.query"', '"attention.self.key"', _PARITY),
    Mutation(
        "-inf where nothing may be seen",
        "mlxbert/kernels.py",
        "mx.finfo(mx.float32).min",
        "-mx.inf",
        "tests/test_kernels.py",
    ),
    Mutation(
        "no rest after the whole part of an exponent",
        "mlxbert/kernels.py",
        "_polynomial(_EXP2, fraction)",
        "_polynomial(_EXP2, 0 * fraction)",
        "tests/test_kernels.py",
    ),
    Mutation(
        "untied decoder accepted",
        "weights/checkpoint.py",
        'if "masked_lm" in parts:',
        "if False:",
        "tests/test_checkpoint.py",
    ),
    Mutation(
        "gamma and beta unknown",
        "weights/families.py",
        '{".gamma": ".weight", ".beta": ".bias"}',
        "{}",
        "tests/test_checkpoint.py",
    ),
    Mutation(
        "unknown tensors skipped",
        "weights/checkpoint.py",
        "if plain not in ours:",
        "if False:",
        "tests/test_checkpoint.py",
    ),
    Mutation(
        "maximum over padding too",
        "mlxbert/pooling.py",
        "mx.where(real > 0, hidden, -mx.inf)",
        "(hidden * real)",
        "tests/test_pooling.py",
    ),
    Mutation(
        "mean over padding too",
        "mlxbert/pooling.py",
        "(hidden * real).sum(axis=1) / real.sum(axis=1)",
        "hidden.mean(axis=1)",
        "tests/test_pooling.py",
    ),
    Mutation(
        "order of a batch lost",
        "mlxbert/batch.py",
        "zip(group, compute",
        "zip(sorted(group), compute",
        "tests/test_batch.py",
    ),
    Mutation(
        "padding on the left",
        "mlxbert/batch.py",
        "row + [fill] * (length - len(row))",
        "[fill] * (length - len(row)) + row",
        "tests/test_batch.py",
    ),
    Mutation(
        "second text in segment 0",
        "weights/tokenizer_files.py",
        "$B:1 {sep}:1",
        "$B:0 {sep}:0",
        "tests/test_tokenizer_files.py",
    ),
    Mutation(
        "saved truncation kept",
        "weights/tokenizer_files.py",
        "tokenizer.no_truncation()",
        "None",
        "tests/test_tokenizer_files.py",
    ),
    Mutation(
        "offset off by one",
        "mlxbert/tokenizer.py",
        "raw.offsets,",
        "[(a, b - 1) for a, b in raw.offsets],",
        "tests/test_tokenizer.py",
    ),
    Mutation("windows without overlap", "mlxbert/tokenizer.py", "room - stride)", "room)", "tests/test_tokenizer.py"),
    Mutation(
        "scores over the targets alone",
        "mlxbert/tasks/fill_mask.py",
        "scores = scores[:, mx.array(chosen)]",
        "scores = scores[:, mx.array(chosen)] / scores[:, mx.array(chosen)].sum(axis=-1, keepdims=True)",
        "tests/test_fill_mask.py",
    ),
    Mutation(
        "probabilities added up in order",
        "mlxbert/heads.py",
        "return shares / total",
        "return mx.softmax(wide, axis=-1)",
        "tests/test_kernels.py",
    ),
    Mutation(
        "class 1 says next",
        "mlxbert/tasks/next_sentence.py",
        "scores[:, 0]",
        "scores[:, 1]",
        "tests/test_next_sentence.py",
    ),
    Mutation(
        "a part of an output taken for the whole",
        "cli/output.py",
        "if not useless and found != wanted:",
        "if False:",
        "tests/test_cli_output.py",
    ),
)


def first_failure(mutation: Mutation, folder: Path) -> str | None:
    """The first test that fails with the mutation in place, `None` if all pass."""
    path = folder / mutation.file
    original = path.read_text(encoding="utf-8")
    assert mutation.old in original, f"{mutation.name}: {mutation.old!r} is not in {mutation.file}"
    path.write_text(original.replace(mutation.old, mutation.new), encoding="utf-8")
    command = [
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-x",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        mutation.tests,
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    finally:
        path.write_text(original, encoding="utf-8")
    found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, flags=re.MULTILINE)
    return found[1] if found and done.returncode == 1 else None  # 2 to 5: pytest itself could not run


def main() -> int:
    """Prints a line per mutation; returns how many went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    missed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", "*cache*", "build", "*.egg-info")
        shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored)
        for mutation in MUTATIONS:
            if not names or mutation.name in names:
                caught = first_failure(mutation, folder)
                missed += caught is None
                print(f"{mutation.name}: {caught or 'NOT CAUGHT'}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
