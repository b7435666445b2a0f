"""Names of tensors that several families share, see `mlxbert.weights.keymap`."""

from mlxbert.weights.keymap import Table, same, within

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
LAYER: Table = (
    same("attention.query", "attention.self.query"),
    same("attention.key", "attention.self.key"),
    same("attention.value", "attention.self.value"),
    same("attention.output", "attention.output.dense"),
    same("attention_norm", "attention.output.LayerNorm"),
    *FEED_FORWARD,
)


def encoder_table(embeddings: Table, layer: Table, layers: str, rest: Table = ()) -> Table:
    """The tensors of an encoder; `layers` is the prefix of a layer's tensors, with `{}` for its number."""
    return within("encoder.", "", embeddings + within("layers.{}.", layers, layer) + rest)


def masked_lm_table(transform: str, norm: str, bias: str) -> Table:
    """The tensors of a masked-word head; `bias` is the stem of the output bias."""
    return (
        same("heads.masked_lm", bias),
        same("heads.masked_lm.transform.dense", transform),
        same("heads.masked_lm.transform.norm", norm),
    )


def classifier_table(out: str, transform: str | None = None) -> Table:
    """The tensors of a sequence classifier."""
    before = () if transform is None else (same("heads.sequence_classifier.transform.dense", transform),)
    return (*before, same("heads.sequence_classifier.out", out), *VECTOR_CLASSIFIER)


# Heads and parts of heads that transformers does not have: in files of their own, see `mlxbert.weights.save`.
VECTOR_CLASSIFIER: Table = (same("heads.sequence_classifier.linear", "vector_classifier"),)
CRF: Table = (same("heads.token_classifier.crf", "crf"),)
POOLER: Table = within("encoder.", "", (same("pooler.dense", "pooler.dense"),))
TOKEN_CLASSIFIER: Table = (same("heads.token_classifier.out", "classifier"), *CRF)
QUESTION_ANSWERING: Table = (same("heads.question_answering.out", "qa_outputs"),)
MASKED_LM: Table = masked_lm_table(
    "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"
)
WORDS = "embeddings.word_embeddings.weight"
BUFFERS = (r"embeddings\.(position_ids|token_type_ids)",)
OLD_SPELLINGS = {r"\.gamma$": ".weight", r"\.beta$": ".bias"}
