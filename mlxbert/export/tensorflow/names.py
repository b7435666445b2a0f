"""Maps the tensor names of Google's BERT, ALBERT and ELECTRA to the names in transformers.

The names come from https://github.com/google-research (bert, albert, electra); the mapping is the same as in the
converters of transformers. The `kernel` of a dense layer is stored transposed.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mlxbert.weights.formats.protobuf import MalformedError

_RESAVE = "load the checkpoint with the program that wrote it, and save the model as safetensors"
GENERATOR = "ElectraForMaskedLM"  # the class that selects the generator of ELECTRA's two networks
_SLOTS = re.compile(
    r".*/(adam_[mv]|lamb_[mv]|(Adam|LAMB|AdamWeightDecay|LAMBOptimizer|AdamWeightDecayOptimizer|Momentum)(_\d+)?"
    r"|ExponentialMovingAverage)"
)
_COUNTERS = re.compile(
    r"(.*/)?(global_step|beta[12]_power|((current_)?loss_scale|good_steps|bad_steps|temperature)(_\d+)?)"
)
_LEAVES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "output_weights": "weight", "output_bias": "bias"}
_NUMBERED = re.compile(r"(.*/)?(dense|layer_normalization|embedding|multi_head_attention)(_\d+)?/[a-z_]+")
_OBJECTS = ("_CHECKPOINTABLE_OBJECT_GRAPH", "/.ATTRIBUTES/VARIABLE_VALUE")
_FACTORED = re.compile(r"bert/(embeddings/word_embeddings_2|encoder/layer_shared/.*)")
_ROOTS = (
    *("bert", "cls", "electra", "generator"),
    *("generator_predictions", "discriminator_predictions", "task_specific"),
)

_Rules = dict[str, str]  # patterns and their replacements, applied in order
_HEADS: _Rules = {
    r"^(output_(weights|bias))$": r"classifier/\1",
    r"^cls/squad/": "qa_outputs/",
}
_BERT: _Rules = {r"/layer_(\d+)/": r"/layer/\1/"}
_ALBERT: _Rules = {
    r"/transformer/group_(\d+)/inner_group_(\d+)/": r"/albert_layer_groups/\1/albert_layers/\2/",
    r"(/albert_layers/\d+)/attention(?:_1)?/(?:self|output)/": r"\1/attention/",
    r"(/albert_layers/\d+)/ffn(?:_1)?/intermediate/dense/": r"\1/ffn/",
    r"(/albert_layers/\d+)/ffn(?:_1)?/intermediate/output/dense/": r"\1/ffn_output/",
    r"(/albert_layers/\d+)/LayerNorm/": r"\1/attention/LayerNorm/",
    r"(/albert_layers/\d+)/LayerNorm_1/": r"\1/full_layer_layer_norm/",
    r"^cls/predictions/(transform/)?": "predictions/",
    r"^cls/seq_relationship/": "sop_classifier/classifier/",
    r"^bert/pooler/dense/": "bert/pooler/",
    r"^bert/": "albert/",
}
_DISCRIMINATOR: _Rules = {
    **_BERT,
    r"^discriminator_predictions/dense_1/": "discriminator_predictions/dense_prediction/",
}
_GENERATOR: _Rules = {
    **_BERT,
    r"^generator_predictions/output_bias$": "generator_lm_head/output_bias",
    r"^generator/": "electra/",
}


class Translated(NamedTuple):
    """The translated names of a checkpoint.

    `names` maps the name of each tensor in transformers to its name in the checkpoint. `skipped` holds the names of
    variables that are not weights.
    """

    names: dict[str, str]
    skipped: tuple[str, ...]


def is_transposed(name: str) -> bool:
    """Whether the checkpoint stores the tensor with this name transposed."""
    return name.endswith("/kernel")


def unsupported_reason(names: Iterable[str]) -> tuple[str, str] | None:
    """Returns why mlxbert does not read a checkpoint with these names, and a hint; `None` if mlxbert reads it."""
    for name in names:
        if any(mark in name for mark in _OBJECTS):
            return (
                f"tensor {name!r} has an object-based name of TensorFlow 2, expected a name from Google's BERT, ALBERT "
                "or ELECTRA (TensorFlow 1)",
                _RESAVE,
            )
        if _FACTORED.fullmatch(name):
            return (
                f"tensor {name!r} is from the first ALBERT of albert_zh, which adds positions after the embedding "
                "projection, unlike every ALBERT in transformers",
                "use a model that the authors of albert_zh trained with Google's code",
            )
        root = name.removeprefix("module/").partition("/")[0]
        if root not in _ROOTS and _NUMBERED.fullmatch(name) and not _SLOTS.fullmatch(name):
            return (
                f"tensor {name!r} has a number from Keras, which does not identify the layer of the tensor",
                _RESAVE,
            )
    return None


def _plan(names: Sequence[str], classes: Sequence[str]) -> tuple[_Rules, re.Pattern[str] | None]:
    """Returns the rules that rename the tensors of a checkpoint, and a pattern for the names to skip.

    An ELECTRA checkpoint usually holds two networks, a generator and a discriminator. One of them is selected by
    `classes`, and the tensors of the other one are skipped. For other models, the pattern is `None`.
    """
    if not any(name.startswith(("electra/", "generator/")) for name in names):
        albert = any("/transformer/group_" in name for name in names)
        return (_HEADS | _ALBERT if albert else _HEADS | _BERT), None
    both = any(name.startswith("electra/encoder/") for name in names)
    if GENERATOR in classes or not both:
        own = any(name.startswith("generator/embeddings/") for name in names)  # usually shared with the discriminator
        return _GENERATOR, re.compile(rf"discriminator_predictions/.*|electra/{'' if own else '(?!embeddings/)'}.*")
    return _DISCRIMINATOR, re.compile(r"generator(_predictions)?/.*")


def _translate_name(name: str, rules: _Rules) -> str:
    for old, new in rules.items():
        name = re.sub(old, new, name)
    stem, _, leaf = name.rpartition("/")
    if leaf.endswith("_embeddings"):
        leaf += "/weight"
    return f"{stem}/{_LEAVES.get(leaf, leaf)}".removeprefix("/").replace("/", ".")


def translate(names: Iterable[str], classes: Sequence[str] = ()) -> Translated:
    """Translates names to the names in transformers. An unknown name only has its slashes replaced by dots.

    Args:
        names: The names of all tensors in the checkpoint.
        classes: The `architectures` of the configuration. They matter for ELECTRA, whose checkpoints hold two networks:
            `ElectraForMaskedLM` selects the generator; the default is the discriminator.
    """
    names = tuple(names)
    skipped = {name for name in names if _SLOTS.fullmatch(name) or _COUNTERS.fullmatch(name)}
    # TensorFlow Hub adds the prefix.
    plain = {name: name.removeprefix("module/") for name in names if name not in skipped}
    rules, other = _plan(tuple(plain.values()), classes)
    translated: dict[str, str] = {}
    for name, short in plain.items():
        if other is not None and other.fullmatch(short):
            skipped.add(name)
            continue
        new = _translate_name(short, rules)
        if new in translated:
            raise MalformedError(f"{translated[new]!r} and {name!r} are two names of the same tensor")
        translated[new] = name
    return Translated(translated, tuple(name for name in names if name in skipped))
