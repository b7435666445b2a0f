"""The prompt of rerankers that are language models. It is read from their chat template, which is never run."""

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
# The lookup of the first message with a role in these templates; the groups are the role and the default text.
_LOOKUP = (
    r"""messages \| selectattr\("role", "eq", "(\w+)"\) \| map\(attribute="content"\) \| first"""
    r"""(?: \| default\("([^"\\]*)"\))?"""
)


@dataclass(frozen=True)
class PairPrompt:
    """The texts around a query and a document in the input of Qwen3-Reranker.

    A space separates the query and the document from the text before them.
    """

    instruction: str  # the task for which the model judges documents
    between: str = _DOCUMENT  # the text between the query and the document
    after: str = _AFTER  # the text after the document

    @property
    def before(self) -> str:
        return f"{_BEFORE}{self.instruction}{_QUERY}"

    def template(self) -> str:
        """Returns the chat template as it was published, with this instruction."""
        default = f' | default("{self.instruction}")'
        looked_up = {
            role: f'messages | selectattr("role", "eq", "{role}") | map(attribute="content") | first' for role in _ROLES
        }
        looked_up["system"] += default
        system, query, document = (f"{{{{ {value} }}}}" for value in looked_up.values())
        return f"{_BEFORE}{system}{_QUERY} {query}{_DOCUMENT} {document}{_AFTER}\n"  # Jinja drops the final newline


def _read(folder: ModelFolder) -> str | None:
    """Reads the chat template of a model; returns `None` if the model has none."""
    path = folder.transformer / TEMPLATE
    if path.is_file():
        try:
            return path.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"{path}: cannot be read ({problem})") from None
    value = read_settings(folder.transformer / "tokenizer_config.json").get("chat_template")
    if isinstance(value, list):  # several templates, each with a name
        value = {str(item.get("name")): item.get("template") for item in value if isinstance(item, dict)}.get("default")
    return value if isinstance(value, str) else None


def carries_pairs(folder: ModelFolder) -> bool:
    """Whether a model's chat template has slots for a query and a document, unlike the template of a chat model."""
    template = (_read(folder) or "").replace("'", '"')
    return '"query"' in template and '"document"' in template


def read_prompt(folder: ModelFolder) -> PairPrompt | None:
    """Reads the prompt of a reranker from its chat template; returns `None` if the model takes plain pairs of texts."""
    if not carries_pairs(folder):
        if folder.logit_score is None:
            return None
        raise CheckpointError(
            f"{folder.transformer}: this reranker needs a chat template with a query and a document",
            hint=f"copy {TEMPLATE} or tokenizer_config.json of Qwen/Qwen3-Reranker-0.6B into the folder",
        )
    if folder.has_modules and not _uses_messages(folder):
        return None
    template = _read(folder) or ""
    prompt = _parse(template)
    if prompt is None:
        raise CheckpointError(
            f"{folder.transformer}: the chat template is {template.strip()!r:.100}…, expected the template of "
            "Qwen3-Reranker",
            hint="mlxbert never runs a template from a model folder",
        )
    return prompt


def _uses_messages(folder: ModelFolder) -> bool:
    """Whether sentence-transformers turns texts into messages, according to the settings of the Transformer module."""
    settings = folder.transformer_settings
    settings.only("processing_kwargs", {}, "mlxbert supports no options for preparing texts")
    return "message" in settings.nested("modality_config").values


def _parse(template: str) -> PairPrompt | None:
    """Parses the template of Qwen3-Reranker with any instruction; returns `None` for other templates."""
    defaults: list[str] = []
    names: dict[str, str] = {}

    def slot(match: re.Match[str]) -> str:
        defaults.extend([match[2]] * (match[1] == "system" and match[2] is not None))
        return f"\0{match[1]}\0"

    def assign(match: re.Match[str]) -> str:
        names[match[1]] = re.sub(_LOOKUP, slot, match[2])
        return ""

    text = re.sub(r"\s*\{%-\s*set (\w+) = ([^%]*?)\s*-%\}\s*", assign, template.replace("'", '"'))
    text = re.sub(
        r"\{\{-?\s*([^{}]*?)\s*-?\}\}", lambda match: names.get(match[1]) or re.sub(_LOOKUP, slot, match[1]), text
    )
    system, query, document = (f"\0{role}\0" for role in _ROLES)
    expected = f"{_BEFORE}{system}{_QUERY} {query}{_DOCUMENT} {document}{_AFTER}"
    return PairPrompt(defaults[0]) if text.removesuffix("\n") == expected and len(defaults) == 1 else None
