"""The tagging head, with or without a CRF."""

from mlxbert.config import EncoderConfig, HeadFacts
from mlxbert.labels.labels import Labels
from mlxbert.nn.crf import CRF
from mlxbert.nn.heads.head import HeadSpec, OwnLayer, TokenHead, num_labels


class TokenClassifier(TokenHead):
    """Scores the classes of every token.

    If the labels ask for a CRF, the child `crf` also scores sequences of classes. Its methods take a row of logits for
    each word, not for each token.
    """

    def __init__(self, config: EncoderConfig, facts: HeadFacts) -> None:
        super().__init__(config, facts, num_labels(config))
        if config.labels is not None and config.labels.crf:
            self.crf = CRF(config.labels.names)


SPEC = HeadSpec(
    module=TokenClassifier,
    scope="token",
    class_names=("ForTokenClassification",),
    stems={"out": "classifier", "crf": "crf"},
    labelled=True,
    own=OwnLayer(
        option="crf",
        stem="crf",
        problem=Labels.crf_problem,
        content="crf.safetensors holds a CRF over the tags, which is mlxbert's own",
        others="other programs use the model without it",
        elsewhere="transformers, without the CRF",
        instead="without `crf=True`, transformers predicts the same tags",
    ),
    peft_type="TOKEN_CLS",
    task="tag",
    title="tagging head",
    hint="dslim/bert-base-NER has one; for your own tags: `mlxbert.finetune('tag', train=FILE, output=FOLDER)`",
)
