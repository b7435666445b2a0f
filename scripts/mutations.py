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

sys.path.insert(0, str(Path(__file__).parent))
from family_mutations import FAMILY_MUTATIONS
from reading_mutations import READING_MUTATIONS
from writing_mutations import WRITING_MUTATIONS

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutation:
    """A mistake somebody could make; `only` is the `-k` of pytest, for what would take long otherwise."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    only: str = ""


_PARITY = "tests/nn/test_parity_goldens.py"
_EMBED, _OPTIONS = "tests/tasks/test_embed.py", "tests/tasks/test_embed_options.py"
_FOLDERS = "tests/weights/test_sentence_transformers.py"
_HEADERS = "tests/weights/hub/test_headers.py"
_CLASSES, _FILLS = "tests/weights/tokenizers/test_classes.py", "tests/tasks/test_fill_mask_spelling.py"
MUTATIONS = (
    Mutation("layer_norm_eps forgotten", "mlxbert/nn/blocks.py", ", eps=config.layer_norm_eps", "", _PARITY),
    Mutation("biases of norms forgotten", "mlxbert/nn/blocks.py", ", bias=config.biases.norm", "", _PARITY),
    Mutation(
        "norm of the head forgotten", "mlxbert/nn/heads.py", 'self.norm(x) if "norm" in self else x', "x", _PARITY
    ),
    Mutation("mask ignored", "mlxbert/nn/encoder.py", "Context(mask, output", "Context(None, output", _PARITY),
    Mutation("segments ignored", "mlxbert/nn/encoder.py", "if token_type_ids is None else", "if True else", _PARITY),
    Mutation(
        "segment 0 not added when no ids are given",
        "mlxbert/nn/encoder.py",
        "self.token_type.weight[0] if",
        "0.0 if",
        _PARITY,
    ),
    Mutation(
        "positions from 1",
        "mlxbert/nn/encoder.py",
        "self.position.weight[: input_ids.shape[1]]",
        "self.position.weight[1 : 1 + input_ids.shape[1]]",
        _PARITY,
    ),
    Mutation("gelu by tanh", "mlxbert/nn/activations.py", '"gelu": gelu,', '"gelu": gelu_tanh,', _PARITY),
    Mutation(
        "hidden_act ignored", "mlxbert/nn/activations.py", "ACTIVATIONS[name]\n", 'ACTIVATIONS["gelu"]\n', _PARITY
    ),
    Mutation(
        "scale of attention", "mlxbert/nn/attention.py", "math.sqrt(config.head_size)", "config.head_size", _PARITY
    ),
    Mutation(
        "residual forgotten",
        "mlxbert/nn/blocks.py",
        "self.attention_norm(x + self.dropout(attended))",
        "self.attention_norm(self.dropout(attended))",
        _PARITY,
    ),
    Mutation(
        "bias of the decoder forgotten",
        "mlxbert/nn/heads.py",
        "logits + self.bias if",
        "logits if",
        _PARITY,
    ),
    Mutation("pooler of the last token", "mlxbert/nn/encoder.py", "hidden[:, 0]", "hidden[:, -1]", _PARITY),
    Mutation(
        "pooler without tanh",
        "mlxbert/nn/encoder.py",
        "mx.tanh(self.dense(hidden[:, 0]))",
        "self.dense(hidden[:, 0])",
        _PARITY,
    ),
    Mutation("q and k swapped", "weights/families/bert.py", '"attention.self.query"', '"attention.self.key"', _PARITY),
    Mutation(
        "-inf where nothing may be seen",
        "mlxbert/nn/kernels.py",
        "mx.finfo(mx.float32).min",
        "-mx.inf",
        "tests/nn/test_kernels.py",
    ),
    Mutation(
        "no rest after the whole part of an exponent",
        "mlxbert/nn/kernels.py",
        "_polynomial(_EXP2, fraction)",
        "_polynomial(_EXP2, 0 * fraction)",
        "tests/nn/test_kernels.py",
    ),
    Mutation(
        "untied decoder accepted",
        "weights/build.py",
        'if "masked_lm" in parts:',
        "if False:",
        "tests/weights/test_checkpoint.py",
    ),
    Mutation(
        "gamma and beta unknown",
        "weights/families/bert.py",
        r'{r"\.gamma$": ".weight", r"\.beta$": ".bias"}',
        "{}",
        "tests/weights/test_checkpoint.py",
    ),
    Mutation(
        "unknown tensors skipped",
        "weights/checkpoint.py",
        "    if unknown:\n",
        "    if False:\n",
        "tests/weights/test_checkpoint.py",
    ),
    Mutation(
        "maximum over padding too",
        "mlxbert/nn/pooling.py",
        "mx.where(real > 0, hidden, -mx.inf)",
        "(hidden * real)",
        "tests/nn/test_pooling.py",
    ),
    Mutation(
        "mean over padding too",
        "mlxbert/nn/pooling.py",
        "(hidden * real).sum(axis=1) / real.sum(axis=1)",
        "hidden.mean(axis=1)",
        "tests/nn/test_pooling.py",
    ),
    Mutation(
        "order of a batch lost",
        "mlxbert/text/batch.py",
        "zip(group, compute",
        "zip(sorted(group), compute",
        "tests/text/test_batch.py",
    ),
    Mutation(
        "padding on the left",
        "mlxbert/text/batch.py",
        "row + [fill] * (length - len(row))",
        "[fill] * (length - len(row)) + row",
        "tests/text/test_batch.py",
    ),
    Mutation(
        "second text in segment 0",
        "weights/tokenizers/classes.py",
        '["$B:1", f"{sep[0]}:1"] if',
        '["$B:0", f"{sep[0]}:0"] if',
        "tests/weights/tokenizers/test_files.py",
    ),
    Mutation(
        "saved truncation kept",
        "weights/tokenizers/files.py",
        "tokenizer.no_truncation()",
        "None",
        "tests/weights/tokenizers/test_files.py",
    ),
    Mutation("segments for RoBERTa", "weights/tokenizers/classes.py", "kind.segments else", "True else", _CLASSES),
    Mutation("mask keeps the space before it", "weights/tokenizers/settings.py", "lstrip=lstrip, ", "", _CLASSES),
    Mutation(
        "merges with # skipped",
        "weights/tokenizers/vocab.py",
        'number == 1 and line.startswith("#version")',
        'line.startswith("#")',
        _CLASSES,
    ),
    Mutation(
        "ids of XLM-R not shifted", "weights/tokenizers/pieces.py", '"sep", "unk"), 3)', '"sep", "unk"), 4)', _CLASSES
    ),
    Mutation(
        "symbols without their score",
        "weights/tokenizers/pieces.py",
        "if kind == USER_DEFINED else score",
        "if False else score",
        _CLASSES,
    ),
    Mutation(
        "table of replacements left out", "weights/tokenizers/pieces.py", "if model.charsmap:", "if False:", _CLASSES
    ),
    Mutation("pairs merged in any order", "weights/tokenizers/pieces.py", "((-score, ", "((0, ", _CLASSES),
    Mutation(
        "a piece beyond the end of the file",
        "weights/formats/protobuf.py",
        "number == 0 or at + size > end",
        "number == 0",
        "tests/weights/tokenizers/test_sentencepiece.py",
    ),
    Mutation("word glued to the one before", "mlxbert/text/tokenizer.py", "left + gap + word", "left + word", _FILLS),
    Mutation(
        "continuation behind a space",
        "mlxbert/text/tokenizer.py",
        "left.rstrip() if self._mask_hides_space",
        "left if True",
        _FILLS,
    ),
    Mutation(
        "mask with its space", "mlxbert/tasks/fill_mask.py", "start + len(around)", "start + 0 * len(around)", _FILLS
    ),
    Mutation(
        "look-alike read",
        "weights/tokenizers/files.py",
        "if name in REFUSED:",
        "if False:",
        "tests/weights/tokenizers/test_files.py",
    ),
    Mutation(
        "offset off by one",
        "mlxbert/text/tokenizer.py",
        "raw.offsets,",
        "[(a, b - 1) for a, b in raw.offsets],",
        "tests/text/test_tokenizer.py",
    ),
    Mutation(
        "windows without overlap",
        "mlxbert/text/tokenizer.py",
        "room - stride)",
        "room)",
        "tests/text/test_tokenizer.py",
    ),
    Mutation(
        "scores over the targets alone",
        "mlxbert/tasks/fill_mask.py",
        "scores = scores[:, mx.array(chosen)]",
        "scores = scores[:, mx.array(chosen)] / scores[:, mx.array(chosen)].sum(axis=-1, keepdims=True)",
        "tests/tasks/test_fill_mask.py",
    ),
    Mutation(
        "probabilities added up in order",
        "mlxbert/nn/heads.py",
        "return shares / total",
        "return mx.softmax(wide, axis=-1)",
        "tests/nn/test_kernels.py",
    ),
    Mutation(
        "class 1 says next",
        "mlxbert/tasks/next_sentence.py",
        "scores[:, 0]",
        "scores[:, 1]",
        "tests/tasks/test_next_sentence.py",
    ),
    Mutation(
        "a part of an output taken for the whole",
        "cli/output/file.py",
        "if not useless and found != wanted:",
        "if False:",
        "tests/cli/test_output.py",
    ),
    Mutation(
        "prompt one token shorter",
        "mlxbert/text/tokenizer.py",
        "return before + len(self._split(prompt))",
        "return before - 1 + len(self._split(prompt))",
        _OPTIONS,
    ),
    Mutation(
        "prompt pooled in any case",
        "mlxbert/nn/embedder.py",
        "skip = 0 if self.config.include_prompt else skip",
        "skip = 0",
        _OPTIONS,
    ),
    Mutation(
        "prompt left out in any case",
        "mlxbert/nn/embedder.py",
        "skip = 0 if self.config.include_prompt else skip",
        "skip = skip",
        _OPTIONS,
    ),
    Mutation(
        "include_prompt not read",
        "weights/sentence_transformers.py",
        'include_prompt=settings.flag("include_prompt", default=True)',
        "include_prompt=True",
        _FOLDERS,
    ),
    Mutation(
        "prompt in the first window only",
        "mlxbert/text/tokenizer.py",
        "head.then(run.cut(start, start + room))",
        "(head if start == 0 else run.cut(0, 0)).then(run.cut(start, start + room))",
        _EMBED,
    ),
    Mutation(
        "windows count alike",
        "mlxbert/tasks/embed.py",
        "weights=[len(window) - around for window in windows]",
        "weights=None",
        _EMBED,
    ),
    Mutation(
        "special tokens counted in windows",
        "mlxbert/tasks/embed.py",
        "len(window) - around for window",
        "len(window) for window",
        _EMBED,
    ),
    Mutation(
        "mean of windows not of unit length", "mlxbert/tasks/embed.py", "if plan.embedder.unit:", "if False:", _EMBED
    ),
    Mutation(
        "cut vectors taken for unit vectors",
        "mlxbert/nn/embedder.py",
        "(ends and not self._cut)",
        "ends",
        _EMBED,
    ),
    Mutation(
        "cls of token 0 whatever is left out",
        "mlxbert/nn/pooling.py",
        "first = real.argmax(axis=1)",
        "first = 0 * real.argmax(axis=1)",
        "tests/nn/test_pooling.py",
    ),
    Mutation(
        "last token of the batch",
        "mlxbert/nn/pooling.py",
        "(real * mx.arange(hidden.shape[1])[None, :, None]).argmax(axis=1)",
        "(0 * real + mx.arange(hidden.shape[1])[None, :, None]).argmax(axis=1)",
        "tests/nn/test_pooling.py",
    ),
    Mutation(
        "places counted from the end of the prompt",
        "mlxbert/nn/pooling.py",
        "weights = real * mx.arange(1, hidden.shape[1] + 1, dtype=mx.float32)[None, :, None]",
        "weights = real * real.cumsum(axis=1)",
        "tests/nn/test_pooling.py",
    ),
    Mutation("one token more left out", "mlxbert/nn/pooling.py", ">= skip)", ">  skip)", "tests/nn/test_pooling.py"),
    Mutation(
        "attention of an earlier layer",
        "mlxbert/nn/pooling.py",
        "output.attentions[-1]",
        "output.attentions[0]",
        "tests/nn/test_pooling.py",
    ),
    Mutation(
        "Normalize forgotten",
        "mlxbert/nn/embedder.py",
        "return x / mx.maximum(mx.linalg.norm(x, axis=-1, keepdims=True), SMALLEST_NORM)",
        "return x",
        _FOLDERS,
    ),
    Mutation(
        "normalized before it is cut",
        "mlxbert/nn/embedder.py",
        "        x = x[:, : self.config.dimensions]\n        return Normalize()(x) if self.config.normalize else x",
        "        x = Normalize()(x) if self.config.normalize else x\n        return x[:, : self.config.dimensions]",
        _OPTIONS,
    ),
    Mutation(
        "normalize=False without effect",
        "mlxbert/nn/embedder.py",
        "while normalize is False and layers",
        "while False and layers",
        _OPTIONS,
    ),
    Mutation(
        "bias of Dense ignored",
        "weights/sentence_transformers.py",
        'config.flag("bias", default=True)',
        "False",
        _FOLDERS,
    ),
    Mutation(
        "activation of Dense ignored",
        "mlxbert/nn/embedder.py",
        "activate(self.activation, self.linear(x))",
        'activate("tanh", self.linear(x))',
        _FOLDERS,
    ),
    Mutation("residual of Dense ignored", "mlxbert/nn/embedder.py", "if not self.adds:", "if True:", _FOLDERS),
    Mutation(
        "projection of the residual ignored",
        "weights/sentence_transformers.py",
        'config.flag("use_residual", default=False)',
        "False",
        _FOLDERS,
    ),
    Mutation(
        "eps of LayerNorm",
        "weights/sentence_transformers.py",
        "_LAYER_NORM_EPS = 1e-5",
        "_LAYER_NORM_EPS = 1e-12",
        _FOLDERS,
    ),
    Mutation(
        "poolings in another order",
        "mlxbert/nn/embedder.py",
        "for mode in self.config.poolings]",
        "for mode in sorted(self.config.poolings)]",
        _EMBED,
    ),
    Mutation(
        "truncate_dim ignored",
        "weights/sentence_transformers.py",
        "default_prompt_name=default, dimensions=dimensions)",
        "default_prompt_name=default)",
        _OPTIONS,
    ),
    Mutation(
        "default prompt ignored",
        "mlxbert/tasks/embed.py",
        "name = default if name is None else name",
        "name = None if name is None else name",
        _OPTIONS,
    ),
    Mutation("max_seq_length ignored", "mlxbert/model.py", "max_length=embedder.config.max_length, ", "", _OPTIONS),
    Mutation(
        "max_seq_length beyond the positions",
        "mlxbert/text/tokenizer.py",
        "min(max_length, self._limit)",
        "max_length",
        _OPTIONS,
    ),
    Mutation("do_lower_case ignored", "mlxbert/model.py", ", lower_case=embedder.config.lower_case", "", _OPTIONS),
    Mutation(
        "a config.json that holds a version alone taken for a checkpoint",
        "weights/sentence_transformers.py",
        '.keys() != {"__version__"}',
        ".keys() != set()",
        _FOLDERS,
    ),
    Mutation("modules outside the folder", "weights/hub/files.py", '".." in path.split("/")', "False", _FOLDERS),
    Mutation(
        "modules of anybody",
        "weights/sentence_transformers.py",
        "not kind.startswith(_NAMESPACE) or name",
        "name",
        _FOLDERS,
    ),
    Mutation(
        "tensors too many in a module",
        "weights/sentence_transformers.py",
        "sorted(found.keys() | expected.keys())",
        "sorted(expected.keys())",
        "tests/weights/test_sentence_transformers_refused.py",
    ),
    Mutation(
        "padding pooled",
        "mlxbert/tasks/embed.py",
        "plan.embedder(output, batch.attention_mask,",
        "plan.embedder(output, None,",
        _EMBED,
    ),
    Mutation(
        "vectors in the order of the batches",
        "mlxbert/text/batch.py",
        "return [results[number] for number in range(len(encodings))]",
        "return list(results.values())",
        _EMBED,
    ),
    Mutation("NaN let through", "mlxbert/tasks/embed.py", "if not np.isfinite(vectors).all():", "if False:", _OPTIONS),
    Mutation(
        "an iterator on another thread",
        "mlxbert/tasks/embed.py",
        '        model.require("embed")  # again',
        "        pass  # again",
        _OPTIONS,
    ),
    Mutation(
        "the furthest kept",
        "mlxbert/tasks/similarity.py",
        "heapq.heappushpop(best, entry)",
        "best[0] = entry",
        "tests/tasks/test_similarity.py",
    ),
    Mutation(
        "of texts equally near the last",
        "mlxbert/tasks/similarity.py",
        "(score, -index, found.text",
        "(score, index, found.text",
        "tests/tasks/test_similarity.py",
    ),
    Mutation(
        "dot products for cosines",
        "mlxbert/tasks/similarity.py",
        'options["normalize"] = True',
        "pass",
        "tests/tasks/test_similarity.py",
    ),
    Mutation("inspect downloads weights", "weights/hub/headers.py", "if not holds_weights(file)", "if True", _HEADERS),
    Mutation(
        "more than the header asked for",
        "weights/hub/headers.py",
        "{first + count - 1}",
        "{first + count - 1 + first * 100}",
        _HEADERS,
    ),
    Mutation(
        "the whole file taken for a part",
        "weights/hub/headers.py",
        "response.status_code != _PARTIAL",
        "False",
        _HEADERS,
    ),
    Mutation(
        "an inspected commit passes for a whole one",
        "weights/source.py",
        "if not snapshot.is_usable():",
        "if False:",
        _HEADERS,
    ),
    Mutation(
        "headers of the hub not checked to the end",
        "weights/formats/safetensors.py",
        "if place != total - 8 - length:",
        "if False:",
        _HEADERS,
    ),
    Mutation(
        "limit of the tokenizer not told",
        "mlxbert/folders/inspect.py",
        '"tokenizer": files.max_length}',
        '"tokenizer": None}',
        "tests/folders/test_inspect.py",
    ),
    Mutation(
        "shapes of tensors not compared",
        "weights/validate.py",
        "if array.shape != arrays[name].shape:",
        "if False:",
        "tests/folders/test_inspect.py",
    ),
    *(Mutation(*row) for row in (*FAMILY_MUTATIONS, *READING_MUTATIONS, *WRITING_MUTATIONS)),
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
        *(["-k", mutation.only] if mutation.only else []),
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
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "build", "*.egg-info")
        shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored)
        for mutation in MUTATIONS:
            if not names or mutation.name in names:
                caught = first_failure(mutation, folder)
                missed += caught is None
                print(f"{mutation.name}: {caught or 'NOT CAUGHT'}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
