"""Tensor names that several families share (see `mlxbert.weights.families.keymap`)."""

from mlxbert.nn.heads import HEADS
from mlxbert.weights.families.keymap import Table, same, within

EMBEDDINGS: Table = (
    same("embeddings.word", "embeddings.word_embeddings"),
    same("embeddings.position", "embeddings.position_embeddings"),
    same("embeddings.token_type", "embeddings.token_type_embeddings"),
    same("embeddings.norm", "embeddings.LayerNorm"),
)
FEED_FORWARD: Table = (
    same("feed_forward.up", "intermediate.dense"),
    same("feed_forward.down", "output.dense"),
    same("feed_forward_norm", "output.LayerNorm"),
)
ATTENTION: Table = (
    same("attention.query", "attention.self.query"),
    same("attention.key", "attention.self.key"),
    same("attention.value", "attention.self.value"),
    same("attention.output", "attention.output.dense"),
    same("attention_norm", "attention.output.LayerNorm"),
)
LAYER: Table = ATTENTION + FEED_FORWARD


def encoder(embeddings: Table, layer: Table, layers: str, rest: Table = ()) -> Table:
    """Returns the table of an encoder; `layers` is the prefix of a layer's tensors, with `{}` for its number."""
    return within("encoder.", "", embeddings + within("layers.{}.", layers, layer) + rest)


def heads(*names: str, **own: dict[str, str]) -> dict[str, Table]:
    """Returns the tables of these heads, by default of masked LM and `TASK_HEADS`.

    The names in `own` override names in `HeadSpec.stems`.
    """
    names = names or ("masked_lm", *TASK_HEADS)
    stems = {name: own.get(name, {}) | HEADS[name].stems | own.get(name, {}) for name in names}
    return {
        name: tuple(same(f"heads.{name}.{ours}".rstrip("."), theirs) for ours, theirs in layers.items())
        for name, layers in stems.items()
    }


POOLER: Table = within("encoder.", "", (same("pooler.dense", "pooler.dense"),))
TASK_HEADS = ("sequence_classifier", "token_classifier", "question_answering")
TWO_LAYERS = {"transform.dense": "classifier.dense", "out": "classifier.out_proj"}
WORDS = "embeddings.word_embeddings.weight"
BUFFERS = (r"embeddings\.(position_ids|token_type_ids)",)
OLD_SPELLINGS = {r"\.gamma$": ".weight", r"\.beta$": ".bias"}
