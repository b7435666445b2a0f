"""Every number that a user can give has a smallest and a largest value, in the library and on the command line."""

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import mlxbert
from mlxbert.durable_files import to_path
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.nn.embedder import parse_poolings
from mlxbert.option_declarations import MAX_LISTED, Bounds
from mlxbert.readers import text_lines
from mlxbert.tasks.zero_shot import check_labels
from tests.helpers.cases import together
from tests.helpers.commands import COMMANDS
from tests.helpers.program import call
from tests.helpers.rooms import needs
from tests.helpers.tiny import CONFIG

HUGE = 10**5000  # which Python does not write in digits
SETS = {"quantize", "group_size"}  # a few values, which are listed where they are used


NUMBERS = [
    (name, one)
    for name, command in COMMANDS.items()
    for one in command.params
    if "int" in one.type.name or "float" in one.type.name
]
BOUNDS = {Bounds(one.type.min, one.type.max) for _, one in NUMBERS if one.name not in SETS}


@together("bounds", sorted(BOUNDS))
def test_what_is_out_of_bounds_is_refused_and_the_ends_are_not(bounds: Bounds) -> None:
    least, most = bounds
    assert -math.inf < least < most < math.inf
    for value in (least, most):
        bounds.check_number("steps", value)
    for value in (math.ceil(least), int(most)) if most >= 1 else ():
        bounds.check_whole("steps", value)
    if most >= 1:
        whole, number = math.ceil(least), max(least, 1e-6) * 1.01 if most < 1 else 1
        assert [type(bounds.check_whole("steps", kind(max(whole, 0)))) for kind in (np.int64, np.uint32)] == [int, int]
        numbers = [] if least > 1 else [np.float32(number), np.float64(number)]
        assert {type(bounds.check_number("steps", one)) for one in numbers} <= {float}
    bad: list[Any] = [least - 1, most + 1, HUGE, -HUGE, math.nan, math.inf, -math.inf, True, "1", None]
    for value in bad:
        for check in (bounds.check_number, bounds.check_whole):
            with pytest.raises(ArgumentError, match=r"^`steps` is "):
                check("steps", value)
    with pytest.raises(ArgumentError):
        bounds.check_whole("steps", float(most))


@needs()
def test_every_number_of_the_command_line_has_bounds() -> None:
    assert len(NUMBERS) > 200
    assert {one.name for _, one in NUMBERS if getattr(one.type, "max", None) is None} == SETS
    assert {one.name for _, one in NUMBERS if getattr(one.type, "min", None) is None} == SETS


@together("value", ["nan", "inf", "-inf", "1e309", f"1{'0' * 24}", "9" * 5000])
def test_no_command_takes_numbers_that_are_not_finite_or_huge(value: str) -> None:
    for name, one in NUMBERS[::37]:
        required = list[str]()
        for other in COMMANDS[name].params:
            if other.required and other.name != one.name:
                required += [other.opts[0], "x"] if other.param_type_name == "option" else ["x"]
        call(*name.split(), *required, one.opts[-1], value).fails(2, one.opts[-1])


@needs("train")
def test_runs_are_counted_before_they_are_listed() -> None:
    from mlxbert.train.options.loop_options import RUNS, check_sweep

    values, most = [0.01] * 1000, int(RUNS.most) // 7
    with pytest.raises(ArgumentError, match="sweep"):
        check_sweep({"lr": values, "warmup": values, "weight_decay": values}, 1)
    assert len(check_sweep({"lr": values[:most]}, 7)) == most
    with pytest.raises(ArgumentError, match="sweep"):
        check_sweep({"lr": values[: most + 1]}, 7)
    with pytest.raises(ArgumentError, match="seeds"):
        check_sweep(None, 10**9)


@needs("train")
def test_a_rank_above_the_width_of_a_layer_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    from mlxbert.train.options.loop_options import TrainingOptions
    from tests.train.pretraining.files import text_file

    rows = [{"text": word, "label": word[:1]} for word in ("cat", "dog", "city", "dot") * 5]
    how: dict[str, Any] = {"train": rows, "output": tmp_path / "out", "model": tiny_folder, "dry_run": True}
    with pytest.raises(ArgumentError, match="`lora` is 25, expected at most 24"):
        mlxbert.finetune("classify", **how, lora=25)
    mlxbert.finetune("classify", **how, lora=24)
    corpus = text_file(tmp_path / "text.txt")
    with pytest.raises(ArgumentError, match="`lora` is 25"):
        mlxbert.pretrain(corpus, output=tmp_path / "out", model=tiny_folder, length="16", lora=25)
    with pytest.raises(ArgumentError, match="lora"):
        TrainingOptions(lora=10**7)


@needs("train")
def test_the_library_has_the_bounds_of_the_command_line(tiny: mlxbert.Model, tiny_folder: Path, tmp_path: Path) -> None:
    from mlxbert.train.objectives.vector_objective import VectorLoss
    from mlxbert.train.options.loop_options import TrainingOptions
    from mlxbert.train.pretraining.chunks import read_lengths
    from tests.train.pretraining.files import text_file

    corpus = [text_file(tmp_path / "text.txt")]
    pairs, more, given = [{"anchor": "cat", "positive": "dog"}] * 2, MAX_LISTED + 1, cast(Any, HUGE)
    listed, digits = "has 1,001 values", ".* digits"
    calls: list[tuple[str, Callable[[], object]]] = [
        ("`size` is", lambda: mlxbert.vocabulary(corpus, tmp_path / "v", size=10**12)),
        ("`top_k` is", lambda: mlxbert.fill_mask(tiny, "[MASK]", top_k=HUGE)),
        ("`batch_tokens` is", lambda: mlxbert.embed(tiny, "cat", batch_tokens=10**12)),
        ("`negatives` is", lambda: mlxbert.mine(tiny, pairs, negatives=10**9)),
        ("`margin` is", lambda: mlxbert.mine(tiny, pairs, margin=math.nan)),
        ("`gradient_accumulation` is", lambda: TrainingOptions(gradient_accumulation=10**8)),
        ("`seed` is", lambda: mlxbert.new_model(CONFIG, tiny_folder, seed=2**64)),
        ("`temperature` is", lambda: VectorLoss(None, temperature=math.inf)),
        (f"`dimensions` {listed}", lambda: VectorLoss(None, dimensions=(8,) * more)),
        (f"`labels` {listed}", lambda: check_labels(tuple(map(str, range(more))))),
        (f"`pooling` {listed}", lambda: parse_poolings("+".join(["mean"] * more))),
        (f"`length` {listed}", lambda: read_lengths(",".join([f"8:{1 / more}"] * more), 8)),
        # Numbers of thousands of digits are named, too.
        (digits, lambda: mlxbert.embed(tiny, given)),
        (digits, lambda: mlxbert.embed(tiny, "cat", dimensions=given)),
        (digits, lambda: mlxbert.embed(tiny, "cat", prompt=given)),
        (digits, lambda: mlxbert.embed(tiny, "cat", kind=given)),
        (digits, lambda: tiny.tokenizer.decode(given)),
        (digits, lambda: tiny.tokenizer.decode([given])),
        (digits, lambda: tiny.tokenizer.token(given)),
        (digits, lambda: mlxbert.new_model(CONFIG | {"vocab_size": given}, str(tiny.source))),
        (digits, lambda: mlxbert.new_model(CONFIG | {"vocab_size": 10**4000}, str(tiny.source))),
    ]
    for said, give in calls:
        with pytest.raises(MlxbertError, match=f"^{said}"):
            give()


@needs("train")
@together("name", ["a\0b", "a\ud800", "a" * 300, "../" * 5000, "~nobody-of-that-name/x"])
def test_paths_that_no_file_can_have_are_refused(name: str, tiny: mlxbert.Model, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="`output` is"):
        to_path(name, "output")
    for give in (
        lambda: mlxbert.pretrain(name, output=tmp_path / "out"),
        lambda: mlxbert.vocabulary([name], tmp_path / "out"),
        lambda: mlxbert.evaluate_search(tiny, data=name),
    ):
        with pytest.raises(MlxbertError):
            give()


def test_words_that_no_shell_gives_and_names_of_any_length_are_errors() -> None:
    call("embed", "x", "--model", "a\0b").fails(2)
    found = call("embed", "x", "--model", "x" * 1_000_000)
    found.fails(1)
    assert len(found.err) < 10_000
    call("classify", "x", "--labels", "a\nb").fails(2, "--labels")


def test_a_text_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "LONGEST", 100)
    assert len(text_lines.read_text("context.txt", io.BytesIO(b"x" * 100))) == 100
    with pytest.raises(InputError, match="maximum"):
        text_lines.read_text("context.txt", io.BytesIO(b"x" * 101))
