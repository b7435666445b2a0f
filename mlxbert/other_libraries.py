"""Other libraries: mlxbert's equivalents for the names that their users look for, and how to install what is optional.

Names of transformers and sentence-transformers are looked up only if mlxbert does not have the name, so they never hide
one of mlxbert's own names.
"""

import difflib
import functools
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError, UnknownArgumentError, shown

_TOKENIZER = "mlxbert.load(…).tokenizer, or mlxbert.tokenize(model, texts)"
_LOAD = "mlxbert.load(name)"

# Attributes of a model and of the package.
ATTRIBUTES: Mapping[str, str] = {
    "encode": "mlxbert.embed(model, texts) gives vectors; model.tokenizer.encode(text) gives token ids",
    "encode_query": "mlxbert.embed(model, texts, kind='query')",
    "encode_document": "mlxbert.embed(model, texts, kind='document')",
    "predict": "mlxbert.classify(model, texts) gives classes, mlxbert.rerank(model, query, texts) scores",
    "rank": "mlxbert.rerank(model, query, texts)",
    "pipeline": f"model = {_LOAD}, then mlxbert.classify, tag, answer, fill_mask or embed(model, texts)",
    "fit": "mlxbert.finetune(task, train=…, output=…, model=name)",
    "train": "mlxbert.finetune(task, train=…, output=…, model=name)",
    "Trainer": "mlxbert.finetune(task, train=…, output=…, model=name)",
    "SentenceTransformer": f"{_LOAD}, then mlxbert.embed(model, texts)",
    "CrossEncoder": f"{_LOAD}, then mlxbert.rerank(model, query, texts)",
    "AutoModel": _LOAD,
    "AutoTokenizer": _TOKENIZER,
    "AutoModelForMaskedLM": f"{_LOAD}, then mlxbert.fill_mask(model, texts)",
    "AutoModelForQuestionAnswering": f"{_LOAD}, then mlxbert.answer(model, questions, context=…)",
    "AutoModelForSequenceClassification": f"{_LOAD}, then mlxbert.classify(model, texts)",
    "AutoModelForTokenClassification": f"{_LOAD}, then mlxbert.tag(model, texts)",
    "from_pretrained": _LOAD,
    "save_pretrained": "mlxbert.save(model, folder)",
    "cos_sim": "mlxbert.similarity_matrix(model, texts); of unit vectors, the cosines are a @ b.T",
    "semantic_search": "mlxbert.similarity(model, query, texts, top_k=…), or mlxbert.open_index(file)",
    "mine_hard_negatives": "mlxbert.mine(model, pairs)",
    "quantize_embeddings": "mlxbert.embed(model, texts, output_dtype='int8')",
    "get_sentence_embedding_dimension": "model.embedder.size",
    "max_seq_length": "model.embed_tokenizer.max_length",
    "to": "mlxbert.load(name, device=…, dtype=…)",
    "search": "mlxbert.open_index(file).search(query), or mlxbert.similarity(model, query, texts)",
    "half": "mlxbert.load(name, dtype='float16')",
    "quantize": "mlxbert.convert(name, folder, quantize=8), then mlxbert.load(folder)",
}

# Keyword arguments: their names in mlxbert (the first that the function has is suggested), or a sentence.
ARGUMENTS: Mapping[str, tuple[str, ...] | str] = {
    "aggregation_strategy": ("aggregation",),
    "batch_size": ("batch_tokens",),
    "cache_dir": "set the environment variable HF_HOME to the folder of the cache",
    "candidate_labels": ("labels",),
    "convert_to_numpy": "vectors are numpy arrays",
    "convert_to_tensor": "vectors are numpy arrays; torch.from_numpy converts them",
    "doc_stride": ("stride",),
    "eval_dataset": ("valid",),
    "hypothesis_template": ("hypothesis",),
    "inputs": ("texts", "questions", "pairs"),
    "learning_rate": ("lr",),
    "local_files_only": ("offline",),
    "max_answer_len": ("max_words",),
    "max_seq_len": ("max_length",),
    "max_seq_length": ("max_length",),
    "model_name": ("source", "model"),
    "model_name_or_path": ("source", "model"),
    "multi_label": ("multi",),
    "normalize_embeddings": ("normalize",),
    "num_train_epochs": ("epochs",),
    "output_dir": ("output",),
    "padding": "mlxbert always pads the texts of a batch as needed",
    "per_device_train_batch_size": ("batch_size",),
    "precision": ("output_dtype",),
    "pretrained_model_name_or_path": ("source", "model"),
    "question": ("questions",),
    "return_all_scores": "the result has the scores of all classes, unless top_k limits their number",
    "return_tensors": "results hold numpy arrays",
    "sentences": ("texts",),
    "show_progress_bar": ("on_progress",),
    "token": "set the environment variable HF_TOKEN to the token",
    "torch_dtype": ("dtype",),
    "train_dataset": ("train",),
    "truncate_dim": ("dimensions",),
    "truncation": ("overflow",),
    "trust_remote_code": "mlxbert never runs the code of a model",
    "warmup_ratio": ("warmup",),
}

# Values: the tasks of transformers' pipelines.
VALUES: Mapping[str, str] = {
    "feature-extraction": "embed", "ner": "tag", "question-answering": "answer", "sentence-similarity": "embed",
    "sentiment-analysis": "classify", "text-classification": "classify", "text-ranking": "rerank",
    "token-classification": "tag", "zero-shot-classification": "classify",
}  # fmt: skip


def instead_of(name: str, known: tuple[str, ...], inside: object = None) -> str:
    """Returns the end of a message about an attribute that does not exist: what is probably meant, or nothing.

    Args:
        known: The names that exist.
        inside: An object whose fields may hold objects that have the attribute.
    """
    if name in ATTRIBUTES:
        return f"; in mlxbert: {ATTRIBUTES[name]}"
    path = _path_to(name, inside)
    near = [f".{path}"] if path else _near(name, known)
    return f"; did you mean {near[0]}?" if near else ""


@functools.lru_cache  # programs ask every result for an attribute that only some kinds of results have
def _near(name: str, known: tuple[str, ...]) -> list[str]:
    return [] if name.startswith("_") else difflib.get_close_matches(name, known, n=1, cutoff=0.7)


@functools.cache
def names_of(kind: type) -> tuple[str, ...]:
    """Returns the names of the attributes of a dataclass's instances."""
    return (*dir(kind), *getattr(kind, "__dataclass_fields__", ()))


def _path_to(name: str, value: object) -> str:
    """Returns where an object, or the first object of a list in it, has an attribute; `top` is that first object."""
    for field, held in getattr(value, "__dict__", {}).items():
        several = isinstance(held, tuple) and len(held) > 0
        place, held = (f"{field}[0]", held[0]) if several else (field, held)
        if field == name or (several and name == "top"):
            return place if name == "top" else name
        if several and (path := _path_to(name, held)):
            return f"{place}.{path}"
    return ""


def not_one_of(name: str, value: object, choices: Iterable[object]) -> ArgumentError:
    """Returns the error for a value that is not among the choices; suggests the choice that is probably meant."""
    names = [str(choice) for choice in choices]
    text = str(value) if isinstance(value, str) else ""
    near = [VALUES[text]] if VALUES.get(text) in names else difflib.get_close_matches(text, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else None
    return ArgumentError(f"`{name}` is {shown(value)}, expected one of {', '.join(names)}", hint=hint)


def no_argument(name: str, known: Iterable[str], message: str) -> UnknownArgumentError:
    """Returns the error for an unknown argument; suggests the known argument that is probably meant."""
    known, instead = sorted(known), ARGUMENTS.get(name, ())
    if isinstance(instead, str):
        return UnknownArgumentError(message, hint=instead)
    near = [other for other in instead if other in known] or difflib.get_close_matches(name, known, n=1)
    return UnknownArgumentError(message, hint=f"did you mean {near[0]}?" if near else None)


def checks_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function reject unknown keyword arguments; a function with `**options` is not checked here."""
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        if not takes_any:
            for name in options.keys() - parameters.keys():
                raise no_argument(name, parameters, f"{function.__name__} has no argument {name!r}")
        return function(*args, **options)

    checked.__module__ = "mlxbert"  # pickle looks it up there
    return checked


def pip_install(arguments: str) -> str:
    """Returns the command for `pip install` with these arguments in the environment of this Python.

    Not every environment has a pip: pipx hides its own, and those of uv and of the Homebrew formula have none.
    """
    folder = Path(sys.prefix)
    if (folder / "pipx_metadata.json").is_file():
        return f"pipx runpip {folder.name} install {arguments}"
    if importlib.util.find_spec("pip") is not None or sys.prefix == sys.base_prefix:
        return f"pip install {arguments}"
    here, settings = shlex.quote(sys.prefix), folder / "pyvenv.cfg"
    if settings.is_file() and re.search("^uv = ", settings.read_text(encoding="utf-8"), re.MULTILINE):
        return f"uv pip install --python {here} {arguments}"
    python = getattr(sys, "_base_executable", sys.executable)  # that of the Python which made the environment
    return f"{shlex.quote(python)} -m pip --python {here} install {arguments}"


def install_command(extra: str) -> str:
    """Returns a pip command for an extra of mlxbert that names its packages, such as `pip install "mcp<3,>=2.3"`.

    It works in every folder and with an mlxbert that no package index has, whereas `pip install ".[mcp]"` works in a
    clone only.
    """
    return pip_install(required_packages(extra))


def required_packages(extra: str) -> str:
    """Returns the packages of an extra as arguments of pip, such as `"mcp<3,>=2.3"`; if unknown, the extra itself."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        required = requires("mlxbert") or []
    except PackageNotFoundError:  # the source was copied, not installed
        required = []
    condition = re.compile(rf"""extra == ['"]{extra}['"]""")
    packages = [name.partition(";")[0].strip() for name in required if condition.search(name)]
    return " ".join(f'"{name}"' for name in packages or [f"mlxbert[{extra}]"])
