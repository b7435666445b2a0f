"""BERT encoders on Apple's MLX: embeddings, fill-mask, classification, fine-tuning, and the numbers of `transformers`.

```python
import mlxbert

model = mlxbert.load("builtin")
print(mlxbert.fill_mask(model, "Tokyo is the largest city in [MASK].").masks[0].fills[0].token)
```

Importing the package does nothing; what is used is imported when it is used.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mlxbert.errors import (
        ArgumentError,
        ChangedError,
        CheckpointError,
        ConfigError,
        DeviceError,
        DivergedError,
        HubError,
        InputError,
        MissingHeadError,
        MlxbertError,
        ThreadError,
        TokenizerError,
    )
    from mlxbert.folders.convert import convert
    from mlxbert.folders.inspect import inspect
    from mlxbert.folders.inspection import Inspection
    from mlxbert.folders.results import Conversion, Difference, Verification
    from mlxbert.folders.save import save
    from mlxbert.folders.verify import verify
    from mlxbert.labels import Labels
    from mlxbert.model import Model, load, new_model
    from mlxbert.pretraining.distill import distill
    from mlxbert.pretraining.evaluate import WordEvaluation, evaluate_words
    from mlxbert.pretraining.pretrain import pretrain
    from mlxbert.pretraining.vocabulary import Vocabulary, vocabulary
    from mlxbert.results import (
        Answer,
        Classification,
        Embedding,
        Entity,
        Failure,
        Fill,
        FillMask,
        Label,
        Mask,
        NextSentence,
        PairSimilarity,
        Regression,
        Replaced,
        ReplacedToken,
        Reranked,
        Similarity,
        Span,
        Tagged,
        Token,
        Tokens,
    )
    from mlxbert.tasks.answer import answer
    from mlxbert.tasks.classify import classify
    from mlxbert.tasks.embed import embed, embed_stream
    from mlxbert.tasks.fill_mask import fill_mask
    from mlxbert.tasks.mine import Mined, mine
    from mlxbert.tasks.next_sentence import next_sentence
    from mlxbert.tasks.pairs import similarity_matrix, similarity_pairs
    from mlxbert.tasks.replaced import replaced
    from mlxbert.tasks.rerank import rerank
    from mlxbert.tasks.similarity import similarity
    from mlxbert.tasks.tag import tag
    from mlxbert.tasks.tokenize import tokenize
    from mlxbert.text.batch import Usage
    from mlxbert.text.tokenizer import Tokenizer
    from mlxbert.training.evaluate import evaluate
    from mlxbert.training.events import Evaluated, Event, Finished, Saved, Started, Step
    from mlxbert.training.finetune import finetune
    from mlxbert.training.objective import Example, Objective, TrainBatch
    from mlxbert.training.scores.search import evaluate_reranking, evaluate_search
    from mlxbert.training.scores.summary import Evaluation

_HOMES = {
    "mlxbert.labels": ("Labels",),
    "mlxbert.text.batch": ("Usage",),
    "mlxbert.text.tokenizer": ("Tokenizer",),
    "mlxbert.folders.convert": ("convert",),
    "mlxbert.folders.inspect": ("inspect",),
    "mlxbert.folders.inspection": ("Inspection",),
    "mlxbert.folders.results": ("Conversion", "Difference", "Verification"),
    "mlxbert.folders.save": ("save",),
    "mlxbert.folders.verify": ("verify",),
    "mlxbert.errors": (
        "ArgumentError",
        "ChangedError",
        "CheckpointError",
        "ConfigError",
        "DeviceError",
        "DivergedError",
        "HubError",
        "InputError",
        "MissingHeadError",
        "MlxbertError",
        "ThreadError",
        "TokenizerError",
    ),
    "mlxbert.model": ("Model", "load", "new_model"),
    "mlxbert.pretraining.vocabulary": ("Vocabulary", "vocabulary"),
    "mlxbert.results": (
        *("Answer", "Classification", "Embedding", "Entity", "Failure", "Fill", "FillMask", "Label", "Mask"),
        *("NextSentence", "PairSimilarity", "Regression", "Replaced", "ReplacedToken", "Reranked"),
        *("Similarity", "Span", "Tagged", "Token", "Tokens"),
    ),
    "mlxbert.pretraining.distill": ("distill",),
    "mlxbert.pretraining.evaluate": ("WordEvaluation", "evaluate_words"),
    "mlxbert.pretraining.pretrain": ("pretrain",),
    "mlxbert.tasks.answer": ("answer",),
    "mlxbert.tasks.classify": ("classify",),
    "mlxbert.tasks.embed": ("embed", "embed_stream"),
    "mlxbert.tasks.fill_mask": ("fill_mask",),
    "mlxbert.tasks.next_sentence": ("next_sentence",),
    "mlxbert.tasks.pairs": ("similarity_matrix", "similarity_pairs"),
    "mlxbert.tasks.replaced": ("replaced",),
    "mlxbert.tasks.mine": ("Mined", "mine"),
    "mlxbert.tasks.rerank": ("rerank",),
    "mlxbert.tasks.similarity": ("similarity",),
    "mlxbert.tasks.tag": ("tag",),
    "mlxbert.tasks.tokenize": ("tokenize",),
    "mlxbert.training.evaluate": ("evaluate",),
    "mlxbert.training.events": ("Evaluated", "Event", "Finished", "Saved", "Started", "Step"),
    "mlxbert.training.finetune": ("finetune",),
    "mlxbert.training.objective": ("Example", "Objective", "TrainBatch"),
    "mlxbert.training.scores.search": ("evaluate_reranking", "evaluate_search"),
    "mlxbert.training.scores.summary": ("Evaluation",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Answer",
    "ArgumentError",
    "ChangedError",
    "CheckpointError",
    "Classification",
    "ConfigError",
    "Conversion",
    "DeviceError",
    "Difference",
    "DivergedError",
    "Embedding",
    "Entity",
    "Evaluated",
    "Evaluation",
    "Event",
    "Example",
    "Failure",
    "Fill",
    "FillMask",
    "Finished",
    "HubError",
    "InputError",
    "Inspection",
    "Label",
    "Labels",
    "Mask",
    "Mined",
    "MissingHeadError",
    "MlxbertError",
    "Model",
    "NextSentence",
    "Objective",
    "PairSimilarity",
    "Regression",
    "Replaced",
    "ReplacedToken",
    "Reranked",
    "Saved",
    "Similarity",
    "Span",
    "Started",
    "Step",
    "Tagged",
    "ThreadError",
    "Token",
    "Tokenizer",
    "TokenizerError",
    "Tokens",
    "TrainBatch",
    "Usage",
    "Verification",
    "Vocabulary",
    "WordEvaluation",
    "__version__",
    "answer",
    "classify",
    "convert",
    "distill",
    "embed",
    "embed_stream",
    "evaluate",
    "evaluate_reranking",
    "evaluate_search",
    "evaluate_words",
    "fill_mask",
    "finetune",
    "inspect",
    "load",
    "mine",
    "new_model",
    "next_sentence",
    "pretrain",
    "replaced",
    "rerank",
    "save",
    "similarity",
    "similarity_matrix",
    "similarity_pairs",
    "tag",
    "tokenize",
    "verify",
    "vocabulary",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mlxbert' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
