"""The options of the engine and of the server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from mlxbert.option_declarations import COUNT, SMALLEST, Bounds, Option, OutputPath, check_fields


@dataclass(frozen=True)
class EngineOptions:
    """The limits of an engine: batches, queue and memory.

    Raises:
        ArgumentError: A value is out of bounds.
    """

    panel: ClassVar[str] = "Engine"
    max_batch_tokens: Annotated[
        int | None, Option("Maximum tokens per batch.", usual="depends on the device", bounds=COUNT)
    ] = None
    max_queue: Annotated[
        int, Option("Maximum number of waiting texts. Requests beyond that are refused immediately.", bounds=COUNT)
    ] = 16_384
    max_models: Annotated[
        int,
        Option("Maximum number of models in memory. The least recently used one is unloaded.", bounds=Bounds(1, 1_000)),
    ] = 4
    max_memory: Annotated[
        float | None,
        Option(
            "Maximum memory for weights. Models that do not fit together are unloaded and loaded as needed.",
            "GB",
            usual="no limit",
            bounds=Bounds(SMALLEST, 1_000_000),
        ),
    ] = None
    idle_minutes: Annotated[
        float | None,
        Option(
            "Unload idle models. They are loaded again when needed.",
            "MINUTES",
            usual="never",
            bounds=Bounds(0.001, 1_000_000),
        ),
    ] = None
    reload_changed: Annotated[
        bool, Option("Accept changed files when a model is reloaded. By default requests for the model are refused.")
    ] = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class ServeOptions:
    """The options and limits of the server."""

    panel: ClassVar[str] = "Server"
    host: Annotated[str, Option("Address to listen on. Addresses other than loopback need an API key.")] = "127.0.0.1"
    port: Annotated[int, Option("Port; 0 picks a free one.", bounds=Bounds(0, 65_535))] = 8484
    max_body: Annotated[float, Option("Maximum size of a request body.", "MB", bounds=Bounds(0.001, 10_000))] = 16.0
    max_texts: Annotated[
        int, Option("Maximum number of texts per request. With labels, each text counts once per label.", bounds=COUNT)
    ] = 4096
    max_characters: Annotated[int, Option("Maximum number of characters in the texts of a request.", bounds=COUNT)] = (
        2_000_000
    )
    max_answer: Annotated[
        float,
        Option(
            "Maximum memory for results. Requests wait until enough of it is free.",
            "MB",
            bounds=Bounds(0.001, 1_000_000),
        ),
    ] = 128.0
    truncate: Annotated[
        bool, Option("Truncate texts that are too long, unless a request says otherwise. By default they are refused.")
    ] = False
    max_connections: Annotated[int, Option("Maximum number of open connections.", bounds=Bounds(1, 1_000_000))] = 2048
    read_seconds: Annotated[float, Option("Timeout for receiving a request.", "S", bounds=Bounds(0.01, 100_000))] = 30.0
    allow_host: Annotated[
        list[str] | None, Option("Additional host name that clients may use. May be repeated.", "HOST")
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        Option("Web origin that may send requests. For example http://localhost:*. May be repeated.", "ORIGIN"),
    ] = None
    api_key_file: Annotated[
        Path | None, Option("File with the API key. Without it, MLXBERT_API_KEY is used.", "FILE")
    ] = None
    log_file: Annotated[
        Path | None, Option("Write the request log to a file.", "FILE", usual="stderr"), OutputPath("file")
    ] = None
    log_texts: Annotated[bool, Option("Include texts in the log.")] = False

    def __post_init__(self) -> None:
        check_fields(self)
