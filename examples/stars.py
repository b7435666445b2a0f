"""A task of one's own: stars from 1 to 5, where 4 instead of 5 is a smaller mistake than 1 instead of 5.

    python examples/stars.py reviews.jsonl my-model

`reviews.jsonl` has lines such as {"text": "Great food.", "stars": 5}. The loss compares cumulative probabilities, so
that a guess costs more the farther away it is.
"""

import sys

import numpy as np

import mlxbert
from mlxbert.machine.device import mx

HEAD = "sequence_classifier"
STARS = ("1", "2", "3", "4", "5")


class Stars(mlxbert.Objective):
    """Ranked stars."""

    name, metric, minimize = "stars", "distance", True

    def heads(self, records):
        return {HEAD: mlxbert.Labels(STARS, "single_label_classification")}

    def prepare(self, record):
        stars = str(record.get("stars"))
        if stars not in STARS:  # the error names the record's place
            raise mlxbert.InputError(f"stars is {record.get('stars')!r:.60}, expected 1 to 5")
        return mlxbert.Example(self.tokenizer.encode(record["text"], overflow="truncate"), STARS.index(stars))

    def loss(self, network, batch):
        shares = mx.softmax(network.logits(HEAD, batch.inputs).astype(mx.float32), axis=-1)
        reached = mx.arange(5) >= batch.targets[:, None]
        return mx.square(mx.cumsum(shares, axis=-1) - reached).sum(), len(batch.targets)

    def predict(self, network, inputs):
        return network.logits(HEAD, inputs).argmax(-1)  # lazy: a GPU gets the next batch before this one is read

    def metrics(self, examples, predictions):
        errors = [abs(example.target - star) for example, star in zip(examples, predictions, strict=True)]
        return {"distance": float(np.mean(errors)), "accuracy": float(np.mean(np.array(errors) == 0))}


if __name__ == "__main__":
    for event in mlxbert.finetune(Stars(), train=sys.argv[1], output=sys.argv[2], epochs=10):
        if isinstance(event, mlxbert.Evaluated):
            print(f"epoch {event.epoch:g}: {event.metrics['distance']:.2f} stars off, on average")
    model = mlxbert.load(sys.argv[2])
    print(mlxbert.classify(model, "The food was cold and the waiter rude."))
