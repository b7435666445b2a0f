"""Records checkpoints in the format of Google's scripts as goldens: writes mlxbert/goldens/tf1, in two steps.

`python scripts/make_tf1.py models FOLDER` makes tiny random models with transformers, records their tensors and
outputs, and writes the tensors for TensorFlow to FOLDER; it needs torch and transformers (requirements-parity.txt).
`python scripts/make_tf1.py checkpoints FOLDER` writes those tensors with TensorFlow's Saver; it needs numpy and
tensorflow, preferably in a separate environment. The tests that read the result need neither.
"""

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

GOLDENS = Path(__file__).parents[1] / "mlxbert" / "goldens" / "tf1"
_STEP = 7
_SMALL = {  # eps and padding are Google's defaults, because Google's configurations omit them
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
_TWO = {"embedding_size": 8, "num_hidden_layers": 4, "num_hidden_groups": 2, "hidden_act": "gelu_new"}
_KEYS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("max_position_embeddings", "type_vocab_size", "initializer_range"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
)
_MORE = {"albert": ("embedding_size", "num_hidden_groups", "inner_group_num"), "electra": ("embedding_size",)}

# From the names in transformers to Google's, applied in order; the leaf `weight` of a matrix becomes `kernel`.
_BERT = {r"\.layer\.(\d+)\.": r".layer_\1."}
_RULES = {
    "bert": {
        **_BERT,
        r"^classifier\.weight$": "output_weights",
        r"^classifier\.bias$": "output_bias",
        r"^qa_outputs\.weight$": "cls.squad.output_weights",
        r"^qa_outputs\.bias$": "cls.squad.output_bias",
        r"^cls\.seq_relationship\.": "cls.seq_relationship.output_",
        r"seq_relationship\.output_weight$": "seq_relationship.output_weights",
        r"^cls\.predictions\.bias$": "cls.predictions.output_bias",
    },
    "albert": {
        r"^albert\.": "bert.",
        r"\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.": r".transformer.group_\1.inner_group_\2.",
        r"\.attention\.LayerNorm\.": ".LayerNorm.",
        r"\.full_layer_layer_norm\.": ".LayerNorm_1.",
        r"\.attention\.(query|key|value)\.": r".attention_1.self.\1.",
        r"\.attention\.dense\.": ".attention_1.output.dense.",
        r"\.ffn\.": ".ffn_1.intermediate.dense.",
        r"\.ffn_output\.": ".ffn_1.intermediate.output.dense.",
        r"\.pooler\.": ".pooler.dense.",
        r"^predictions\.bias$": "cls.predictions.output_bias",
        r"^predictions\.": "cls.predictions.transform.",
        r"^sop_classifier\.classifier\.weight$": "cls.seq_relationship.output_weights",
        r"^sop_classifier\.classifier\.bias$": "cls.seq_relationship.output_bias",
    },
    "electra": {**_BERT, r"^discriminator_predictions\.dense_prediction\.": "discriminator_predictions.dense_1."},
    "generator": {
        **_BERT,
        r"^electra\.(?!embeddings\.)": "generator.",
        r"^generator_lm_head\.bias$": "generator_predictions.output_bias",
    },
}


@dataclass(frozen=True)
class Tf1Checkpoint:
    """A checkpoint: the class in transformers, the changes to its configuration, and how it is stored."""

    family: str
    classes: str
    head: str
    changes: dict[str, Any] = field(default_factory=dict)
    shards: int = 1
    slots: bool = False


_ELECTRA = {"embedding_size": 8}
CHECKPOINTS = {
    "bert-pretraining": Tf1Checkpoint("bert", "Bert", "ForPreTraining", shards=2, slots=True),
    "bert-classifier": Tf1Checkpoint("bert", "Bert", "ForSequenceClassification", slots=True),
    "bert-squad": Tf1Checkpoint("bert", "Bert", "ForQuestionAnswering", {"num_hidden_layers": 1}),
    "albert-pretraining": Tf1Checkpoint("albert", "Albert", "ForPreTraining", _TWO),
    "electra-pretraining": Tf1Checkpoint("electra", "Electra", "ForPreTraining", _ELECTRA, slots=True),
}
_GENERATOR = Tf1Checkpoint("electra", "Electra", "ForMaskedLM", _ELECTRA | {"hidden_size": 6, "intermediate_size": 14})


def _google(name: str, tensor: Any, rules: str) -> tuple[str, Any]:
    """The name and value of a tensor in the format of Google's scripts."""
    for old, new in _RULES[rules].items():
        name = re.sub(old, new, name)
    stem, _, leaf = name.rpartition(".")
    if stem.endswith("_embeddings"):
        name = stem
    elif "LayerNorm" in stem:
        name = f"{stem}.{'gamma' if leaf == 'weight' else 'beta'}"
    elif leaf == "weight":
        name, tensor = f"{stem}.kernel", tensor.T
    return name.replace(".", "/"), tensor


def _freeze(written: Tf1Checkpoint, folder: Path, name: str, embeddings: dict[str, Any]) -> dict[str, Any]:
    """Makes a model and records its tensors, configuration and outputs; returns the tensors."""
    from safetensors.numpy import save_file

    from tests.helpers.families import Compared, make_model
    from tests.helpers.parity import reference_outputs

    compared = Compared(written.classes, _SMALL | written.changes)
    model = make_model(compared, written.head, seed=len(name))
    model.load_state_dict(embeddings, strict=False)
    tied = ("decoder.weight", "decoder.bias", "generator_lm_head.weight")
    tensors = {key: value for key, value in model.state_dict().items() if not key.endswith((*tied, "_ids"))}
    frozen = {f"tensors/{key}": value.numpy() for key, value in tensors.items()}
    case = compared.cases["pairs"]
    assert case.mask is not None and case.segments is not None
    inputs = {"ids": case.input_ids, "mask": case.mask, "segments": case.segments}
    frozen |= {f"inputs/{key}": value for key, value in inputs.items()}
    outputs = reference_outputs(model, case).items()
    frozen |= {f"outputs/{key}": value for key, value in outputs if not key.startswith(("hidden", "attention"))}
    arrays = {key: np.ascontiguousarray(value) for key, value in frozen.items()}
    save_file(arrays, folder / f"{name}.safetensors")
    facts = model.config.to_dict()
    keys = [*_KEYS, *_MORE.get(written.family, ())]
    text = json.dumps({key: facts[key] for key in keys if key in facts}, indent=2, sort_keys=True)
    (folder / f"{name}_config.json").write_text(text + "\n", encoding="utf-8")
    return tensors


def make_models(work: Path) -> None:
    """Makes the models: the first step."""
    for name, written in CHECKPOINTS.items():
        folder = GOLDENS / name
        folder.mkdir(parents=True, exist_ok=True)
        tensors = _freeze(written, folder, written.family, {})
        google = dict(_google(key, value.numpy(), written.family) for key, value in tensors.items())
        if written.family == "electra":
            shared = {key: value for key, value in tensors.items() if ".embeddings." in key}
            generator = _freeze(_GENERATOR, folder, "generator", shared)
            google |= dict(_google(key, value.numpy(), "generator") for key, value in generator.items())
        work.mkdir(parents=True, exist_ok=True)
        np.savez(work / f"{name}.npz", **google)


def make_checkpoints(work: Path) -> None:
    """Writes the checkpoints: the second step."""
    import tensorflow as tf

    for name, written in CHECKPOINTS.items():
        with tf.Graph().as_default(), np.load(work / f"{name}.npz") as tensors:
            variables = []
            for number, (key, value) in enumerate(sorted(tensors.items())):
                with tf.device(f"/cpu:{number * written.shards // len(tensors.files)}"):
                    variables.append(tf.compat.v1.get_variable(key, initializer=value))
                    if written.slots:
                        slots = (f"{key}/adam_m", f"{key}/adam_v")
                        variables += [tf.compat.v1.get_variable(slot, initializer=value * 0) for slot in slots]
            variables.append(tf.compat.v1.get_variable("global_step", initializer=np.int64(_STEP)))
            devices = tf.compat.v1.ConfigProto(device_count={"CPU": written.shards})
            with tf.compat.v1.Session(config=devices) as session:
                session.run(tf.compat.v1.global_variables_initializer())
                saver = tf.compat.v1.train.Saver(variables, sharded=written.shards > 1, save_relative_paths=True)
                target = GOLDENS / name / "model.ckpt"
                saver.save(session, str(target), global_step=_STEP, write_meta_graph=False)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    {"models": make_models, "checkpoints": make_checkpoints}[sys.argv[1]](Path(sys.argv[2]))
