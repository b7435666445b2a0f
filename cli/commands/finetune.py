"""`mlxbert finetune …`: one command per task."""

from contextlib import ExitStack

from mlxbert.cli import session
from mlxbert.cli.embedding import RelatedColumns, VectorOptions
from mlxbert.cli.events.run import open_sinks, resumable, send
from mlxbert.cli.inputs import STDIN
from mlxbert.cli.relevance import QueryColumns, RerankOptions, ScoreOptions
from mlxbert.cli.spans import AnswerColumns, AnswerOptions, TagOptions, WordColumns
from mlxbert.cli.training import ClassOptions, Columns, FinetuneOptions, Group, TeacherOptions
from mlxbert.cli.views import console, progress


def finetune_classify(options: FinetuneOptions, columns: Columns, classes: ClassOptions, guide: TeacherOptions) -> None:
    """Train a model to give each text, or pair of texts, one of several labels.

    If training is interrupted, with Ctrl-C or otherwise, the same command resumes it from the last saved state.

    Example: mlxbert finetune classify --train reviews.csv --output my-model
    """
    _train("classify", options, columns, classes, guide)


def finetune_multilabel(options: FinetuneOptions, columns: Columns, guide: TeacherOptions) -> None:
    """Train a model to give each text, or pair of texts, any number of labels.

    The score above which a label is given is tuned for each label on the validation data.

    Example: mlxbert finetune multilabel --train emotions.jsonl --output my-model
    """
    _train("multilabel", options, columns, guide)


def finetune_regress(options: FinetuneOptions, columns: Columns, guide: TeacherOptions) -> None:
    """Train a model to give each text, or pair of texts, a number.

    Example: mlxbert finetune regress --train ratings.csv --pair-column answer --output my-model
    """
    _train("regress", options, columns, guide)


def finetune_tag(options: FinetuneOptions, columns: WordColumns, tags: TagOptions, guide: TeacherOptions) -> None:
    """Train a model to tag words: names and other entities, parts of speech, chunks.

    Data are sentences of CoNLL or CoNLL-U, lists of words and tags, or texts with spans.

    Example: mlxbert finetune tag --train train.conll --output my-model
    """
    _train("tag", options, columns, tags, guide)


def finetune_answer(
    options: FinetuneOptions, columns: AnswerColumns, answers: AnswerOptions, guide: TeacherOptions
) -> None:
    """Train a model to answer questions with a part of a text, or to say that the text has no answer.

    Data are .json files of SQuAD, 1.1 or 2.0, or rows of question, context and answers. Long contexts are looked at
    through windows; --max-length is the length of a window, by default 384 tokens.

    Example: mlxbert finetune answer --train train-v2.0.json --output my-model
    """
    _train("answer", options, columns, answers, guide)


def finetune_embed(options: FinetuneOptions, columns: RelatedColumns, vectors: VectorOptions) -> None:
    """Train a model to give similar texts similar vectors, for search and comparison.

    Data are pairs of texts that belong together, such as questions and answers, also with texts that do not belong to
    them; pairs with scores of how similar they are; or texts alone.

    Example: mlxbert finetune embed --train pairs.csv --output my-model
    """
    _train("embed", options, columns, vectors)


def finetune_rerank(
    options: FinetuneOptions, columns: QueryColumns, scores: ScoreOptions, losses: RerankOptions, guide: TeacherOptions
) -> None:
    """Train a cross-encoder, which scores how well a text answers a query.

    Data are rows of a query, a text and a label from 0 to 1, or records {"query": …, "positives": […], "negatives":
    […]}. All texts of a query are in the training data, or all in the validation data.

    Example: mlxbert finetune rerank --train pairs.jsonl --output my-model
    """
    _train("rerank", options, columns, scores, losses, guide)


def _train(task: str, options: FinetuneOptions, *groups: Group) -> None:
    """Trains, and shows how it goes on.

    Args:
        task: The name of the task.
        options: What every task takes.
        *groups: What differs between tasks.
    """
    data, model = options.data, options.model
    session.note_builtin("finetune", model)
    piped = STDIN in data.sources
    if piped:
        console.say("note", "data come from stdin: an interrupted run resumes if the same data are piped in again")
    with ExitStack() as opened:
        sinks = open_sinks(options.out, data.sources, dry=data.dry_run, opened=opened)
        from mlxbert.training.finetune import finetune

        doing = "measuring a few steps" if data.dry_run else "loading the model"
        begun = opened.enter_context(progress.waiting(f"reading data, {doing} …"))
        update = opened.enter_context(progress.download(model.model, before=begun))
        own = {name: value for group in groups for name, value in group.given().items()}
        events = finetune(task, **options.given(), **own, on_progress=update)
        with resumable(None if piped or data.dry_run else options.saving.output, opened):
            send(events, sinks, begun)
