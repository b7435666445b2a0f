"""The common part of the tasks that turn texts into vectors: prompts, and the maximum length of the embedder."""

import logging
from abc import abstractmethod
from collections.abc import Iterable

from mlxbert.errors import ArgumentError, InputError, shown
from mlxbert.model import Model
from mlxbert.nn.vector_settings import VectorSettings
from mlxbert.tasks.argument_checks import check_inputs
from mlxbert.tasks.options import EmbedOptions, SparseOptions
from mlxbert.tasks.prompt_kinds import KINDS, own_prompt
from mlxbert.tasks.task import Output, PreparedItem, Result, Task
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.usage import Usage

_LOG = logging.getLogger("mlxbert")


class PromptedTask(Task[str, PreparedItem[str], Output, Result]):
    """Turns a text, with a prompt before it, into vectors.

    Attributes:
        tokenizer: The model's tokenizer, with the maximum length and lower-casing of the embedder.
        prompt: The text that is put before each text; may be empty.
        prompt_length: The number of tokens before the text, the first special token included.
        routed: Whether the kind of a text also decides which part of the model computes it.
    """

    name = "embed"
    routed = False

    def __init__(
        self,
        model: Model,
        options: EmbedOptions | SparseOptions,
        *,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(model, options, usage=usage)
        settings, self.tokenizer = self.text_settings()
        self.prompt = choose_prompt(
            *(model.source, settings, options.prompt, options.prompt_name, options.kind), routed=self.routed
        )
        self.prompt_length = self.tokenizer.prompt_length(self.prompt)
        limit = self.tokenizer.max_length
        if self.prompt and self.prompt_length >= limit - 1:
            raise ArgumentError(
                f"the prompt has {self.prompt_length} tokens, but the prompt and a text together can have at most "
                f"{limit}"
            )

    @abstractmethod
    def text_settings(self) -> tuple[VectorSettings, Tokenizer]:
        """Returns the settings of the model's vectors, and the tokenizer with their maximum length and lowercasing."""

    def prepare(self, item: str) -> PreparedItem[str]:
        if not isinstance(item, str):
            raise InputError(f"expected a text, found {type(item).__name__}")
        before = self.prompt_length if self.prompt else 0
        if self.windowed:
            windows = self.tokenizer.windows(item, stride=0, prompt=self.prompt)
            unknown, only = self.tokenizer.unknown(windows, before)
            return PreparedItem(item, windows, False, unknown=unknown, only_unknown=only)
        encoding = self.encode(self.prompt + item)
        if self.prompt and len(encoding) <= self.prompt_length and not self.model.config.is_static:
            raise InputError(f"the prompt and the text {item!r:.60} together have fewer tokens than the prompt alone")
        unknown, only = self.tokenizer.unknown([encoding], before)
        return PreparedItem(item, [encoding], encoding.truncated, unknown=unknown, only_unknown=only)

    def texts(self, item: str) -> list[str]:
        """Returns the text with its prompt, and the prompt alone, since splitting into windows tokenizes both."""
        return [self.prompt + item, *[self.prompt] * bool(self.prompt)] if isinstance(item, str) else []


def check_texts(texts: object, name: str = "texts") -> Iterable[str]:
    """Returns `texts`; raises ArgumentError unless it is an iterable of texts."""
    return check_inputs(texts, name, "an iterable of texts")


def choose_prompt(
    source: str,
    settings: VectorSettings,
    prompt: str | None,
    name: str | None,
    kind: str | None = None,
    *,
    prefix: str = "",
    routed: bool = False,
) -> str:
    """Returns the text to put before each text.

    Args:
        source: The name of the model, for messages.
        settings: The settings of the model's vectors, which may have prompts of their own.
        name: The name of one of the model's prompts.
        kind: The kind of the texts, one of `KINDS`, which selects one of the model's prompts.
        prefix: The prefix of the names of these arguments in error messages.
        routed: Whether the kind of a text also decides which part of the model computes it.
    """
    choices = {f"{prefix}prompt": prompt, f"{prefix}prompt_name": name, "kind": kind}
    several = [f"the `{key}` {shown(value)}" for key, value in choices.items() if value is not None]
    if len(several) > 1:
        raise ArgumentError(f"{' and '.join(several)} cannot be combined")
    prompts, default = settings.prompts, settings.default_prompt_name
    if prompt is not None:
        if not isinstance(prompt, str):
            raise ArgumentError(f"`{prefix}prompt` is {shown(prompt)}, expected a text")
        return prompt
    if name is not None and name not in list(prompts):  # a list: the name may be unhashable
        available = f"only the prompts {', '.join(map(repr, prompts))}" if prompts else "no prompts"
        raise ArgumentError(f"`{prefix}prompt_name` is {name!r:.60}, but the model has {available}")
    if kind is not None:
        name = own_prompt(prompts, kind)
        if not routed and not any(own_prompt(prompts, other) for other in KINDS):
            _LOG.warning(
                "%s has no prompts for queries and documents, so `kind=%r` changes nothing; give `prompt=` if the "
                "model needs a prompt",
                *(source, kind),
            )
    name = default if name is None else name
    return "" if name is None else prompts[name]
