"""The public names: the only list of them, read by type checkers and editors, and by `__init__.py`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import (
    ArgumentError as ArgumentError,
    BusyError as BusyError,
    ChangedError as ChangedError,
    CheckpointError as CheckpointError,
    ConfigError as ConfigError,
    DeviceError as DeviceError,
    DivergedError as DivergedError,
    HubError as HubError,
    InputError as InputError,
    MissingHeadError as MissingHeadError,
    MlxbertError as MlxbertError,
    ModelChangedError as ModelChangedError,
    OutOfMemoryError as OutOfMemoryError,
    OverloadedError as OverloadedError,
    StoreError as StoreError,
    ThreadError as ThreadError,
    TokenizerError as TokenizerError,
    TooLargeError as TooLargeError,
    TooLongError as TooLongError,
    UnknownArgumentError as UnknownArgumentError,
)
from mlxbert.explore.results import (
    Attention as Attention,
    DuplicateGroup as DuplicateGroup,
    Duplicates as Duplicates,
    Explanation as Explanation,
    Occurrence as Occurrence,
    Sense as Sense,
    Senses as Senses,
    Share as Share,
    SimilarPair as SimilarPair,
    Substitute as Substitute,
    Topic as Topic,
    Topics as Topics,
    TopicWord as TopicWord,
    TypicalLine as TypicalLine,
)
from mlxbert.export.against.verify_vectors import verify_vectors as verify_vectors
from mlxbert.export.compare.reports import (
    Conversion as Conversion,
    Difference as Difference,
    GgufConversion as GgufConversion,
    Verification as Verification,
)
from mlxbert.export.convert import convert as convert
from mlxbert.export.gguf.write_gguf import convert_to_gguf as convert_to_gguf
from mlxbert.export.upload import Upload as Upload, UploadedFile as UploadedFile, upload as upload
from mlxbert.export.vector_verification import (
    CosineRange as CosineRange,
    Cosines as Cosines,
    DifferingText as DifferingText,
    VectorCause as VectorCause,
    VectorSizes as VectorSizes,
    VectorVerification as VectorVerification,
)
from mlxbert.export.verify import verify as verify
from mlxbert.folders.inspect import inspect as inspect
from mlxbert.folders.inspection import Inspection as Inspection
from mlxbert.folders.save import save as save
from mlxbert.labels.labels import Labels as Labels
from mlxbert.loading import load as load, new_model as new_model
from mlxbert.model import Model as Model
from mlxbert.results.embed import (
    Embedding as Embedding,
    SparseEmbedding as SparseEmbedding,
    TokenVectors as TokenVectors,
    Words as Words,
    WordVector as WordVector,
)
from mlxbert.results.result import Failure as Failure
from mlxbert.results.text_relations import (
    NextSentence as NextSentence,
    PairSimilarity as PairSimilarity,
    Reranked as Reranked,
    Similarity as Similarity,
)
from mlxbert.results.text_results import (
    Answer as Answer,
    Classification as Classification,
    Entity as Entity,
    Fill as Fill,
    FillMask as FillMask,
    Label as Label,
    Mask as Mask,
    Regression as Regression,
    Replaced as Replaced,
    ReplacedToken as ReplacedToken,
    Span as Span,
    Tagged as Tagged,
    Token as Token,
    Tokens as Tokens,
)
from mlxbert.search.hit import Hit as Hit, SearchAnswer as SearchAnswer
from mlxbert.search.index import Index as Index, Passage as Passage, open_index as open_index
from mlxbert.serve.engine.engine import Engine as Engine
from mlxbert.serve.engine.next_batch import Answered as Answered
from mlxbert.serve.engine.serving_options import EngineOptions as EngineOptions
from mlxbert.tasks.maxsim import maxsim as maxsim
from mlxbert.text.tokenizer import Tokenizer as Tokenizer
from mlxbert.text.usage import Usage as Usage
from mlxbert.train.evaluate import evaluate as evaluate
from mlxbert.train.finetune import finetune as finetune
from mlxbert.train.loop.events import (
    Evaluated as Evaluated,
    Event as Event,
    Finished as Finished,
    Saved as Saved,
    Started as Started,
    Step as Step,
    TrainingEvents as TrainingEvents,
)
from mlxbert.train.mine import Mined as Mined
from mlxbert.train.objectives.objective import Example as Example, Objective as Objective, TrainBatch as TrainBatch
from mlxbert.train.pretraining.evaluate_words import WordEvaluation as WordEvaluation, evaluate_words as evaluate_words
from mlxbert.train.pretraining.pretrain import distill as distill, pretrain as pretrain
from mlxbert.train.pretraining.static_distillation import (
    StaticDistillation as StaticDistillation,
    distill_static as distill_static,
)
from mlxbert.train.pretraining.vocabulary import Vocabulary as Vocabulary, vocabulary as vocabulary
from mlxbert.train.scores.evaluation_summary import Evaluation as Evaluation
from mlxbert.train.scores.search_evaluation import (
    evaluate_reranking as evaluate_reranking,
    evaluate_search as evaluate_search,
)
from mlxbert.version import __version__ as __version__
from mlxbert.weights.model_source import ModelRef as ModelRef

# Functions with options, as scripts/signatures.py writes them.
# fmt: off
# from mlxbert.tasks.answer import answer as answer
@overload
def answer(  # type: ignore[overload-overlap]
    model: Model, questions: str | tuple[str, str], *, context: str | None = None,
    overflow: Literal["window", "truncate", "error"] = "window", top_k: int = 1, max_words: int = 30,
    max_length: int | None = None, stride: int | None = None, no_answer_threshold: float | None = None,
    batch_tokens: int | None = None, usage: Usage | None = None, on_error: Literal["raise", "return"] = "raise"
) -> Answer:
    """Answers questions with a part of a text, or says that the text has no answer.

    Example:
        >>> model = mlxbert.load("deepset/roberta-base-squad2", task="answer")
        >>> mlxbert.answer(model, "Where was she born?", context="Angela Merkel was born in Hamburg.").answer

    A text of any length is split into overlapping windows, in constant memory. An answer consists of whole tokens,
    without the whitespace around them. Its length is counted in words separated by whitespace; each ideograph or kana
    counts as a word. Spans may overlap. The result has no answer if the share of "no answer" in the combined score of
    "no answer" and the best span exceeds the threshold: a threshold of 1 always gives an answer.

    Args:
        model: A model with a question-answering head.
        questions: One question, or one tuple `(question, context)`; or any number of them.
        context: The context of questions that come without one.
        overflow: Overlong texts. window computes all of it in windows; truncate drops the end; error refuses the text.
            Default: `window`.
        top_k: Number of spans per question. Default: 1. From 1 to 10,000,000.
        max_words: Maximum number of words in an answer. Default: 30. From 1 to 10,000.
        max_length: Tokens per window. A longer text is split into several windows. Default: 384, or the model's if
            lower. From 8 to 1,000,000.
        stride: Overlap of windows in tokens. Short windows overlap by a third instead. Default: 128. From 0 to
            1,000,000.
        no_answer_threshold: Threshold of "no answer". Default: the model's, or 0.5. From 0 to 1.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        One result for one question; for several an iterator in their order, in constant memory.

    Raises:
        InputError: A question or context is empty, or the question is longer than half a window.
        ArgumentError: An argument has an invalid value.
    """
@overload
def answer(
    model: Model, questions: Iterable[str | tuple[str, str] | InputError], *, context: str | None = None,
    overflow: Literal["window", "truncate", "error"] = "window", top_k: int = 1, max_words: int = 30,
    max_length: int | None = None, stride: int | None = None, no_answer_threshold: float | None = None,
    batch_tokens: int | None = None, usage: Usage | None = None, on_error: Literal["raise"] = "raise"
) -> Iterator[Answer]: ...
@overload
def answer(
    model: Model, questions: Iterable[str | tuple[str, str] | InputError], *, context: str | None = None,
    overflow: Literal["window", "truncate", "error"] = "window", top_k: int = 1, max_words: int = 30,
    max_length: int | None = None, stride: int | None = None, no_answer_threshold: float | None = None,
    batch_tokens: int | None = None, usage: Usage | None = None, on_error: Literal["raise", "return"]
) -> Iterator[Answer | Failure]: ...

# from mlxbert.explore.attention import attention as attention
def attention(
    model: Model, text: str, *, pair: str | None = None, overflow: Literal["truncate", "error"] = "error",
    layers: int | Sequence[int] | None = None, heads: int | Sequence[int] | None = None, rollout: bool = False
) -> Attention:
    """Computes the attention weights between the tokens of a text.

    With `rollout`, the weights of a layer say how much of each token has reached each token by then (Abnar and Zuidema
    2020, arXiv:2005.00928): the mean of the heads counts half, the token itself the other half, which stands for the
    residual connection, and the matrices of the layers up to this one are multiplied.

    Example:
        >>> result = mlxbert.attention(mlxbert.load(), "The river bank was muddy.", layers=[0, 5])
        >>> result.weights.shape  # layers, heads, tokens, tokens

    Args:
        model: Any model; its heads are not used.
        text: The text.
        pair: A second text, in segment B.
        overflow: Overlong texts. truncate drops the end (of a pair: of the longer text); error refuses the text.
            Default: `error`.
        layers: The indices of the layers, from 0; negative indices count from the last layer. `None` for all.
        heads: The indices of the heads, like `layers`.
        rollout: Whether to multiply the weights of the layers. The `weights` are then (layers, 1, tokens, tokens).

    Raises:
        InputError: The input is not a text, or is too long with `overflow="error"`.
        ArgumentError: An argument is invalid, or the model has fewer layers or heads.
        DeviceError: The device failed, or has too little memory.
    """

# from mlxbert.tasks.classify import classify as classify
@overload
def classify(  # type: ignore[overload-overlap]
    model: Model, texts: str | tuple[str, str], *,
    overflow: Literal["truncate", "head-tail", "window", "window-max", "error"] = "truncate", top_k: int | None = None,
    labels: Iterable[str], hypothesis: str | None = None, multi: bool = False, batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise", "return"] = "raise"
) -> Classification:
    """Classifies texts or pairs of texts with a fine-tuned model, or texts with any labels without training.

    Example:
        >>> model = mlxbert.load("distilbert/distilbert-base-uncased-finetuned-sst-2-english", task="classify")
        >>> mlxbert.classify(model, "What a lovely day!").labels[0].label

    The scores of a text in windows are the mean of the windows' scores, weighted by their tokens, or with `window-max`
    the largest score of each label, which then need not add up to 1. Windows of a pair cover the longer text, and each
    has the other text in full. With `labels`, an NLI model judges whether the text
    implies the hypothesis; there are no windows then, and the hypothesis is never truncated. An embedding model (the
    built-in one is one) compares the vector of the text with those of the hypotheses.

    Args:
        model: A model with a sequence classifier; with `labels`, a model trained on natural language inference, or an
            embedding model.
        texts: One text, one pair (a tuple of two texts), or any number of texts and pairs; with `labels` no pairs.
        overflow: Overlong texts. truncate drops the end (of a pair: of the longer text); head-tail drops the middle;
            window averages the scores of windows; window-max takes the largest score of each label; error refuses the
            text. With labels, an embedding model takes truncate, window and error, an NLI model no window. Default:
            `truncate`.
        top_k: Number of labels per text. Default: all, or 5 in a terminal. From 1 to 10,000,000.
        labels: Labels to choose from. Needs an NLI model or an embedding model.
        hypothesis: Sentence for a label. {} stands for the label. By default, 'This example is {}.' for an NLI model,
            and 'This text is about {}.' for an embedding model.
        multi: Score each label on its own. Several may be right. Default: False.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        For one text or pair its `Classification`, or its `Regression` if the model computes numbers; for several an
        iterator in their order, in constant memory.

    Raises:
        InputError: The input is not a text or a pair of texts, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
        CheckpointError: The model has no label for entailment or contradiction, which `labels` need.
    """
@overload
def classify(  # type: ignore[overload-overlap]
    model: Model, texts: str | tuple[str, str], *,
    overflow: Literal["truncate", "head-tail", "window", "window-max", "error"] = "truncate", top_k: int | None = None,
    labels: None = None, hypothesis: str | None = None, multi: bool = False, batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise", "return"] = "raise"
) -> Classification | Regression: ...
@overload
def classify(
    model: Model, texts: Iterable[str | tuple[str, str] | InputError], *,
    overflow: Literal["truncate", "head-tail", "window", "window-max", "error"] = "truncate", top_k: int | None = None,
    labels: Iterable[str], hypothesis: str | None = None, multi: bool = False, batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise"] = "raise"
) -> Iterator[Classification]: ...
@overload
def classify(
    model: Model, texts: Iterable[str | tuple[str, str] | InputError], *,
    overflow: Literal["truncate", "head-tail", "window", "window-max", "error"] = "truncate", top_k: int | None = None,
    labels: None = None, hypothesis: str | None = None, multi: bool = False, batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise"] = "raise"
) -> Iterator[Classification | Regression]: ...
@overload
def classify(
    model: Model, texts: Iterable[str | tuple[str, str] | InputError], *,
    overflow: Literal["truncate", "head-tail", "window", "window-max", "error"] = "truncate", top_k: int | None = None,
    labels: Iterable[str], hypothesis: str | None = None, multi: bool = False, batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise", "return"]
) -> Iterator[Classification | Failure]: ...
@overload
def classify(
    model: Model, texts: Iterable[str | tuple[str, str] | InputError], *,
    overflow: Literal["truncate", "head-tail", "window", "window-max", "error"] = "truncate", top_k: int | None = None,
    labels: None = None, hypothesis: str | None = None, multi: bool = False, batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise", "return"]
) -> Iterator[Classification | Regression | Failure]: ...

# from mlxbert.explore.topics import cluster as cluster
def cluster(
    model: Model | None, texts: Iterable[str], *, clusters: int | None = None, min_size: int = 10, words: int = 10,
    typical: int = 3, seed: int = 0, vectors: Any = None, batch_tokens: int | None = None,
    on_progress: Callable[[int, int], None] | None = None
) -> Topics:
    """Finds the topics of many texts, with the words that distinguish each of them and typical texts.

    Example:
        >>> topics = mlxbert.cluster(mlxbert.load(), texts, clusters=5)
        >>> [word.word for word in topics.topics[0].words]

    Args:
        model: The model that computes the vectors; `None` if `vectors` are given.
        texts: The texts.
        clusters: Number of topics, found by k-means. Without it, HDBSCAN decides how many topics there are, and which
            texts belong to none. Default: decided by HDBSCAN. From 1 to 10,000.
        min_size: Smallest number of texts of a topic of HDBSCAN. Default: 10. From 2 to 1,000,000.
        words: Distinguishing words of a topic. Default: 10. From 0 to 1,000.
        typical: Typical texts of a topic. Default: 3. From 0 to 1,000.
        seed: Seed of random numbers. Default: 0. From 0 to 4,294,967,295.
        vectors: The vectors of the texts, (N, W), if they are computed already.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Returns:
        The topic of each text, and the topics. There may be fewer than `clusters` if many texts have the same vector.

    Raises:
        ArgumentError: An argument is invalid, or there are fewer texts than `clusters`.
        InputError: A text is unusable.
        MlxbertError: scikit-learn or, without `clusters`, openTSNE is not installed.
    """

# from mlxbert.explore.duplicates import dedupe as dedupe
def dedupe(
    model: Model | None, texts: Iterable[str], *, threshold: float = 0.9, exact: bool = False,
    prefer: Literal["first", "longest"] = "first", all_pairs: bool = False, vectors: Any = None,
    batch_tokens: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Duplicates:
    """Finds texts that repeat others: equal texts, and texts with similar vectors.

    Equal texts may differ in case, white space, and the forms of dashes and quotes.

    Texts with other numbers, dates, signs, symbols, units or negations never repeat each other.

    A text with tokens that the model does not know, such as some emojis, repeats another text only if both are equal:
    to the model, different texts of unknown tokens are the same.

    The texts are looked at in the order of preference. A text whose vector is similar to that of a text that was kept
    before is a duplicate of the most similar one; otherwise, the text is kept. So each duplicate is similar to the text
    that is kept in its place, and each text is either kept or in exactly one group. Vectors are scaled to length 1.

    Example:
        >>> duplicates = mlxbert.dedupe(mlxbert.load(), ["It rains.", "Snow is cold.", "it  rains."])
        >>> duplicates.kept  # [0, 1]

    Args:
        model: The model that computes the vectors; `None` if `vectors` are given, or with `exact=True`.
        texts: The texts.
        threshold: Smallest cosine of a duplicate and the kept text. Default: 0.9. From 0 to 1.
        exact: Find texts that differ in case, white space, and forms of dashes or quotes. This needs no model. Default:
            False.
        prefer: Which text of a group is kept. One of `first`, `longest`. Default: `first`.
        all_pairs: Compare all pairs. Without it, of more than 32,768 texts only near ones are compared, which is
            faster. Default: False.
        vectors: The vectors of the texts, (N, W), if they are computed already.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Returns:
        The groups of texts that repeat each other.

    Raises:
        ArgumentError: An argument is invalid.
        InputError: A text is unusable.
    """

# from mlxbert.tasks.embed import embed as embed
def embed(
    model: Model, texts: str | Iterable[str], *, kind: Literal["query", "document"] | None = None,
    output_dtype: Literal["float32", "float16", "int8", "binary"] = "float32",
    overflow: Literal["truncate", "window", "error"] = "truncate", pooling: str | None = None,
    normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise", "return"] = "raise", on_progress: Callable[[int, int], None] | None = None
) -> NDArray[np.float32]:
    """Computes the vectors of texts.

    Example:
        >>> model = mlxbert.load()
        >>> vectors = mlxbert.embed(model, ["A man eats.", "It rains."])  # (2, 384)
        >>> vector = mlxbert.embed(model, "A man eats.")  # (384,)

    Omitted options follow the model's own files. `kind` puts the model's own prompt for searches before each text, if
    the model has one: `query` and `retrieval.query` are for queries; `document`, `passage`, `corpus` and
    `retrieval.passage` for documents. `normalize=False` skips the model's own normalization; vectors shortened by
    `dimensions` are normalized again only with `normalize=True`, as in sentence-transformers. `int8` converts each
    vector x to round(127 · x / max|x|), `binary` to int8 values with eight dimensions each. The vector of a text in
    windows is the mean of the windows' vectors, weighted by their tokens.

    Args:
        model: Any model; without sentence-transformers files, tokens are mean-pooled.
        texts: One text, or a sequence of texts.
        on_error: `raise`; or `return` a row of NaN (of 0 with `int8` and `binary`) for an unusable text. The log says
            why.
        on_progress: Called after each text with the number of texts done and the total; without it, a notebook shows a
            progress bar.
        kind: Use the model's own prompt. For models with a prompt for queries and another for documents. One of
            `query`, `document`.
        output_dtype: Dtype of the vectors. binary is one bit per dimension; float16 is only for token vectors. One of
            `float32`, `float16`, `int8`, `binary`. Default: `float32`.
        overflow: Overlong texts. truncate drops the end; window averages the vectors of windows; error refuses the
            text. Default: `truncate`.
        pooling: How tokens become a vector. Join several with +: mean+max. Values: `cls`, `mean`, `max`,
            `mean_sqrt_len`, `weighted_mean`, `last_token`, `attention`. Default: the model's.
        normalize: Scale vectors to length 1. Default: the model's.
        dimensions: Keep only the first N values of each vector (Matryoshka). From 1 to 1,000,000.
        prompt: Text to put before each text.
        prompt_name: Name of one of the model's own prompts.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.

    Returns:
        (D,) for one text, (N, D) for N texts, where D is the size of a vector. With `binary`, D / 8 replaces D.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text is unusable.
    """

# from mlxbert.tasks.embed_sparse import embed_sparse as embed_sparse
@overload
def embed_sparse(  # type: ignore[overload-overlap]
    model: Model, texts: str, *, overflow: Literal["truncate", "window", "error"] = "truncate",
    top_k: int | None = None, prompt: str | None = None, prompt_name: str | None = None,
    kind: Literal["query", "document"] | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise", "return"] = "raise"
) -> SparseEmbedding:
    """Computes the sparse vectors of texts: the weights of the tokens of the vocabulary that matter for a text.

    Example:
        >>> model = mlxbert.load("naver/splade-v3", task="embed-sparse")
        >>> result = mlxbert.embed_sparse(model, "A man eats.")
        >>> result.weights()  # {"man": 2.1, "eat": 1.9, …}, the heaviest token first

    The model is a SPLADE model, which pools the logits of a masked-LM head, or has a linear layer that weights the
    tokens of the text itself, as BGE-M3. `kind` is for models that compute queries differently, or put a prompt before
    them. Windows of a text that is too long give each token its largest weight (or the sum, if the model sums).

    Args:
        model: A model with a masked-LM head, or with a layer for sparse vectors. A masked-LM model that was not trained
            for sparse vectors gives weights of little use; the log says so.
        texts: One text, or any number of texts.
        overflow: Overlong texts. truncate drops the end; window takes the largest weight of each token; error refuses
            the text. Default: `truncate`.
        top_k: Keep the N heaviest tokens of a sparse vector. Default: the model's, or all. From 1 to 10,000,000.
        prompt: Text to put before each text.
        prompt_name: Name of one of the model's own prompts.
        kind: Use the model's own prompt. For models with a prompt for queries and another for documents. One of
            `query`, `document`.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        MissingHeadError: The model has no masked-LM head, and no layer for sparse vectors.
        InputError: A text is unusable, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
@overload
def embed_sparse(
    model: Model, texts: Iterable[str | InputError], *, overflow: Literal["truncate", "window", "error"] = "truncate",
    top_k: int | None = None, prompt: str | None = None, prompt_name: str | None = None,
    kind: Literal["query", "document"] | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise"] = "raise"
) -> Iterator[SparseEmbedding]: ...
@overload
def embed_sparse(
    model: Model, texts: Iterable[str | InputError], *, overflow: Literal["truncate", "window", "error"] = "truncate",
    top_k: int | None = None, prompt: str | None = None, prompt_name: str | None = None,
    kind: Literal["query", "document"] | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise", "return"]
) -> Iterator[SparseEmbedding | Failure]: ...

# from mlxbert.tasks.embed import embed_stream as embed_stream
@overload
def embed_stream(  # type: ignore[overload-overlap]
    model: Model, texts: str, *, kind: Literal["query", "document"] | None = None,
    output_dtype: Literal["float32", "float16", "int8", "binary"] = "float32",
    overflow: Literal["truncate", "window", "error"] = "truncate", pooling: str | None = None,
    normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise", "return"] = "raise"
) -> Embedding:
    """Computes the vectors of any number of texts, in order and in constant memory.

    Example:
        >>> model = mlxbert.load()
        >>> for result in mlxbert.embed_stream(model, ["A man eats.", "It rains."]):
        ...     print(result.text, result.embedding.shape)  # (384,)

    Args:
        model: Any model; without sentence-transformers files, tokens are mean-pooled.
        texts: An iterable of texts.
        kind: Use the model's own prompt. For models with a prompt for queries and another for documents. One of
            `query`, `document`.
        output_dtype: Dtype of the vectors. binary is one bit per dimension; float16 is only for token vectors. One of
            `float32`, `float16`, `int8`, `binary`. Default: `float32`.
        overflow: Overlong texts. truncate drops the end; window averages the vectors of windows; error refuses the
            text. Default: `truncate`.
        pooling: How tokens become a vector. Join several with +: mean+max. Values: `cls`, `mean`, `max`,
            `mean_sqrt_len`, `weighted_mean`, `last_token`, `attention`. Default: the model's.
        normalize: Scale vectors to length 1. Default: the model's.
        dimensions: Keep only the first N values of each vector (Matryoshka). From 1 to 1,000,000.
        prompt: Text to put before each text.
        prompt_name: Name of one of the model's own prompts.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        An iterator of `Embedding`.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text is unusable.
    """
@overload
def embed_stream(
    model: Model, texts: Iterable[str | InputError], *, kind: Literal["query", "document"] | None = None,
    output_dtype: Literal["float32", "float16", "int8", "binary"] = "float32",
    overflow: Literal["truncate", "window", "error"] = "truncate", pooling: str | None = None,
    normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise"] = "raise"
) -> Iterator[Embedding]: ...
@overload
def embed_stream(
    model: Model, texts: Iterable[str | InputError], *, kind: Literal["query", "document"] | None = None,
    output_dtype: Literal["float32", "float16", "int8", "binary"] = "float32",
    overflow: Literal["truncate", "window", "error"] = "truncate", pooling: str | None = None,
    normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise", "return"]
) -> Iterator[Embedding | Failure]: ...

# from mlxbert.tasks.token_vectors import embed_tokens as embed_tokens
def embed_tokens(
    model: Model, texts: str | Iterable[str], *, overflow: Literal["truncate", "error"] = "truncate",
    kind: Literal["query", "document"] | None = None,
    output_dtype: Literal["float32", "float16", "int8", "binary"] = "float32", batch_tokens: int | None = None,
    usage: Usage | None = None
) -> list[NDArray[Any]] | NDArray[Any]:
    """Computes a vector for each token of texts, with a model for late interaction such as ColBERT.

    Tokens that the model leaves out, such as punctuation, have no vector; many models fill queries up with mask tokens,
    whose vectors count like those of the text. `maxsim` scores documents with these vectors.

    Example:
        >>> model = mlxbert.load("lightonai/GTE-ModernColBERT-v1")
        >>> documents = mlxbert.embed_tokens(model, ["A man eats.", "It rains."])
        >>> query = mlxbert.embed_tokens(model, "Who has lunch?", kind="query")  # (32, 128)
        >>> mlxbert.maxsim(query, documents)  # (2,)

    Args:
        model: A model for late interaction.
        texts: One text, or an iterable of texts.
        overflow: Overlong texts. truncate drops the end (of a pair: of the longer text); error refuses the text.
            Default: `truncate`.
        kind: Kind of the texts. Models for late interaction read queries and documents differently. One of `query`,
            `document`. Default: document.
        output_dtype: Dtype of the vectors. binary is one bit per dimension; float16 is only for token vectors. One of
            `float32`, `float16`, `int8`, `binary`. Default: `float32`.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.

    Returns:
        (T, W) for one text with T tokens that have vectors of size W, a list of such arrays for several.

    Raises:
        ArgumentError: An argument has an invalid value.
        ConfigError: The model gives no token vectors.
        InputError: A text is unusable.
    """

# from mlxbert.tasks.embed_words import embed_words as embed_words
@overload
def embed_words(  # type: ignore[overload-overlap]
    model: Model, texts: str | tuple[str, ...], *, layer: int = -1,
    overflow: Literal["truncate", "window", "error"] = "truncate", batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise", "return"] = "raise"
) -> Words:
    """Computes the vector of every word in its context: the mean of the hidden states of its tokens.

    Example:
        >>> model = mlxbert.load()
        >>> result = mlxbert.embed_words(model, "The river bank was muddy.")
        >>> [(word.word, word.embedding.shape) for word in result.words]

    Windows overlap, and each token comes from the window where it is furthest from the edge. `layer` is an index into
    the `hidden_states` of transformers.

    Args:
        model: Any model.
        texts: One text, or any number of texts. A text can also be a list of its words, as in `tag`.
        layer: Layer to take word vectors from. 0 is the embeddings, 1 the first layer, -1 the last. Default: the last.
            From -1,000 to 1,000.
        overflow: Overlong texts. truncate drops the end; window takes each token from the window with the most text
            around it; error refuses the text. Default: `truncate`.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        InputError: The input is neither a text nor words, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
@overload
def embed_words(
    model: Model, texts: Iterable[str | tuple[str, ...] | InputError], *, layer: int = -1,
    overflow: Literal["truncate", "window", "error"] = "truncate", batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise"] = "raise"
) -> Iterator[Words]: ...
@overload
def embed_words(
    model: Model, texts: Iterable[str | tuple[str, ...] | InputError], *, layer: int = -1,
    overflow: Literal["truncate", "window", "error"] = "truncate", batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise", "return"]
) -> Iterator[Words | Failure]: ...

# from mlxbert.explore.explain import explain as explain
def explain(
    model: Model, text: str, pair: str | None = None, *,
    task: Literal["classify", "tag", "fill-mask", "similarity", "rerank"] | None = None, target: str | None = None,
    at: str | None = None, method: Literal["gradients", "occlusion"] = "gradients", steps: int = 50
) -> Explanation:
    """Explains a result by the tokens and words that decided it.

    Example:
        >>> model = mlxbert.load("distilbert/distilbert-base-uncased-finetuned-sst-2-english")
        >>> result = mlxbert.explain(model, "A dull plot, but a wonderful cast.")
        >>> [(word.token, round(word.score, 2)) for word in result.words]

    Args:
        model: A model with the head of the task, or any model for `similarity`.
        text: The text; for `rerank` the query.
        pair: The second text: of a pair to classify, to compare, or to rank.
        task: The task whose result is explained. One of `classify`, `tag`, `fill-mask`, `similarity`, `rerank`.
            Default: the first that the model can do.
        target: The label to explain. For fill-mask it is a word. Default: the one that the model chooses.
        at: The word of the text whose tag is explained.
        method: How to find out. gradients are integrated; occlusion hides one word after another. Default: `gradients`.
        steps: Points at which gradients are computed. More of them are slower and more exact. Default: 50. From 2 to
            1,000.

    Raises:
        InputError: The text is unusable.
        ArgumentError: An argument has an invalid value, or the model cannot do the task.
    """

# from mlxbert.tasks.fill_mask import fill_mask as fill_mask
@overload
def fill_mask(  # type: ignore[overload-overlap]
    model: Model, texts: str, *, top_k: int | None = None, targets: Iterable[str] | None = None, text: bool = True,
    overflow: Literal["window", "truncate", "error"] = "window", batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise", "return"] = "raise"
) -> FillMask:
    """Predicts words for the masked places of texts.

    If a text is too long for the model, each mask gets a window with as much text as fits on both sides.

    Example:
        >>> result = mlxbert.fill_mask(mlxbert.load(), "Tokyo is the largest city in [MASK].", top_k=3)
        >>> [(fill.token, fill.score) for fill in result.masks[0].fills]

    Args:
        model: A model with a masked-LM head.
        texts: One text, or any number of texts; each with at least one `[MASK]` (or the model's own mask token).
            Several masks of a text are filled independently: while one is filled, the others stay masked.
        top_k: Number of words per mask. Default: 5, or all targets. From 1 to 10,000,000.
        targets: Consider these words only. Scores stay probabilities over the whole vocabulary.
        text: Show the filled text for each word. Only for the first 49 masks of a text. Default: True.
        overflow: Overlong texts. window computes all of it in windows; truncate drops the end; error refuses the text.
            Default: `window`.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        InputError: A text has no mask, or is too long with `overflow="error"`.
        ArgumentError: `top_k`, `targets` or another argument has an invalid value.
    """
@overload
def fill_mask(
    model: Model, texts: Iterable[str | InputError], *, top_k: int | None = None, targets: Iterable[str] | None = None,
    text: bool = True, overflow: Literal["window", "truncate", "error"] = "window", batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise"] = "raise"
) -> Iterator[FillMask]: ...
@overload
def fill_mask(
    model: Model, texts: Iterable[str | InputError], *, top_k: int | None = None, targets: Iterable[str] | None = None,
    text: bool = True, overflow: Literal["window", "truncate", "error"] = "window", batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise", "return"]
) -> Iterator[FillMask | Failure]: ...

# from mlxbert.train.mine import mine as mine
def mine(
    model: Model, pairs: str | Path | Iterable[Any], *, negatives: int = 5, margin: float = 0.05, skip: int = 0,
    format: str | None = None, no_header: bool = False, encoding: str = "utf-8", text_column: str | None = None,
    pair_column: str | None = None, batch_tokens: int | None = None,
    on_progress: Callable[[int, int], None] | None = None
) -> list[Mined]:
    """Finds hard negatives for training embedders and rerankers: the most similar texts that do not belong to a query.

    The candidates are the positives of all queries. Their vectors are scaled to length 1, as in sentence-transformers,
    and compared by the similarity function in the model's files, as in `similarity`. A text that is nearly as similar
    as the positive is often an unlabelled positive: `margin` excludes it.

    Example:
        >>> pairs = [{"anchor": "a cat", "positive": "a kitten"}, {"anchor": "a dog", "positive": "a puppy"}]
        >>> mlxbert.mine(mlxbert.load(), pairs)[0].negatives

    Args:
        model: The model whose vectors are compared.
        pairs: Texts that belong together: files or records, as `finetune("embed", …)` takes them.
        negatives: Maximum number of negatives per query. Default: 5. From 1 to 10,000.
        margin: How much less similar negatives must be. Compared with the least similar positive of the query. Default:
            0.05. From -1,000 to 1,000.
        skip: Skip the N most similar texts. Default: 0. From 0 to 1,000,000.
        format: The format of the files, if their extensions do not name it.
        no_header: Whether the first row of a .csv or .tsv is data; its columns are then called `1`, `2`, …
        encoding: The encoding of text files.
        text_column: The column of the queries; guessed from names and values if `None`.
        pair_column: The column of the positives; guessed if `None`.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Returns:
        The negatives of each query, in the order of the queries; a repeated query has only one result.

    Raises:
        ArgumentError: An argument is invalid.
        InputError: The data are not pairs, or a pair is unusable.
    """

# from mlxbert.tasks.next_sentence import next_sentence as next_sentence
@overload
def next_sentence(
    model: Model, pairs: tuple[str, str], *, overflow: Literal["truncate", "error"] = "truncate",
    batch_tokens: int | None = None, usage: Usage | None = None, on_error: Literal["raise", "return"] = "raise"
) -> NextSentence:
    """Predicts for pairs of texts whether the second follows the first.

    Example:
        >>> mlxbert.next_sentence(mlxbert.load(), ("The cat was hungry.", "It went to the kitchen.")).is_next

    Args:
        model: A model with a next-sentence head.
        pairs: One pair, a tuple of two texts; or any number of pairs.
        overflow: Overlong texts. truncate drops the end (of a pair: of the longer text); error refuses the text.
            Default: `truncate`.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        One result for one pair; for several an iterator in their order, in constant memory.

    Raises:
        InputError: The input is not a pair of texts, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
@overload
def next_sentence(
    model: Model, pairs: Iterable[tuple[str, str] | InputError], *, overflow: Literal["truncate", "error"] = "truncate",
    batch_tokens: int | None = None, usage: Usage | None = None, on_error: Literal["raise"] = "raise"
) -> Iterator[NextSentence]: ...
@overload
def next_sentence(
    model: Model, pairs: Iterable[tuple[str, str] | InputError], *, overflow: Literal["truncate", "error"] = "truncate",
    batch_tokens: int | None = None, usage: Usage | None = None, on_error: Literal["raise", "return"]
) -> Iterator[NextSentence | Failure]: ...

# from mlxbert.explore.duplicates import paraphrase_mining as paraphrase_mining
def paraphrase_mining(
    model: Model | None, texts: Iterable[str], *, max_pairs: int = 500000, min_score: float = 0.0, vectors: Any = None,
    batch_tokens: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> list[SimilarPair]:
    """Finds the most similar pairs among many texts, most similar first. All pairs are compared, in blocks.

    Example:
        >>> pairs = mlxbert.paraphrase_mining(mlxbert.load(), ["It rains.", "Snow is cold.", "Rain falls."])
        >>> pairs[0].first, pairs[0].second  # (0, 2)

    Args:
        model: The model that computes the vectors; `None` if `vectors` are given.
        texts: The texts.
        max_pairs: Maximum number of pairs. Default: 500000. From 1 to 10,000,000.
        min_score: Smallest cosine of a pair. Default: 0.0. From -1 to 1.
        vectors: The vectors of the texts, (N, W), if they are computed already.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Raises:
        ArgumentError: An argument is invalid.
        InputError: A text is unusable.
    """

# from mlxbert.explore.projection import project as project
def project(
    model: Model | None, texts: Iterable[str], *, method: Literal["auto", "pca", "tsne"] = "auto", seed: int = 0,
    vectors: Any = None, batch_tokens: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> NDArray[np.float32]:
    """Places texts in two dimensions, so that similar texts are near each other.

    Example:
        >>> coordinates = mlxbert.project(mlxbert.load(), texts)  # (N, 2)

    Args:
        model: The model that computes the vectors; `None` if `vectors` are given.
        texts: The texts.
        method: How texts are placed. auto is tsne if openTSNE is installed, otherwise pca, which shows much less.
            Default: `auto`.
        seed: Seed of random numbers. Default: 0. From 0 to 4,294,967,295.
        vectors: The vectors of the texts, (N, W), if they are computed already.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Returns:
        The coordinates, (N, 2).

    Raises:
        ArgumentError: An argument is invalid.
        InputError: A text is unusable.
        MlxbertError: The package of the method is not installed.
    """

# from mlxbert.tasks.replaced import replaced as replaced
@overload
def replaced(  # type: ignore[overload-overlap]
    model: Model, texts: str, *, overflow: Literal["window", "truncate", "error"] = "window",
    batch_tokens: int | None = None, usage: Usage | None = None, on_error: Literal["raise", "return"] = "raise"
) -> Replaced:
    """Scores every token of a text by how likely it is to be a replacement.

    Windows overlap, and a token is scored in the window where it is furthest from the edge.

    Example:
        >>> model = mlxbert.load("google/electra-small-discriminator", task="replaced")
        >>> result = mlxbert.replaced(model, "The quick brown fox fake over the lazy dog.")
        >>> [token.token for token in result.tokens if token.replaced]

    Args:
        model: A model with a discriminator: ELECTRA (arXiv:2003.10555).
        texts: One text, or any number of texts.
        overflow: Overlong texts. window computes all of it in windows; truncate drops the end; error refuses the text.
            Default: `window`.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        InputError: The input is not a text, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
@overload
def replaced(
    model: Model, texts: Iterable[str | InputError], *, overflow: Literal["window", "truncate", "error"] = "window",
    batch_tokens: int | None = None, usage: Usage | None = None, on_error: Literal["raise"] = "raise"
) -> Iterator[Replaced]: ...
@overload
def replaced(
    model: Model, texts: Iterable[str | InputError], *, overflow: Literal["window", "truncate", "error"] = "window",
    batch_tokens: int | None = None, usage: Usage | None = None, on_error: Literal["raise", "return"]
) -> Iterator[Replaced | Failure]: ...

# from mlxbert.tasks.rerank import rerank as rerank
@overload
def rerank(
    model: Model, query: str, texts: Iterable[str | InputError], *,
    overflow: Literal["truncate", "window", "error"] = "truncate", top_k: int | None = None, prompt: str | None = None,
    batch_tokens: int | None = None, usage: Usage | None = None, on_error: Literal["raise"] = "raise"
) -> list[Reranked]:
    """Ranks texts by how well they answer a query, with a cross-encoder or a model for late interaction.

    A model for late interaction, such as ColBERT, compares the token vectors (see `maxsim`). A cross-encoder
    reads the query together with each text, which is slower and more accurate: usually only the best texts of a search
    are reranked. A text in windows gets the score of its best window; each window contains the whole query.

    Example:
        >>> model = mlxbert.load("cross-encoder/ms-marco-MiniLM-L6-v2", task="classify")
        >>> mlxbert.rerank(model, "Who wrote Emma?", ["Jane Austen did.", "It rains."])[0].text

    Args:
        model: A cross-encoder: a sequence classifier with one output, as sentence-transformers trains them; a
            Qwen3-Reranker; or a model for late interaction, which takes no windows.
        query: The query.
        texts: Any number of texts.
        overflow: Overlong texts. truncate drops the end of the query or the text, whichever is longer; window takes the
            score of the best window; error refuses the text. Default: `truncate`.
        top_k: Keep only the N best texts. From 1 to 10,000,000.
        prompt: Instruction for models that take one, such as Qwen3-Reranker.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        The texts, best first according to the logit; equally good texts are in the order of the input. Scores are
        probabilities, or any numbers, depending on the files of the model; they equal the scores of
        sentence-transformers' `CrossEncoder`, or MaxSim. Failures come last, and `top_k` drops none of them.

    Raises:
        ArgumentError: An argument has an invalid value.
        CheckpointError: The model gives several scores, or its files name a function that mlxbert does not know.
        InputError: A text is unusable, or the query is unusable (whatever `on_error` says).
    """
@overload
def rerank(
    model: Model, query: str, texts: Iterable[str | InputError], *,
    overflow: Literal["truncate", "window", "error"] = "truncate", top_k: int | None = None, prompt: str | None = None,
    batch_tokens: int | None = None, usage: Usage | None = None, on_error: Literal["raise", "return"]
) -> list[Reranked | Failure]: ...

# from mlxbert.explore.senses import senses as senses
def senses(
    model: Model, word: str, texts: Iterable[str | InputError], *, senses: int | None = None, mask: bool | None = None,
    layer: int = -1, top_k: int = 8, typical: int = 3, match_case: bool = False, batch_tokens: int | None = None
) -> Senses:
    """Finds the senses in which texts use a word, with typical lines of each and the words that could stand there.

    Example:
        >>> lines = ["The river bank was muddy.", "The bank raised its rates.", "She sat on the bank of the stream."]
        >>> mlxbert.senses(mlxbert.load(), "bank", lines, senses=2).senses[0].typical

    Args:
        model: Any model; one with a masked-LM head also finds the words that could stand there.
        word: The word, or several words in a row. Only whole words are found.
        texts: Any number of texts; those without the word cost nothing.
        senses: Number of senses. Default: the number whose groups are most distinct. From 1 to 100.
        mask: Put the mask in the place of the word. The vector then shows what could stand there. Default: if the model
            predicts words.
        layer: Layer to take word vectors from. 0 is the embeddings, 1 the first layer, -1 the last. Default: the last.
            From -1,000 to 1,000.
        top_k: Number of words for each sense that could stand there. Default: 8. From 1 to 10,000,000.
        typical: Number of typical lines for each sense. Default: 3. From 1 to 10,000,000.
        match_case: Distinguish upper and lower case in the word. Default: False.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.

    Raises:
        InputError: A text is unusable, or the word occurs too rarely.
        ArgumentError: An argument has an invalid value.
    """

# from mlxbert.tasks.similarity import similarity as similarity
@overload
def similarity(
    model: Model, query: str, texts: Iterable[str | InputError], *, top_k: int | None = None,
    query_prompt: str | None = None, query_prompt_name: str | None = None,
    overflow: Literal["truncate", "window", "error"] = "truncate", pooling: str | None = None,
    normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise"] = "raise"
) -> list[Similarity]:
    """Ranks texts by the similarity of their vectors to the vector of a query.

    Queries and texts become vectors as in `embed`. The score is the cosine, unless the model's files name the dot
    product, or the negative Euclidean or Manhattan distance; cosines do not depend on `normalize`. A model that makes
    sparse vectors, but no dense ones, compares these, by dot product. Without a prompt,
    the model's own prompts for queries and for documents are used, if it has them. With a `query_prompt`, `prompt` is
    put before the texts only. With a model for late interaction, such as ColBERT, the score is MaxSim (see `maxsim`).

    Example:
        >>> ranked = mlxbert.similarity(mlxbert.load(), "A man eats.", ["He has lunch.", "It rains."], top_k=1)
        >>> ranked[0].score, ranked[0].text

    Args:
        model: Any model; see `embed`.
        query: The query.
        texts: Any number of texts to rank.
        top_k: Keep only the N most similar texts. From 1 to 10,000,000.
        query_prompt: Text to put before the query, not before the texts.
        query_prompt_name: One of the model's own prompts, for the query only.
        overflow: Overlong texts. truncate drops the end; window averages the vectors of windows; error refuses the
            text. Default: `truncate`.
        pooling: How tokens become a vector. Join several with +: mean+max. Values: `cls`, `mean`, `max`,
            `mean_sqrt_len`, `weighted_mean`, `last_token`, `attention`. Default: the model's.
        normalize: Scale vectors to length 1. Default: the model's.
        dimensions: Keep only the first N values of each vector (Matryoshka). From 1 to 1,000,000.
        prompt: Text to put before each text.
        prompt_name: Name of one of the model's own prompts.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        The texts, most similar first; equally similar texts are in the order of the input. Equal texts have equal
        scores. Failures come last, and `top_k` drops none of them.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text is unusable, or the query is unusable (whatever `on_error` says).
    """
@overload
def similarity(
    model: Model, query: str, texts: Iterable[str | InputError], *, top_k: int | None = None,
    query_prompt: str | None = None, query_prompt_name: str | None = None,
    overflow: Literal["truncate", "window", "error"] = "truncate", pooling: str | None = None,
    normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise", "return"]
) -> list[Similarity | Failure]: ...

# from mlxbert.tasks.pairs import similarity_matrix as similarity_matrix
def similarity_matrix(
    model: Model, queries: Sequence[str], texts: Sequence[str] | None = None, *, query_prompt: str | None = None,
    query_prompt_name: str | None = None, overflow: Literal["truncate", "window", "error"] = "truncate",
    pooling: str | None = None, normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise", "return"] = "raise"
) -> NDArray[np.float32]:
    """Computes the similarity of every query to every text (see `similarity`).

    Example:
        >>> model = mlxbert.load()
        >>> cosines = mlxbert.similarity_matrix(model, ["A man eats.", "It rains."], ["He has lunch."])  # (2, 1)
        >>> cosines = mlxbert.similarity_matrix(model, ["A man eats.", "It rains."])  # (2, 2)

    Args:
        model: Any model; see `embed`.
        queries: N texts.
        texts: M texts to compare the queries with; `None` compares the queries with each other, all with the prompt of
            `embed` instead of a prompt for queries.
        on_error: `raise`; or `return` NaN for all scores of an unusable text. The log says why.
        query_prompt: Text to put before the query, not before the texts.
        query_prompt_name: One of the model's own prompts, for the query only.
        overflow: Overlong texts. truncate drops the end; window averages the vectors of windows; error refuses the
            text. Default: `truncate`.
        pooling: How tokens become a vector. Join several with +: mean+max. Values: `cls`, `mean`, `max`,
            `mean_sqrt_len`, `weighted_mean`, `last_token`, `attention`. Default: the model's.
        normalize: Scale vectors to length 1. Default: the model's.
        dimensions: Keep only the first N values of each vector (Matryoshka). From 1 to 1,000,000.
        prompt: Text to put before each text.
        prompt_name: Name of one of the model's own prompts.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.

    Returns:
        float32 (N, M).

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text is unusable.
    """

# from mlxbert.tasks.pairs import similarity_pairs as similarity_pairs
@overload
def similarity_pairs(
    model: Model, pairs: tuple[str, str], *, query_prompt: str | None = None, query_prompt_name: str | None = None,
    overflow: Literal["truncate", "window", "error"] = "truncate", pooling: str | None = None,
    normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise", "return"] = "raise"
) -> PairSimilarity:
    """Computes the similarity of the two texts of each pair; the first text is the query (see `similarity`).

    Example:
        >>> pairs = [("A man eats.", "He has lunch."), ("A man eats.", "It rains.")]
        >>> [result.score for result in mlxbert.similarity_pairs(mlxbert.load(), pairs)]

    Args:
        model: Any model; see `embed`.
        pairs: One pair, a tuple of two texts; or any number of pairs.
        query_prompt: Text to put before the query, not before the texts.
        query_prompt_name: One of the model's own prompts, for the query only.
        overflow: Overlong texts. truncate drops the end; window averages the vectors of windows; error refuses the
            text. Default: `truncate`.
        pooling: How tokens become a vector. Join several with +: mean+max. Values: `cls`, `mean`, `max`,
            `mean_sqrt_len`, `weighted_mean`, `last_token`, `attention`. Default: the model's.
        normalize: Scale vectors to length 1. Default: the model's.
        dimensions: Keep only the first N values of each vector (Matryoshka). From 1 to 1,000,000.
        prompt: Text to put before each text.
        prompt_name: Name of one of the model's own prompts.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        One result for one pair; for several an iterator in their order, in constant memory.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: The input is not a pair of texts, or is too long with `overflow="error"`.
    """
@overload
def similarity_pairs(
    model: Model, pairs: Iterable[tuple[str, str] | InputError], *, query_prompt: str | None = None,
    query_prompt_name: str | None = None, overflow: Literal["truncate", "window", "error"] = "truncate",
    pooling: str | None = None, normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise"] = "raise"
) -> Iterator[PairSimilarity]: ...
@overload
def similarity_pairs(
    model: Model, pairs: Iterable[tuple[str, str] | InputError], *, query_prompt: str | None = None,
    query_prompt_name: str | None = None, overflow: Literal["truncate", "window", "error"] = "truncate",
    pooling: str | None = None, normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, batch_tokens: int | None = None, usage: Usage | None = None,
    on_error: Literal["raise", "return"]
) -> Iterator[PairSimilarity | Failure]: ...

# from mlxbert.tasks.tag import tag as tag
@overload
def tag(  # type: ignore[overload-overlap]
    model: Model, texts: str | tuple[str, ...], *,
    aggregation: Literal["none", "simple", "first", "average", "max"] | None = None,
    labels: Iterable[str] | None = None, threshold: float | None = None, nested: bool = False,
    overflow: Literal["window", "truncate", "error"] = "window", batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise", "return"] = "raise"
) -> Tagged:
    """Finds entities in texts, or tags their words, with a token classifier, or entities of any types with GLiNER.

    Example:
        >>> model = mlxbert.load("dslim/bert-base-NER", task="tag")
        >>> result = mlxbert.tag(model, "Angela Merkel was born in Hamburg.")
        >>> [(entity.label, entity.text) for entity in result.entities]

    Without `aggregation`, the CRF decides the tag of a word if the model has one; otherwise the word gets the tag of
    its first token, as in training. Results are entities, or all words if the tags mark no entities (parts of speech).
    The values of `aggregation` are as in transformers: they leave out the tag `O` and do not use the CRF. `none`
    returns every token with its tag; `simple` joins neighbouring tokens of the same type; `first`, `average` and `max`
    join neighbouring words of the same type, and the tag of a word comes from its first token, the mean of its tokens,
    or its most certain token. Windows overlap, and the scores of a token come from the window where it is furthest from
    the edge.

    With `labels`, the model says for each span of words how well each label fits it. The best spans above `threshold`
    are the entities; they do not overlap, except with `nested`, where one may lie inside another. The score of a span
    can depend on all labels. Labels that would take more than half of an input are split into groups, each of which is
    computed with the whole text.

    Args:
        model: A model with a token classifier; with `labels`, a GLiNER model.
        texts: One text, or any number of texts. A text can also be a tuple of its words, or, among several texts, a
            list. The words are joined by spaces, and offsets count in the joined text.
        aggregation: How to join tokens into words. Values as in transformers; by default, words are tagged as in
            training. One of `none`, `simple`, `first`, `average`, `max`.
        labels: Types of entities to find. Needs a GLiNER model.
        threshold: Lowest probability of an entity. Of GLiNER models. Default: 0.5. From 0 to 1.
        nested: Also find entities inside others. Of GLiNER models. Default: False.
        overflow: Overlong texts. window computes all of it in windows; truncate drops the end; error refuses the text.
            Default: `window`.
        batch_tokens: Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro,
            16384 on Max and Ultra); 16384 on CUDA. From 1 to 10,000,000.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure for each item that cannot be used. Default: `raise`.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory. A longer text takes more
        memory only for its result and for a CRF, which needs a float per word and tag.

    Raises:
        InputError: The input is neither a text nor words, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
@overload
def tag(
    model: Model, texts: Iterable[str | tuple[str, ...] | InputError], *,
    aggregation: Literal["none", "simple", "first", "average", "max"] | None = None,
    labels: Iterable[str] | None = None, threshold: float | None = None, nested: bool = False,
    overflow: Literal["window", "truncate", "error"] = "window", batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise"] = "raise"
) -> Iterator[Tagged]: ...
@overload
def tag(
    model: Model, texts: Iterable[str | tuple[str, ...] | InputError], *,
    aggregation: Literal["none", "simple", "first", "average", "max"] | None = None,
    labels: Iterable[str] | None = None, threshold: float | None = None, nested: bool = False,
    overflow: Literal["window", "truncate", "error"] = "window", batch_tokens: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise", "return"]
) -> Iterator[Tagged | Failure]: ...

# from mlxbert.tasks.tokenize import tokenize as tokenize
@overload
def tokenize(  # type: ignore[overload-overlap]
    model: Model | Tokenizer, texts: str, *, pair: str | None = None, overflow: Literal["truncate", "error"] = "error",
    on_error: Literal["raise", "return"] = "raise"
) -> Tokens:
    """Splits texts into tokens and adds the special tokens.

    Example:
        >>> model = mlxbert.load()
        >>> result = mlxbert.tokenize(model, "Hello, playwrights!")
        >>> [token.token for token in result.tokens]
        >>> model.tokenizer.decode([token.id for token in result.tokens])

    Args:
        model: A model, or its tokenizer.
        texts: One text, or any number of texts.
        pair: A second text, in segment B.
        overflow: Overlong texts. truncate drops the end (of a pair: of the longer text); error refuses the text.
            Default: `error`.
        on_error: `raise`, or `return` a Failure in place of an unusable text.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        InputError: The input is not a text, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
@overload
def tokenize(
    model: Model | Tokenizer, texts: Iterable[str | InputError], *, pair: str | None = None,
    overflow: Literal["truncate", "error"] = "error", on_error: Literal["raise"] = "raise"
) -> Iterator[Tokens]: ...
@overload
def tokenize(
    model: Model | Tokenizer, texts: Iterable[str | InputError], *, pair: str | None = None,
    overflow: Literal["truncate", "error"] = "error", on_error: Literal["raise", "return"]
) -> Iterator[Tokens | Failure]: ...
# fmt: on
