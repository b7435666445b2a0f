"""Classes for `ray.data.Dataset.map_batches`: each instance has a model, and adds columns with results to a batch.

A model belongs to the thread that loaded it, but Ray creates an actor on one thread and calls it on another. So each
instance has a thread of its own. Python starts it, unlike those of Ray, and so it ends without an abort (see
`clear_when_thread_ends`).

Shapes: D values of a vector.
"""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.other_libraries import install_command
from mlxbert.readers.parquet import column_values, is_text, problem_of
from mlxbert.readers.parsing import Item, ReadOptions
from mlxbert.readers.stream import RecordSource, RecordStream
from mlxbert.results.embed import stack_vectors
from mlxbert.results.json import plain
from mlxbert.results.result import Failure
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.weights.model_source import BUILTIN, ModelRef


def require(package: str, what: str) -> None:
    """Raises an error with the command that installs Ray and pyarrow if this one of them is missing."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MlxbertError(f"{what} needs {package}, which is not installed", hint=install_command("ray"))


class _TextColumns(ABC):
    """Loads a model, and computes a task for the texts in one or two columns of tables."""

    task: ClassVar[str]

    def __init__(self, model: str | Path | ModelRef = BUILTIN, *, text: str = "text", **options: Any) -> None:
        self._load(model, (text,), options)

    def _load(self, model: str | Path | ModelRef, texts: Sequence[str], options: Mapping[str, Any]) -> None:
        require("pyarrow", type(self).__name__)
        self.texts = tuple(texts)
        self._options: Any = CATALOGUE[self.task].read_options(options)
        self._thread = ThreadPoolExecutor(1, "mlxbert-ray")
        if (count := _assigned_cpus()) is not None:
            os.environ["RAYON_NUM_THREADS"] = str(count)  # the threads of tokenizers
        import pyarrow as pa

        entry = CATALOGUE[self.task]
        ref = model if isinstance(model, ModelRef) else ModelRef(model)
        self.model = self._thread.submit(entry.load, ref, self._options).result()
        if count is not None:
            from mlxbert.nn.ops import backend

            backend().limit_cores(count)
        self._task: Any = self._thread.submit(entry.make, self.model, self._options).result()
        fields = [*self._fields(), ("truncated", pa.bool_()), ("error", pa.string())]
        self.schema = pa.schema(fields)  # the columns with the results; `error` is null unless the row failed

    def __call__(self, batch: Any) -> Any:
        """Returns a batch as a table of pyarrow with further columns, those of `schema`.

        Args:
            batch: A table of pyarrow, or a dict of one-dimensional NumPy arrays.
        """
        import pyarrow as pa

        try:
            table = batch if isinstance(batch, pa.Table) else pa.table(dict(batch))
        except (TypeError, ValueError, pa.ArrowException) as problem:
            raise ArgumentError(
                f"`batch` is a {type(batch).__name__} that is not a table of Arrow ({problem})",
                hint='pass `batch_format="pyarrow"` to map_batches',
            ) from None
        if taken := {*self.schema.names} & {*table.schema.names}:
            raise ArgumentError(f"the batch already has a column {min(taken)!r}", hint="rename or drop the column")
        for field, column in zip(self.schema, self.compute(table).columns, strict=True):
            table = table.append_column(field, column)
        return table

    def compute(self, table: Any, file: str = "", first: int | None = None, *, strict: bool = False) -> Any:
        """Returns a table with the results of the rows of a table, without its own columns.

        Args:
            first: The number of the first row in errors, from 1; `None` if errors name no rows.
            strict: Whether an unusable row is an error.
        """
        return self._thread.submit(self._compute, table, file, first, strict).result()

    def _compute(self, table: Any, file: str, first: int | None, strict: bool) -> Any:
        import pyarrow as pa

        wanted = ReadOptions(self.texts, keep=())
        wanted.columns(file or "batch", distinct_names(table.schema))
        for name in self.texts:
            check_texts(file or "batch", table.schema.field(name))
        source = RecordSource(file, _items(table, self.texts, first), wanted=wanted, value="column", is_file=bool(file))
        stream = RecordStream([source], strict=strict)
        results = [
            stream.checked(record, result)
            for record, result in stream.with_results(self._task.run(stream, "return", early=False))
        ]
        columns = self._columns(results)
        columns["truncated"] = [getattr(result, "truncated", None) for result in results]
        columns["error"] = [_reason(result.error) if isinstance(result, Failure) else None for result in results]
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    @abstractmethod
    def _fields(self) -> list[tuple[str, Any]]:
        """Returns the names and the types of the columns that only this task has."""

    @abstractmethod
    def _columns(self, results: Sequence[Any]) -> dict[str, Any]:
        """Returns the values of these columns; results may be failures, which have null."""


def distinct_names(schema: Any) -> list[str]:
    """Returns the names of the columns that Arrow finds by their names: those that no other column has."""
    return [name for name in schema.names if schema.get_field_index(name) >= 0]


def check_texts(source: str, field: Any) -> None:
    """Raises InputError unless a column of Arrow holds strings, or nothing but null."""
    import pyarrow as pa

    if not is_text(field.type) and not pa.types.is_null(field.type):
        raise InputError(f"{source}: column {field.name!r} has the type {field.type}, expected strings")


def _assigned_cpus() -> int | None:
    """Returns the number of CPUs that Ray gives to this task or actor; `None` outside of Ray's workers."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    return max(int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)), 1)


def _items(table: Any, names: Sequence[str], first: int | None) -> Iterator[Item]:
    columns = [column_values(table.column(name)) for name in names]
    for number, row in enumerate(zip(*columns, strict=True), first or 0):
        values = dict(zip(names, row, strict=True))
        yield "" if first is None else f"row {number}", problem_of(values) or values


def _reason(error: MlxbertError) -> str:
    return error.message.encode("utf-8", "backslashreplace").decode()  # a message may quote half of a surrogate pair


def _listed(results: Sequence[Any], field: str) -> list[Any]:
    """Returns the lists in a field of the results as JSON; null for failures."""
    return [plain(getattr(result, field, None)) for result in results]


class BatchEmbedder(_TextColumns):
    """Adds the vectors of texts: `embedding`, a list of D numbers, `tokens`, `truncated` and `error`.

    The vector of a row that failed is NaN, or 0 in int8.

    Example:
        >>> actors = ray.data.ActorPoolStrategy(size=2)
        >>> dataset.map_batches(mlxbert.scale.Embedder, batch_format="pyarrow", compute=actors)

    Args:
        model: The name or folder of a model, or a `ModelRef`, as for `mlxbert.load`.
        text: The column with the texts.
        options: The options of `mlxbert.embed`, such as `prompt_name="query"`.
    """

    task = "embed"

    def _fields(self) -> list[tuple[str, Any]]:
        import pyarrow as pa

        from mlxbert.tasks.vector_dtype import stored_width

        dtype = self._options.output_dtype
        self._width, self._dtype = stored_width(dtype, self._task.embedder.size), "<f4" if dtype == "float32" else "|i1"
        number = pa.float32() if dtype == "float32" else pa.int8()
        return [("embedding", pa.list_(number, self._width)), ("tokens", pa.int32())]

    def _columns(self, results: Sequence[Any]) -> dict[str, Any]:
        import pyarrow as pa

        vectors = stack_vectors(results, self._width, self._dtype).reshape(-1)
        kind = self.schema.field("embedding").type
        return {
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors), type=kind),
            "tokens": [getattr(result, "tokens", None) for result in results],
        }


class Classifier(_TextColumns):
    """Adds the classes of texts: `label` and `score` of the best one, `labels` with all, `truncated` and `error`.

    A model that computes numbers adds `value`, the first one, and `values` instead of these labels.

    Args:
        model: The name or folder of a model, or a `ModelRef`, as for `mlxbert.load`.
        text: The column with the texts.
        pair: The column with the second texts of pairs.
        options: The options of `mlxbert.classify`, such as `labels=["sports", "politics"]`.
    """

    task = "classify"

    def __init__(
        self, model: str | Path | ModelRef = BUILTIN, *, text: str = "text", pair: str | None = None, **options: Any
    ) -> None:
        self._load(model, (text,) if pair is None else (text, pair), options)

    def _fields(self) -> list[tuple[str, Any]]:
        import pyarrow as pa

        from mlxbert.labels.labels import REGRESSION

        named = [("label", pa.string())]
        labels = self.model.labels
        if labels is not None and labels.problem_type == REGRESSION and self._options.labels is None:
            return [("value", pa.float64()), ("values", pa.list_(pa.struct([*named, ("value", pa.float64())])))]
        scored = [*named, ("score", pa.float64())]
        return [*scored, ("labels", pa.list_(pa.struct([*scored, ("chosen", pa.bool_())])))]

    def _columns(self, results: Sequence[Any]) -> dict[str, Any]:
        if "value" in self.schema.names:
            values = [getattr(result, "values", ()) for result in results]
            return {
                "value": [getattr(result, "value", None) for result in results],
                "values": [[{"label": name, "value": value} for name, value in row] or None for row in values],
            }
        best = [next(iter(getattr(result, "labels", ())), None) for result in results]
        return {
            "label": [None if label is None else label.label for label in best],
            "score": [None if label is None else label.score for label in best],
            "labels": _listed(results, "labels"),
        }


class Tagger(_TextColumns):
    """Adds the entities of texts: `entities`, each with label, start, end, text and score, `truncated` and `error`.

    Args:
        model: The name or folder of a model, or a `ModelRef`, as for `mlxbert.load`.
        text: The column with the texts.
        options: The options of `mlxbert.tag`.
    """

    task = "tag"

    def _fields(self) -> list[tuple[str, Any]]:
        import pyarrow as pa

        place = [("label", pa.string()), ("start", pa.int32()), ("end", pa.int32())]
        return [("entities", pa.list_(pa.struct([*place, ("text", pa.string()), ("score", pa.float64())])))]

    def _columns(self, results: Sequence[Any]) -> dict[str, Any]:
        return {"entities": _listed(results, "entities")}


class Reranker(_TextColumns):
    """Adds the scores of pairs of a query and a text: `score`, `logit`, `truncated` and `error`.

    Args:
        model: The name or folder of a cross-encoder, or a `ModelRef`, as for `mlxbert.load`.
        query: The column with the queries.
        text: The column with the texts.
        options: The options of `mlxbert.rerank`. Without `top_k`, because each row gets a score.
    """

    task = "rerank"

    def __init__(
        self, model: str | Path | ModelRef = BUILTIN, *, query: str = "query", text: str = "text", **options: Any
    ) -> None:
        if options.get("top_k") is not None:
            raise ArgumentError("`top_k` works only with mlxbert.rerank", hint="sort and filter the rows by score")
        self._load(model, (query, text), options)

    def _fields(self) -> list[tuple[str, Any]]:
        import pyarrow as pa

        return [("score", pa.float64()), ("logit", pa.float64())]

    def _columns(self, results: Sequence[Any]) -> dict[str, Any]:
        return {name: [getattr(result, name, None) for result in results] for name in ("score", "logit")}


CALLABLES: Mapping[str, type[_TextColumns]] = {kind.task: kind for kind in (BatchEmbedder, Classifier, Tagger)}
