"""The public names: the only list of them, read by type checkers and editors, and by `__init__.py`."""

from mlxbert.errors import (
    ArgumentError as ArgumentError,
    ChangedError as ChangedError,
)
from mlxbert.errors import (
    CheckpointError as CheckpointError,
)
from mlxbert.errors import (
    ConfigError as ConfigError,
)
from mlxbert.errors import (
    DeviceError as DeviceError,
)
from mlxbert.errors import (
    DivergedError as DivergedError,
)
from mlxbert.errors import (
    HubError as HubError,
)
from mlxbert.errors import (
    InputError as InputError,
)
from mlxbert.errors import (
    MissingHeadError as MissingHeadError,
)
from mlxbert.errors import (
    MlxbertError as MlxbertError,
)
from mlxbert.errors import (
    ThreadError as ThreadError,
)
from mlxbert.errors import (
    TokenizerError as TokenizerError,
)
from mlxbert.folders.convert import convert as convert
from mlxbert.folders.inspect import inspect as inspect
from mlxbert.folders.inspection import Inspection as Inspection
from mlxbert.folders.results import Conversion as Conversion
from mlxbert.folders.results import Difference as Difference
from mlxbert.folders.results import Verification as Verification
from mlxbert.folders.save import save as save
from mlxbert.folders.verify import verify as verify
from mlxbert.labels import Labels as Labels
from mlxbert.model import Model as Model
from mlxbert.model import load as load
from mlxbert.model import new_model as new_model
from mlxbert.pretraining.distill import distill as distill
from mlxbert.pretraining.evaluate import WordEvaluation as WordEvaluation
from mlxbert.pretraining.evaluate import evaluate_words as evaluate_words
from mlxbert.pretraining.pretrain import pretrain as pretrain
from mlxbert.pretraining.vocabulary import Vocabulary as Vocabulary
from mlxbert.pretraining.vocabulary import vocabulary as vocabulary
from mlxbert.results import (
    Answer as Answer,
)
from mlxbert.results import (
    Classification as Classification,
)
from mlxbert.results import (
    Embedding as Embedding,
)
from mlxbert.results import (
    Entity as Entity,
)
from mlxbert.results import (
    Failure as Failure,
)
from mlxbert.results import (
    Fill as Fill,
)
from mlxbert.results import (
    FillMask as FillMask,
)
from mlxbert.results import (
    Label as Label,
)
from mlxbert.results import (
    Mask as Mask,
)
from mlxbert.results import (
    NextSentence as NextSentence,
)
from mlxbert.results import (
    PairSimilarity as PairSimilarity,
)
from mlxbert.results import (
    Regression as Regression,
)
from mlxbert.results import (
    Replaced as Replaced,
)
from mlxbert.results import (
    ReplacedToken as ReplacedToken,
)
from mlxbert.results import (
    Reranked as Reranked,
)
from mlxbert.results import (
    Similarity as Similarity,
)
from mlxbert.results import (
    Span as Span,
)
from mlxbert.results import (
    Tagged as Tagged,
)
from mlxbert.results import (
    Token as Token,
)
from mlxbert.results import (
    Tokens as Tokens,
)
from mlxbert.tasks.answer import answer as answer
from mlxbert.tasks.classify import classify as classify
from mlxbert.tasks.embed import embed as embed
from mlxbert.tasks.embed import embed_stream as embed_stream
from mlxbert.tasks.fill_mask import fill_mask as fill_mask
from mlxbert.tasks.mine import Mined as Mined
from mlxbert.tasks.mine import mine as mine
from mlxbert.tasks.next_sentence import next_sentence as next_sentence
from mlxbert.tasks.pairs import similarity_matrix as similarity_matrix
from mlxbert.tasks.pairs import similarity_pairs as similarity_pairs
from mlxbert.tasks.replaced import replaced as replaced
from mlxbert.tasks.rerank import rerank as rerank
from mlxbert.tasks.similarity import similarity as similarity
from mlxbert.tasks.tag import tag as tag
from mlxbert.tasks.tokenize import tokenize as tokenize
from mlxbert.text.batch import Usage as Usage
from mlxbert.text.tokenizer import Tokenizer as Tokenizer
from mlxbert.training.evaluate import evaluate as evaluate
from mlxbert.training.events import (
    Evaluated as Evaluated,
)
from mlxbert.training.events import (
    Event as Event,
)
from mlxbert.training.events import (
    Finished as Finished,
)
from mlxbert.training.events import (
    Saved as Saved,
)
from mlxbert.training.events import (
    Started as Started,
)
from mlxbert.training.events import (
    Step as Step,
)
from mlxbert.training.finetune import finetune as finetune
from mlxbert.training.objective import Example as Example
from mlxbert.training.objective import Objective as Objective
from mlxbert.training.objective import TrainBatch as TrainBatch
from mlxbert.training.scores.search import evaluate_reranking as evaluate_reranking
from mlxbert.training.scores.search import evaluate_search as evaluate_search
from mlxbert.training.scores.summary import Evaluation as Evaluation
from mlxbert.version import __version__ as __version__
