"""The public names: the only list of them, read by type checkers and editors, and by `__init__.py`."""

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
from mlxbert.folders.convert import convert as convert
from mlxbert.folders.inspect import inspect as inspect
from mlxbert.folders.inspection import Inspection as Inspection
from mlxbert.folders.results import Conversion as Conversion, Difference as Difference, Verification as Verification
from mlxbert.folders.save import save as save
from mlxbert.folders.verify import verify as verify
from mlxbert.labels.labels import Labels as Labels
from mlxbert.model import Model as Model, load as load, new_model as new_model
from mlxbert.pretraining.distill import distill as distill
from mlxbert.pretraining.evaluate import WordEvaluation as WordEvaluation, evaluate_words as evaluate_words
from mlxbert.pretraining.pretrain import pretrain as pretrain
from mlxbert.pretraining.vocabulary import Vocabulary as Vocabulary, vocabulary as vocabulary
from mlxbert.results.answer import Answer as Answer, Span as Span
from mlxbert.results.attention import Attention as Attention
from mlxbert.results.classify import Classification as Classification, Label as Label, Regression as Regression
from mlxbert.results.embed import Embedding as Embedding, Words as Words, WordVector as WordVector
from mlxbert.results.fill_mask import Fill as Fill, FillMask as FillMask, Mask as Mask
from mlxbert.results.hit import Hit as Hit
from mlxbert.results.related import (
    Mined as Mined,
    NextSentence as NextSentence,
    PairSimilarity as PairSimilarity,
    Reranked as Reranked,
    Similarity as Similarity,
)
from mlxbert.results.result import Failure as Failure
from mlxbert.results.tag import Entity as Entity, Tagged as Tagged
from mlxbert.results.tokens import (
    Replaced as Replaced,
    ReplacedToken as ReplacedToken,
    Token as Token,
    Tokens as Tokens,
)
from mlxbert.search.index import Index as Index, Passage as Passage, open_index as open_index
from mlxbert.serve.engine import Engine as Engine
from mlxbert.serve.options import EngineOptions as EngineOptions
from mlxbert.serve.queue import Answered as Answered
from mlxbert.tasks.answer import answer as answer
from mlxbert.tasks.attention import attention as attention
from mlxbert.tasks.classify import classify as classify
from mlxbert.tasks.embed import embed as embed, embed_stream as embed_stream
from mlxbert.tasks.embed_words import embed_words as embed_words
from mlxbert.tasks.fill_mask import fill_mask as fill_mask
from mlxbert.tasks.mine import mine as mine
from mlxbert.tasks.next_sentence import next_sentence as next_sentence
from mlxbert.tasks.pairs import similarity_matrix as similarity_matrix, similarity_pairs as similarity_pairs
from mlxbert.tasks.replaced import replaced as replaced
from mlxbert.tasks.rerank import rerank as rerank
from mlxbert.tasks.similarity import similarity as similarity
from mlxbert.tasks.tag import tag as tag
from mlxbert.tasks.tokenize import tokenize as tokenize
from mlxbert.text.tokenizer import Tokenizer as Tokenizer
from mlxbert.text.usage import Usage as Usage
from mlxbert.training.evaluate import evaluate as evaluate
from mlxbert.training.finetune import finetune as finetune
from mlxbert.training.loop.events import (
    Evaluated as Evaluated,
    Event as Event,
    Finished as Finished,
    Saved as Saved,
    Started as Started,
    Step as Step,
    TrainingEvents as TrainingEvents,
)
from mlxbert.training.objectives.objective import Example as Example, Objective as Objective, TrainBatch as TrainBatch
from mlxbert.training.scores.search import evaluate_reranking as evaluate_reranking, evaluate_search as evaluate_search
from mlxbert.training.scores.summary import Evaluation as Evaluation
from mlxbert.version import __version__ as __version__
from mlxbert.weights.source import ModelRef as ModelRef
