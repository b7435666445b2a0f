"""What a reviewer found in how configurations and checkpoints are read."""

from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import CheckpointError, ConfigError
from mlxbert.machine.device import mx
from mlxbert.weights.checkpoint import open_checkpoint
from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config
from tests.weights.test_families import config_of, nomic_of_its_authors, parse

WORDS = "bert.embeddings.word_embeddings.weight"


def test_the_longest_input_of_nomic_is_the_least_that_its_file_tells(tmp_path: Path) -> None:
    own = nomic_of_its_authors(config_of("nomic", tmp_path)) | {"n_positions": 8192}
    assert parse(own).max_length == 8192
    assert parse(own | {"max_trained_positions": 2048}).max_length == 2048
    assert parse(own | {"max_position_embeddings": 512}).max_length == 512
    assert parse(own | {"rotary_scaling_factor": 2.0}).max_length == 2048


@pytest.mark.parametrize("change", [{"num_heads_kv": 1}, {"rotary_other": 3}, {"mlp_other": 1}, {"hidden_size": 48}])
def test_what_changes_the_mathematics_of_nomic_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        parse(nomic_of_its_authors(config_of("nomic", tmp_path)) | change)


def test_null_is_a_key_that_is_not_there(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("pad_token_id", "layer_norm_eps", "type_vocab_size", "hidden_act"))
    assert parse(CONFIG | nothing) == parse({key: CONFIG[key] for key in CONFIG if key not in nothing})
    own = nomic_of_its_authors(config_of("nomic", tmp_path))
    assert parse(own | {"n_inner": None}).intermediate_size == 256
    with pytest.raises(ConfigError, match="model_type is missing") as caught:
        parse({})
    assert caught.value.hint is not None and '"model_type": "bert"' in caught.value.hint


@pytest.mark.parametrize("labels", [["A"], {"0": 5}, {"1": "A"}, {}])
def test_bad_labels_stop_classifiers_only(labels: Any, tmp_path: Path) -> None:
    save(tmp_path, config=CONFIG | {"id2label": labels})
    assert "masked_lm" in mlxbert.load(tmp_path).network.heads
    more = {"classifier.weight": mx.ones((2, 24)), "classifier.bias": mx.ones(2)}
    config = CONFIG | {"id2label": labels, "architectures": ["BertForSequenceClassification"]}
    save(tmp_path, tensors_of(random_network(tiny_config())) | more, config)
    with pytest.raises(CheckpointError, match="id2label") as caught:
        mlxbert.load(tmp_path)
    assert caught.value.hint is not None and "task='fill-mask'" in caught.value.hint
    assert "id2label" in str(mlxbert.inspect(tmp_path).parts["sequence_classifier"].problem)


def test_a_tied_copy_of_another_shape_is_told_by_inspect(tmp_path: Path) -> None:
    copy = {"cls.predictions.decoder.weight": mx.ones((3, 24))}
    save(tmp_path, tensors_of(random_network(tiny_config())) | copy)
    assert "differs from" in str(mlxbert.inspect(tmp_path).parts["masked_lm"].problem)


def test_unknown_tensors_come_with_what_may_be_the_matter(tmp_path: Path) -> None:
    tensors = tensors_of(random_network(tiny_config()))
    for found, said in (
        ({f"module.{name}": array for name, array in tensors.items()}, "names begin with 'module.'"),
        (tensors | {"other.weight": mx.ones(3)}, "a head that mlxbert does not know"),
        (tensors | {"bert.encoder.layer.7.output.dense.bias": mx.ones(3)}, "may belong to another model"),
    ):
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(save(tmp_path, found))
        assert caught.value.hint is not None and said in caught.value.hint
    with pytest.raises(ConfigError, match="quantization_config"):
        open_checkpoint(save(tmp_path, config=CONFIG | {"quantization_config": {"bits": 4}}))
