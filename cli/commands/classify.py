"""`mlxbert classify`."""

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_texts
from mlxbert.cli.options import FileOptions, Overflow, PairInputOptions, ServedOptions
from mlxbert.cli.output.file import check_output
from mlxbert.cli.views import classify as view
from mlxbert.errors import ArgumentError
from mlxbert.options import Option


@dataclass(frozen=True)
class ZeroShotOptions:
    """Labels that the model was not trained on."""

    panel: ClassVar[str] = "Zero-shot"
    labels: Annotated[
        list[str] | None, Option("Choose among these labels, through an NLI model. May be repeated.", "A,B")
    ] = None
    hypothesis: Annotated[
        str | None,
        Option("Sentence of a label. {} stands for the label.", "TEXT", usual="This example is {}."),
    ] = None
    multi: Annotated[bool, Option("Several labels may be right.")] = False

    def given(self, pairs: bool, *, served: bool) -> Mapping[str, Any]:
        """The options as arguments of the library; none if there are no labels.

        Args:
            pairs: Whether the inputs are pairs.
            served: Whether a server checks them.
        """
        if self.labels is None:
            if self.hypothesis is not None or self.multi:
                raise ArgumentError(f"{'--multi' if self.multi else '--hypothesis'} works only with --labels")
            return {}
        if pairs:
            raise ArgumentError("there are both --labels and pairs of texts", hint="--labels takes single texts")
        # As in a .csv, quotes hold a label that contains a comma.
        try:
            rows = [row for given in self.labels for row in csv.reader([given], skipinitialspace=True)]
        except csv.Error as problem:  # a line break outside of quotes, or more characters than a field may have
            raise ArgumentError(f"--labels cannot be read as A,B ({problem})") from None
        labels = [label.strip() for row in rows for label in row]
        if not served:  # before a model of a gigabyte is downloaded
            from mlxbert.tasks.zero_shot import check_hypothesis, check_labels

            check_labels(labels)
            if self.hypothesis is not None:
                check_hypothesis(self.hypothesis)
        return {"labels": labels, "hypothesis": self.hypothesis, "multi": self.multi}


def classify(
    model: ServedOptions,
    source: PairInputOptions,
    zero_shot: ZeroShotOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None,
    pair: Annotated[str | None, Option("A second text, for each of the texts.", "TEXT")] = None,
    top_k: Annotated[int | None, Option("Labels per text.", usual="all, in a terminal 5")] = None,
    overflow: Annotated[Overflow, Option("Overlong texts. What happens to texts too long for the model.")] = "truncate",
) -> None:
    """Classify texts, or pairs of texts: with a fine-tuned model, or texts with any --labels.

    The model decides what is printed: labels with their probabilities, or a number. --labels needs no training, but a
    model of natural language inference (NLI), which judges whether the text implies the hypothesis made from a label.

    Example: mlxbert classify "I loved it." --model distilbert/distilbert-base-uncased-finetuned-sst-2-english
    """
    check_output(out.output, out.overwrite, sources=source.input)
    labels = zero_shot.given(pairs=pair is not None or source.pair_column is not None, served=model.server is not None)
    opened = open_texts(texts or (), source, pair)
    loaded = session.load_or_ask("classify", model)
    given: dict[str, Any] = {"top_k": top_k, "overflow": overflow, **labels}
    results = session.results("classify", loaded, opened, model, given)
    draw = functools.partial(view.draw, most=top_k or view.MOST, known=None if labels else loaded.labels)
    made_of = session.OutputManifest("classify", loaded, model, given | {"pair": pair})
    session.stream(opened, results, draw, out, task=made_of)
