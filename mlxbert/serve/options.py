"""The options of the engine and of the server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from mlxbert.options import Option, check_fields


@dataclass(frozen=True)
class EngineOptions:
    """How much an engine does at a time, and keeps in memory.

    Raises:
        ArgumentError: A value is out of its bounds.
    """

    panel: ClassVar[str] = "Engine"
    max_batch_tokens: Annotated[int | None, Option("Most tokens of a batch.", usual="by the device")] = None
    max_queue: Annotated[int, Option("Most texts that wait. What comes on top is refused at once.")] = 16_384
    max_models: Annotated[int, Option("Most models in memory. The one least recently used makes room.")] = 4
    max_memory: Annotated[
        float | None,
        Option("Most memory of weights. Models that do not fit together are loaded in turn.", "GB", usual="no limit"),
    ] = None
    idle_minutes: Annotated[
        float | None,
        Option("Unload models that are idle. Asked again, they are loaded again.", "MINUTES", usual="never"),
    ] = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class ServeOptions:
    """What the server allows."""

    panel: ClassVar[str] = "Server"
    host: Annotated[str, Option("Address. Another one than loopback needs a key.")] = "127.0.0.1"
    port: Annotated[int, Option("Port; 0 takes a free one.")] = 8484
    max_body: Annotated[float, Option("Largest body of a request.", "MB")] = 16.0
    max_texts: Annotated[int, Option("Most texts in a request; each counts once for each label.")] = 4096
    max_characters: Annotated[int, Option("Most characters of these texts together.")] = 2_000_000
    max_connections: Annotated[int, Option("Most connections at once.")] = 2048
    read_seconds: Annotated[float, Option("Longest time to receive a request.", "S")] = 30.0
    allow_host: Annotated[
        list[str] | None, Option("Another name by which clients call this machine. May be repeated.", "HOST")
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        Option("Let pages of an origin ask. For example http://localhost:3000. May be repeated.", "ORIGIN"),
    ] = None
    api_key_file: Annotated[
        Path | None, Option("File with the key that clients need. Without it MLXBERT_API_KEY.", "FILE")
    ] = None
    log_file: Annotated[Path | None, Option("File for the log of requests.", "FILE", usual="stderr")] = None
    log_texts: Annotated[bool, Option("Write texts into the log, too.")] = False

    def __post_init__(self) -> None:
        check_fields(self)
