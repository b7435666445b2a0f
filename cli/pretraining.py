"""Options of pre-training, in groups as in `training`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from mlxbert.cli.options import ComputingOptions, Device, DType, ModelOptions, Offline, OutputOptions, Revision
from mlxbert.cli.training import EventOptions, Group, LoraOptions, SavingOptions
from mlxbert.errors import ArgumentError
from mlxbert.training.options import Schedule

_CORPUS, _START, _TRAINING = "Data", "Model", "Training"


class Documents(StrEnum):
    """What separates documents of .txt files."""

    blank = "blank"
    line = "line"


def _option(panel: str, metavar: str | None, text: str, default: Any = True, **more: Any) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel=panel, show_default=default, **more)


@dataclass(frozen=True)
class CorpusOptions(Group):
    """How text is read and made into examples."""

    corpus: Annotated[list[str], typer.Argument(metavar="CORPUS…", help="Text: .txt or .jsonl, also .gz and .xz.")]
    field: Annotated[str, _option(_CORPUS, "NAME", "Field of the text in .jsonl files.")] = "text"
    documents: Annotated[
        Documents, _option(_CORPUS, None, "What separates documents in .txt files: blank lines, or each line is one.")
    ] = Documents.blank
    across_documents: Annotated[
        bool,
        typer.Option("--across-documents", help="Examples continue in the next document.", rich_help_panel=_CORPUS),
    ] = False
    length: Annotated[str, _option(_CORPUS, "N", "Tokens of an example, or phases: 128:0.9,512:0.1.")] = "128"
    whole_words: Annotated[
        bool, typer.Option("--whole-words", help="Hide all tokens of a word together.", rich_help_panel=_CORPUS)
    ] = False
    mask_share: Annotated[float, _option(_CORPUS, "X", "Share of the tokens that are hidden.")] = 0.15
    masks: Annotated[
        int | None, _option(_CORPUS, "N", "Repeat the masks of the first N passes.", "new ones in every pass")
    ] = None
    valid: Annotated[
        list[str] | None, _option(_CORPUS, "FILE", "Text to evaluate on.", "a hundredth of the corpus is held out")
    ] = None
    shards: Annotated[
        str | None,
        _option(_CORPUS, "DIR", "Keep the token ids of the corpus here, for other runs.", "removed at the end"),
    ] = None

    @property
    def sources(self) -> list[str]:
        """All that is read."""
        return [*self.corpus, *(self.valid or ())]


@dataclass(frozen=True)
class NewModelOptions(Group):
    """A model with fresh weights."""

    config: Annotated[
        str | None,
        _option(
            _START, "SIZE", "Begin a new model: tiny, mini, small, medium, base, or a config.json.", "continue --model"
        ),
    ] = None
    vocabulary: Annotated[str | None, _option(_START, "DIR", "Its vocabulary; see mlxbert vocabulary.", "none")] = None
    generator: Annotated[
        float | None, _option(_START, "X", "Width of a new generator of ELECTRA, beside the discriminator.", "0.25")
    ] = None


@dataclass(frozen=True)
class PretrainingOptions(Group):
    """What is trained, and how."""

    objective: Annotated[
        str | None,
        _option(_TRAINING, "TERMS", "mlm, nsp, sop; soft, hidden, vectors; electra; mlm:1,nsp:0.5.", "mlm"),
    ] = None
    steps: Annotated[int | None, _option(_TRAINING, "N", "Updates of the weights.", "as --epochs say")] = None
    epochs: Annotated[float | None, _option(_TRAINING, "X", "Passes over the corpus.", "1")] = None
    lr: Annotated[float | None, _option(_TRAINING, "X", "Highest learning rate.", "by the size of the model")] = None
    batch_size: Annotated[int, _option(_TRAINING, "N", "Examples per batch; fewer in phases of longer ones.")] = 32
    accumulate: Annotated[int, _option(_TRAINING, "N", "Batches per update of the weights.")] = 1
    schedule: Annotated[Schedule, _option(_TRAINING, None, "How the learning rate falls after the warm-up.")] = "linear"
    warmup: Annotated[float, _option(_TRAINING, "X", "Share of the updates in which the learning rate rises.")] = 0.1
    weight_decay: Annotated[float, _option(_TRAINING, "X", "Weight decay of matrices.")] = 0.01
    clip: Annotated[float, _option(_TRAINING, "X", "Maximum norm of the gradient; 0 for no limit.")] = 1.0
    dropout: Annotated[float | None, _option(_TRAINING, "X", "Dropout rate everywhere.", "the model's")] = None
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Use less memory, but more time.", rich_help_panel=_TRAINING)
    ] = False
    seed: Annotated[int, _option(_TRAINING, "N", "Random seed of new weights, order, masks and dropout.")] = 0
    fill: Annotated[
        list[str] | None,
        _option(_TRAINING, "TEXT", "A text with [MASK] to fill at each evaluation; repeatable.", "none"),
    ] = None


@dataclass(frozen=True)
class TeacherOptions(Group):
    """From whom the model learns."""

    teacher: Annotated[
        str | None, _option(_TRAINING, "NAME", "Model that soft, hidden and vectors learn from.", "the model itself")
    ] = None
    temperature: Annotated[float, _option(_TRAINING, "X", "Softens the scores of hidden words in soft.")] = 2.0


@dataclass(frozen=True)
class StudentOptions(Group):
    """Who learns from whom."""

    teacher: Annotated[str, typer.Option(metavar="NAME", help="Model to learn from.")]
    student: Annotated[str | None, _option(_START, "NAME", "Model to train.", "layers of the teacher")] = None
    layers: Annotated[
        str | None, _option(_START, "N,N,…", "Layers of the teacher that the student begins with.", "every other one")
    ] = None
    revision: Revision = None
    offline: Offline = False
    temperature: Annotated[float, _option(_TRAINING, "X", "Softens the scores of hidden words in soft.")] = 2.0
    dtype: Annotated[DType, typer.Option(help="Dtype of computation.", rich_help_panel=_START)] = DType.auto
    device: Annotated[Device, typer.Option(help="Device of computation.", rich_help_panel=_START)] = Device.auto

    def given(self) -> dict[str, Any]:
        """The options as arguments of the library, `layers` as numbers."""
        try:
            layers = None if self.layers is None else [int(layer) for layer in self.layers.split(",")]
        except ValueError:
            raise ArgumentError(
                f"--layers {self.layers!r:.60} is not N,N,…", hint="for example --layers 0,2,4"
            ) from None
        return super().given() | {"layers": layers}


@dataclass(frozen=True)
class DistillOptions:
    """All options of `distill`."""

    corpus: CorpusOptions
    saving: SavingOptions
    student: StudentOptions
    training: PretrainingOptions
    out: EventOptions

    def given(self) -> dict[str, Any]:
        """The options as arguments of the library."""
        given = self.corpus.given() | self.training.given() | self.saving.given() | self.student.given()
        if given["objective"] is None:
            given.pop("objective")  # the default of distill
        return given | {"fill": given["fill"] or ()}


@dataclass(frozen=True)
class PretrainOptions:
    """All options of `pretrain`."""

    corpus: CorpusOptions
    saving: SavingOptions
    new: NewModelOptions
    model: ComputingOptions
    training: PretrainingOptions
    teacher: TeacherOptions
    lora: LoraOptions
    out: EventOptions

    def given(self) -> dict[str, Any]:
        """The options as arguments of the library."""
        where = {name: getattr(self.model, name) for name in ("model", "revision", "offline", "adapter")}
        where |= {"dtype": self.model.dtype.value, "device": self.model.device.value}
        given = self.corpus.given() | self.new.given() | self.training.given() | self.teacher.given() | where
        given |= self.lora.given() | self.saving.given() | {"objective": self.training.objective or "mlm"}
        return given | {"fill": given["fill"] or ()}


@dataclass(frozen=True)
class TextOptions(Group):
    """Text to evaluate on, and how it is read."""

    data: Annotated[list[str], typer.Option("--data", metavar="FILE", help="Text.", rich_help_panel=_CORPUS)]
    examples: Annotated[int | None, _option(_CORPUS, "N", "So many examples, drawn by chance.")] = 1000
    length: Annotated[int, _option(_CORPUS, "N", "Tokens of an example.")] = 128
    field: Annotated[str, _option(_CORPUS, "NAME", "Field of the text in .jsonl files.")] = "text"
    documents: Annotated[
        Documents, _option(_CORPUS, None, "What separates documents in .txt files: blank lines, or each line is one.")
    ] = Documents.blank
    whole_words: Annotated[
        bool, typer.Option("--whole-words", help="Hide all tokens of a word together.", rich_help_panel=_CORPUS)
    ] = False


@dataclass(frozen=True)
class EvaluateTextOptions:
    """All options of `evaluate mlm` but the objective."""

    text: TextOptions
    model: ModelOptions
    out: OutputOptions

    def given(self) -> dict[str, Any]:
        """The options as arguments of the library."""
        return self.text.given() | {"batch_tokens": self.model.batch_tokens}
