"""Names of tensors as files have them, on every family: prefixes, old spellings, copies, buffers, missing parts."""

import re
from pathlib import Path

import pytest

from mlxbert.errors import CheckpointError
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import Network
from mlxbert.weights.checkpoint import open_checkpoint
from tests.helpers.families import FROZEN, FROZEN_CELLS, walked
from tests.helpers.frozen import change_config, tensors_in, write_model, write_tensors
from tests.helpers.parity import load_network

# The decoder of each family's masked-LM head: the copy of the word embeddings, and that of the bias where it has one.
MASKED_LM = [family for family, compared in FROZEN.items() if "ForMaskedLM" in compared.heads]
TWO_BIASES = [family for family in MASKED_LM if FROZEN[family].kind.decoder[1]]
OLD_ENOUGH = [
    name for name, compared in FROZEN.items() if compared.classes not in ("ModernBert", "NomicBert", "Gte", "DebertaV2")
]
POOLED = [name for name, compared in FROZEN.items() if compared.kind.counted or compared.classes in ("Bert", "Albert")]
Arrays = dict[str, mx.array]


def parameters(network: Network) -> Arrays:
    return dict(nn.utils.tree_flatten(network.parameters()))


def assert_loads_as(folder: Path, wanted: Network) -> None:
    """The folder holds the very same network."""
    found, expected = parameters(load_network(folder)), parameters(wanted)
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[name], array).item() for name, array in expected.items())


def words_in(tensors: Arrays) -> str:
    return next(name for name in tensors if name.endswith(("word_embeddings.weight", "tok_embeddings.weight")))


def prefix_in(tensors: Arrays) -> str:
    words = words_in(tensors)
    return words[: words.index("embeddings.")]


@pytest.mark.parametrize(("family", "head"), FROZEN_CELLS, ids=str)
def test_the_prefix_may_be_left_out(family: str, head: str, tmp_path: Path) -> None:
    wanted, tensors = load_network(write_model(family, head, tmp_path)), tensors_in(tmp_path)
    prefix = prefix_in(tensors)
    assert (prefix == "") == (head == "Model")
    bare = {name.removeprefix(prefix): array for name, array in tensors.items()}
    assert_loads_as(write_tensors(tmp_path, bare), wanted)


@pytest.mark.parametrize("family", walked(FROZEN))
def test_the_encoder_alone_may_have_the_prefix(family: str, tmp_path: Path) -> None:
    prefix = prefix_in(tensors_in(write_model(family, "ForMaskedLM", tmp_path / "head")))
    wanted, tensors = load_network(write_model(family, "Model", tmp_path)), tensors_in(tmp_path)
    assert_loads_as(write_tensors(tmp_path, {prefix + name: array for name, array in tensors.items()}), wanted)


@pytest.mark.parametrize("family", walked(OLD_ENOUGH))
def test_gamma_and_beta_are_read(family: str, tmp_path: Path) -> None:
    wanted, tensors = load_network(write_model(family, "ForMaskedLM", tmp_path)), tensors_in(tmp_path)
    pattern = re.compile(r"((?:layer_?norm|full_layer_layer_norm)\.)(weight|bias)$", flags=re.IGNORECASE)
    spelling = {"weight": "gamma", "bias": "beta"}
    old = {pattern.sub(lambda found: found[1] + spelling[found[2]], name): array for name, array in tensors.items()}
    assert sum(name.endswith(".gamma") for name in old) > 3
    assert_loads_as(write_tensors(tmp_path, old), wanted)


@pytest.mark.parametrize("family", [name for name, compared in FROZEN.items() if compared.classes != "ModernBert"])
def test_buffers_are_no_weights(family: str, tmp_path: Path) -> None:
    wanted, tensors = load_network(write_model(family, "ForMaskedLM", tmp_path)), tensors_in(tmp_path)
    buffers = [f"{prefix_in(tensors)}embeddings.{name}" for name in ("position_ids", "token_type_ids")]
    if FROZEN[family].classes in ("NomicBert", "Gte"):
        buffers.append(f"{prefix_in(tensors)}encoder.layers.0.attn.rotary_emb.inv_freq")
    write_tensors(tmp_path, tensors | dict.fromkeys(buffers, mx.arange(8)[None]))
    assert_loads_as(tmp_path, wanted)
    checkpoint = open_checkpoint(tmp_path)
    assert sorted(checkpoint.names[name] for name in checkpoint.ignored) == sorted(buffers)


@pytest.mark.parametrize("family", walked(POOLED))
def test_the_pooler_may_be_absent(family: str, tmp_path: Path) -> None:
    whole, tensors = load_network(write_model(family, "Model", tmp_path)), tensors_in(tmp_path)
    rest = {name: array for name, array in tensors.items() if not name.startswith("pooler.")}
    assert len(rest) == len(tensors) - 2
    found = load_network(write_tensors(tmp_path, rest))
    ids = mx.array([[3, 9, 5]])
    assert "pooler" in whole.encoder and whole(ids).pooler_output is not None
    assert "pooler" not in found.encoder and found(ids).pooler_output is None


@pytest.mark.parametrize("family", walked(FROZEN))
def test_a_head_more_changes_nothing(family: str, tmp_path: Path) -> None:
    """A file that holds the masked-LM head and that of another class, as published files do."""
    wanted, tensors = load_network(write_model(family, "ForMaskedLM", tmp_path)), tensors_in(tmp_path)
    more = {"classifier.weight": mx.zeros((4, 30)), "classifier.bias": mx.zeros(4)}
    if FROZEN[family].kind.counted or FROZEN[family].classes == "Electra":
        more = {f"classifier.out_proj.{name.removeprefix('classifier.')}": array for name, array in more.items()}
        more |= {"classifier.dense.weight": mx.zeros((30, 30)), "classifier.dense.bias": mx.zeros(30)}
    found = parameters(load_network(write_tensors(tmp_path, tensors | more)))
    for name, array in parameters(wanted).items():
        assert mx.array_equal(found[name], array).item(), name
    with pytest.raises(CheckpointError, match=r"unknown tensor 'another_head\.weight'"):
        open_checkpoint(write_tensors(tmp_path, tensors | {"another_head.weight": mx.zeros(3)}))


@pytest.mark.parametrize("family", walked(MASKED_LM))
def test_an_equal_copy_of_the_decoder_is_taken_and_another_refused(family: str, tmp_path: Path) -> None:
    wanted, tensors = load_network(write_model(family, "ForMaskedLM", tmp_path)), tensors_in(tmp_path)
    weight, bias, original = FROZEN[family].kind.decoder
    prefix = prefix_in(tensors)
    copies = {weight: tensors[words_in(tensors)]}
    if bias is not None and original is not None:
        copies[bias] = tensors.get(bias, tensors.get(original, mx.zeros(1)))
        tensors[original] = copies[bias]
    assert prefix and not any(name.startswith(prefix) for name in copies)
    assert_loads_as(write_tensors(tmp_path, tensors | copies), wanted)
    for name, array in copies.items():
        changed = {**copies, name: array.at[-1].add(1e-3)}
        with pytest.raises(CheckpointError, match=f"'{name}' differs from '"):
            load_network(write_tensors(tmp_path, tensors | changed))


@pytest.mark.parametrize("family", walked(MASKED_LM))
def test_a_file_that_holds_only_the_copy_of_the_words_loads(family: str, tmp_path: Path) -> None:
    wanted, tensors = load_network(write_model(family, "ForMaskedLM", tmp_path)), tensors_in(tmp_path)
    only = {name: array for name, array in tensors.items() if name != words_in(tensors)}
    assert len(only) == len(tensors) - 1
    copy = FROZEN[family].kind.decoder[0]
    assert_loads_as(write_tensors(tmp_path, only | {copy: tensors[words_in(tensors)]}), wanted)


@pytest.mark.parametrize("family", walked(MASKED_LM))
def test_a_decoder_said_not_to_be_tied_must_be_there_and_equal(family: str, tmp_path: Path) -> None:
    wanted, tensors = load_network(write_model(family, "ForMaskedLM", tmp_path)), tensors_in(tmp_path)
    copy = FROZEN[family].kind.decoder[0]
    change_config(tmp_path, tie_word_embeddings=False)
    rest = {name: array for name, array in tensors.items() if name != copy}
    with pytest.raises(CheckpointError, match=f"'{re.escape(copy)}'.*missing.*tie_word_embeddings"):
        load_network(write_tensors(tmp_path, rest))
    assert_loads_as(write_tensors(tmp_path, rest | {copy: tensors[words_in(tensors)]}), wanted)


@pytest.mark.parametrize("family", walked(TWO_BIASES))
@pytest.mark.parametrize("both", [False, True])
def test_the_bias_of_the_decoder_goes_by_either_name(family: str, both: bool, tmp_path: Path) -> None:
    wanted, tensors = load_network(write_model(family, "ForMaskedLM", tmp_path)), tensors_in(tmp_path)
    _, copy, original = FROZEN[family].kind.decoder
    assert copy is not None and original is not None
    stored = next(array for name, array in tensors.items() if name in (copy, original))
    rest = {name: array for name, array in tensors.items() if name not in (copy, original)}
    assert_loads_as(write_tensors(tmp_path, rest | dict.fromkeys([copy, original] if both else [copy], stored)), wanted)
    assert_loads_as(write_tensors(tmp_path, rest | {original: stored}), wanted)
    with pytest.raises(CheckpointError, match=f"'{re.escape(original)}' is missing"):
        load_network(write_tensors(tmp_path, rest))


@pytest.mark.parametrize("family", [name for name, compared in FROZEN.items() if compared.classes == "DebertaV2"])
def test_the_head_that_deberta_v3_was_trained_with_is_read(family: str, tmp_path: Path) -> None:
    wanted, tensors = load_network(write_model(family, "ForMaskedLM", tmp_path)), tensors_in(tmp_path)
    own = {
        name.replace("cls.predictions.transform.", "lm_predictions.lm_head.").replace(
            "cls.predictions.", "lm_predictions.lm_head."
        ): array
        for name, array in tensors.items()
        if not name.startswith("cls.predictions.decoder.")
    }
    own["lm_predictions.lm_head.bias"] = next(
        array for name, array in tensors.items() if name.startswith("cls.predictions.") and array.shape == (43,)
    )
    assert not any(name.startswith("cls.") for name in own)
    discriminator = {f"mask_predictions.{name}.weight": mx.zeros((30, 30)) for name in ("dense", "classifier")}
    assert_loads_as(write_tensors(tmp_path, own | discriminator), wanted)
    checkpoint = open_checkpoint(tmp_path)
    assert set(discriminator) <= set(checkpoint.ignored) and "masked_lm" in checkpoint.parts
