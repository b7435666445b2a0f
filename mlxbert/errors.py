"""The errors that mlxbert raises.

```
MlxbertError             everything below; has .message and .hint
├── ConfigError          config.json: a missing key, an unknown kind of value
├── CheckpointError      weight files: damaged, missing, or with missing or unexpected tensors
│   └── MissingHeadError a head that a task needs and the checkpoint does not have
├── TokenizerError       vocabulary files
├── InputError           a text or a record that cannot be used
│   ├── TooLongError     a text with more tokens than the model takes
│   ├── TooLargeError    a text, or texts, whose results would take too much memory
│   ├── ChangedError     a file that changed while it was read
│   └── UnreadableError  a document that cannot be read (see `mlxbert.search.documents.document`)
├── ArgumentError        an argument that a function does not accept
│   └── UnknownArgumentError  an argument that a function does not have; a TypeError, too
├── HubError             a model of the hub that is unknown, not permitted, not reachable, or not cached
├── DeviceError          no such device, MLX not available on this platform, a device that fails
│   └── OutOfMemoryError the device has too little memory
├── StoreError           an index that is damaged, or made by another model or a newer version
│   └── BusyError        an index that another process is updating
├── OverloadedError      an engine whose queue is full
├── ModelChangedError    a model whose files have changed since the engine first loaded it
├── DivergedError        training whose loss or gradient is no longer finite
└── ThreadError          a model used on a thread other than its own
```
"""

INTEGER_LIMIT = 10**60  # integers from this size on are not written out in messages, and cannot be labels


def shown(value: object) -> str:
    """Returns the `repr` of a value, truncated to 60 characters; describes integers that Python refuses to print."""
    if isinstance(value, int) and abs(value) >= INTEGER_LIMIT:
        return f"{'-' if value < 0 else ''}a number of more than 60 digits"
    try:
        return f"{value!r:.60}"
    except ValueError:
        return f"a {type(value).__name__} with a number of thousands of digits"


class MlxbertError(Exception):
    """Base of every error that a user of mlxbert can cause.

    Args:
        message: What is wrong: the value found and what was expected.
        hint: What to do next, if there is something to do.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        """The hint, which a traceback shows below the message."""
        return [] if self.hint is None else [f"hint: {self.hint}"]


class ConfigError(MlxbertError):
    """A `config.json` that is missing, damaged, or describes something mlxbert does not compute."""


class CheckpointError(MlxbertError):
    """Weights that are missing, damaged, or do not fit the configuration."""


class MissingHeadError(CheckpointError):
    """A head that a task needs and the checkpoint does not have."""


class TokenizerError(MlxbertError):
    """Vocabulary files that are missing, damaged, or do not fit the model."""


class InputError(MlxbertError):
    """A text or a record that the task cannot use."""


class TooLongError(InputError):
    """A text with more tokens than the model takes."""


class TooLargeError(InputError):
    """A text, or several texts, whose results would take more memory than is allowed."""


class ChangedError(InputError):
    """A file that changed while it was read."""


class ArgumentError(MlxbertError):
    """An argument that the function does not accept."""


class UnknownArgumentError(ArgumentError, TypeError):
    """A keyword argument that the function does not have."""


class HubError(MlxbertError):
    """A model of the hub that is unavailable: unknown, not permitted, not reachable, or not cached while offline."""


class DeviceError(MlxbertError):
    """A device that does not exist or fails, or a platform on which MLX does not run."""


class OutOfMemoryError(DeviceError):
    """The device has too little memory for the computation."""


class StoreError(MlxbertError):
    """An index that is damaged, cannot be written, or was made by another model or a newer version."""


class BusyError(StoreError):
    """An index that another process is updating."""


class OverloadedError(MlxbertError):
    """An engine whose queue is full, so that it accepts no more requests."""


class ModelChangedError(MlxbertError):
    """A model whose files have changed since an engine first loaded it, so that the engine cannot load it again."""


class DivergedError(MlxbertError):
    """Training whose loss or gradient is no longer finite."""


class ThreadError(MlxbertError):
    """A model used on a thread other than its own (see `Model.adopt`), or in a forked process."""
