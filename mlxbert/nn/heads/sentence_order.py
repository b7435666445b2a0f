"""The sentence-order head of ALBERT: the layers of the next-sentence head, trained on swapped texts."""

from mlxbert.nn.heads.head import PRETRAINING, HeadSpec
from mlxbert.nn.heads.next_sentence import SentenceOrderHead

SPEC = HeadSpec(
    module=SentenceOrderHead,
    scope="text",
    class_names=(PRETRAINING,),
    stems={"dense": "sop_classifier.classifier"},
    pooler=lambda facts, labels: True,
    title="sentence-order head",
)
