"""The prompt of rerankers that are language models, read from their chat template; a template is never run."""

import re
from dataclasses import dataclass

from mlxbert.errors import CheckpointError, ConfigError
from mlxbert.weights.hub.needed_files import TEMPLATE
from mlxbert.weights.model_folder import ModelFolder, read_settings

_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: '
)
_QUERY, _DOCUMENT = "\n<Query>:", "\n<Document>:"
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_ROLES = ("system", "query", "document")
# The text of the first message with a role, as these templates look it up, and what stands for it where there is none.
_LOOKUP = (
    r"""messages \| selectattr\("role", "eq", "(\w+)"\) \| map\(attribute="content"\) \| first"""
    r"""(?: \| default\("([^"\\]*)"\))?"""
)


@dataclass(frozen=True)
class PairPrompt:
    """What stands around a query and a document in the input of Qwen3-Reranker; each has a space in front.

    Attributes:
        instruction: What documents are judged by.
        between: The text between the query and the document.
        after: The text after the document.
    """

    instruction: str
    between: str = _DOCUMENT
    after: str = _AFTER

    @property
    def before(self) -> str:
        """The text before the query."""
        return f"{_BEFORE}{self.instruction}{_QUERY}"

    def template(self) -> str:
        """The chat template, as it is published."""
        default = f' | default("{self.instruction}")'
        looked_up = {
            role: f'messages | selectattr("role", "eq", "{role}") | map(attribute="content") | first' for role in _ROLES
        }
        looked_up["system"] += default
        system, query, document = (f"{{{{ {value} }}}}" for value in looked_up.values())
        return f"{_BEFORE}{system}{_QUERY} {query}{_DOCUMENT} {document}{_AFTER}\n"  # of whose end Jinja drops a line


def _read(folder: ModelFolder) -> str | None:
    """The chat template of a model; `None` if it has none."""
    path = folder.transformer / TEMPLATE
    if path.is_file():
        try:
            return path.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"{path}: cannot be read ({problem})") from None
    found = read_settings(folder.transformer / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # of several, each with a name
        found = {str(one.get("name")): one.get("template") for one in found if isinstance(one, dict)}.get("default")
    return found if isinstance(found, str) else None


def carries_pairs(folder: ModelFolder) -> bool:
    """Whether the chat template of a model has a place for a query and one for a document; those of chats have none."""
    template = (_read(folder) or "").replace("'", '"')
    return '"query"' in template and '"document"' in template


def read_prompt(folder: ModelFolder) -> PairPrompt | None:
    """What the chat template of a reranker puts around its texts; `None` if it reads plain pairs of texts."""
    if not carries_pairs(folder):
        if folder.logit_score is None:
            return None
        raise CheckpointError(
            f"{folder.transformer}: no chat template with a query and a document, which this reranker is asked with",
            hint=f"copy {TEMPLATE} or tokenizer_config.json of Qwen/Qwen3-Reranker-0.6B into the folder",
        )
    if folder.has_modules and not _is_asked_by_messages(folder):
        return None
    template = _read(folder) or ""
    found = _parse(template)
    if found is None:
        raise CheckpointError(
            f"{folder.transformer}: the chat template is {template.strip()!r:.100}…, expected that of Qwen3-Reranker",
            hint="mlxbert never runs a template of a model folder",
        )
    return found


def _is_asked_by_messages(folder: ModelFolder) -> bool:
    """Whether sentence-transformers makes messages of texts, as the settings of its Transformer say."""
    settings = folder.transformer_settings
    settings.only("processing_kwargs", {}, "mlxbert knows no other ways to prepare texts")
    return "message" in settings.nested("modality_config").values


def _parse(template: str) -> PairPrompt | None:
    """The prompt that a chat template makes, if it is that of Qwen3-Reranker with any instruction."""
    default: list[str] = []
    names: dict[str, str] = {}

    def slot(found: re.Match[str]) -> str:
        default.extend([found[2]] * (found[1] == "system" and found[2] is not None))
        return f"\0{found[1]}\0"

    def assign(found: re.Match[str]) -> str:
        names[found[1]] = re.sub(_LOOKUP, slot, found[2])
        return ""

    text = re.sub(r"\s*\{%-\s*set (\w+) = ([^%]*?)\s*-%\}\s*", assign, template.replace("'", '"'))
    text = re.sub(
        r"\{\{-?\s*([^{}]*?)\s*-?\}\}", lambda found: names.get(found[1]) or re.sub(_LOOKUP, slot, found[1]), text
    )
    system, query, document = (f"\0{role}\0" for role in _ROLES)
    wanted = f"{_BEFORE}{system}{_QUERY} {query}{_DOCUMENT} {document}{_AFTER}"
    return PairPrompt(default[0]) if text.removesuffix("\n") == wanted and len(default) == 1 else None
