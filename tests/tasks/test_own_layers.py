"""Layers that a head has in a file of its own: written next to the weights, read back, converted, inspected."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import Labels
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.goldens.golden_outputs import arrays
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import OWN_LAYERS
from mlxbert.weights.hub.needed_files import needed_files
from tests.helpers.cases import together
from tests.helpers.frozen import add_vocabulary, change_config, read_config, write_model
from tests.helpers.program import tiny_model
from tests.helpers.rooms import needs
from tests.helpers.taggers import NER

TEXT = "the man sat in paris"


@dataclass(frozen=True)
class Own:
    """A head with a layer in a file of its own."""

    head: str
    labels: Labels  # that ask for it
    file: str
    names: frozenset[str]  # the tensors of the file
    key: dict[str, Any]  # what `config.json` says of it
    parts: int  # tensors of the head, with those of other files
    wrong: tuple[Any, ...]  # values of the key that are refused
    inner: str = ""  # where in the folder the encoder is

    @property
    def note(self) -> str:
        return next(own.note for own in OWN_LAYERS if own.file == self.file)

    @property
    def task(self) -> str:
        return "tag" if self.head == "token_classifier" else "classify"

    def result(self, model: mlxbert.Model) -> Any:
        return mlxbert.tag(model, TEXT) if self.task == "tag" else mlxbert.classify(model, TEXT)

    def model(self, source: Path, folder: Path, dtype: str = "float32") -> mlxbert.Model:
        """A model with a random layer, and its folder."""
        model = mlxbert.load(source, new_heads={self.head: self.labels}, dtype=dtype)
        crf = getattr(model.network.heads[self.head], "crf", None)
        if crf is not None:
            leaves: Any = nn.utils.tree_flatten(crf.parameters())
            assert not any(mx.any(array).item() for _, array in leaves)  # fresh
            crf.update(nn.utils.tree_map(lambda one: mx.random.normal(one.shape).astype(one.dtype), crf.parameters()))
        mlxbert.save(model, folder)
        return model


_VECTORS = {"labels": ["a", "b", "c"], "problem_type": "single_label_classification", "pooling": "mean"}
OWN = {
    "crf": Own(
        "token_classifier", replace(NER, crf=True), "crf.safetensors",
        frozenset({"crf.start", "crf.transitions", "crf.end"}), {"crf": True}, 5, ("yes", 1),
    ),
    "vectors": Own(
        "sequence_classifier", Labels(("a", "b", "c"), "single_label_classification", head_pooling="mean"),
        "vector_classifier.safetensors", frozenset({"vector_classifier.weight", "vector_classifier.bias"}),
        {"vector_classifier": _VECTORS}, 2,
        (
            *(_VECTORS | {"pooling": name} for name in ("middle", 1, ["mean"], "attention", "mean+attention", "")),
            {"labels": ["a", "b", "c"]},
            *(_VECTORS | {"labels": names} for names in ([], ["a", "a", "b"], "abc", [1, 2, 3], ["a", "b"])),
            _VECTORS | {"problem_type": "guess"}, "mean", ["mean"],
        ),
        "encoder",
    ),
}  # fmt: skip
KINDS = [
    *(("crf", family) for family in ("bert", "roberta", "distilbert", "albert", "modernbert", "deberta-v3")),
    *(("vectors", family) for family in ("bert", "roberta", "distilbert", "albert", "electra", "mpnet", "modernbert")),
    *(("vectors", family) for family in ("nomic", "gte", "deberta-v3")),
]


@pytest.fixture(params=OWN)
def own(request: pytest.FixtureRequest) -> Own:
    return OWN[request.param]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_vocabulary(write_model("bert", "Model", tmp_path_factory.mktemp("bert")))


@pytest.mark.sampled
@pytest.mark.usefixtures("measurement")
@pytest.mark.parametrize(("kind", "family"), KINDS)
def test_it_is_saved_loaded_and_converted(kind: str, family: str, tmp_path: Path) -> None:
    own = OWN[kind]
    model = own.model(add_vocabulary(write_model(family, "Model", tmp_path / "source")), tmp_path / "saved")
    assert arrays(tmp_path / "saved" / own.inner / own.file).keys() == own.names
    inside = arrays(tmp_path / "saved" / own.inner / "model.safetensors").keys()
    assert not own.names & inside
    config = read_config(tmp_path / "saved" / own.inner)
    assert config | own.key == config
    if kind == "vectors":  # for other programs it is an encoder, which none of them finds at the top
        assert not (tmp_path / "saved" / "config.json").exists() and not {"id2label", "problem_type"} & config.keys()
        assert config["architectures"][0].endswith("Model")
        assert not any("classifier" in name or "pooler" in name for name in inside)
    assert own.note in (tmp_path / "saved" / "saved.json").read_text()
    conversion = mlxbert.convert(tmp_path / "saved", tmp_path / "converted")
    assert own.note in conversion.changed and own.note in (tmp_path / "converted" / "README.md").read_text()
    mlxbert.save(mlxbert.load(tmp_path / "converted", dtype="float32"), tmp_path / "again")
    for name in ("saved", "converted", "again"):
        found = mlxbert.load(tmp_path / name, task=own.task, dtype="float32")
        assert found.labels == own.labels and own.result(found) == own.result(model)
        assert arrays(tmp_path / name / own.inner / own.file).keys() == own.names


@pytest.mark.usefixtures("measurement")
def test_a_quantized_folder_promises_no_other_program(own: Own, tmp_path: Path) -> None:
    own.model(tiny_model(tmp_path / "source", hidden_size=32), tmp_path / "a")
    conversion = mlxbert.convert(tmp_path / "a", tmp_path / "q", quantize=4, group_size=32)
    (said,) = (one for one in conversion.changed if own.file in one)
    assert "mlxbert's own" in said and said != own.note and own.note.startswith(said)


@pytest.mark.parametrize("pooling", ["cls", "mean", "cls+max"])
def test_scores_are_a_linear_function_of_the_vector(source: Path, tmp_path: Path, pooling: str) -> None:
    own = replace(OWN["vectors"], labels=replace(OWN["vectors"].labels, head_pooling=pooling))
    found = own.result(own.model(source, tmp_path / "a"))
    vector = mlxbert.embed(mlxbert.load(source, task="embed", dtype="float32"), TEXT, pooling=pooling)
    stored = {name: np.array(array) for name, array in arrays(tmp_path / "a" / own.inner / own.file).items()}
    powers = np.exp(stored["vector_classifier.weight"] @ vector + stored["vector_classifier.bias"])
    wanted = sorted(powers / powers.sum(), reverse=True)
    assert [label.score for label in found.labels] == pytest.approx(wanted, abs=1e-6)


def test_it_follows_the_dtype_and_the_shards(own: Own, source: Path, tmp_path: Path) -> None:
    model = own.model(source, tmp_path / "half", "float16")
    assert {array.dtype for array in arrays(tmp_path / "half" / own.inner / own.file).values()} == {mx.float16}
    mlxbert.save(mlxbert.load(tmp_path / "half"), tmp_path / "shards", max_shard_size="20KB")
    index = (tmp_path / "shards" / own.inner / "model.safetensors.index.json").read_text()
    assert not any(name in index for name in own.names)
    for folder in ("half", "shards"):
        assert own.result(mlxbert.load(tmp_path / folder, dtype="float16")) == own.result(model)


@needs("export")
def test_inspect_and_verify_know_it(own: Own, source: Path, tmp_path: Path) -> None:
    own.model(source, tmp_path / "a")
    found = mlxbert.inspect(tmp_path / "a")
    assert (Path(own.inner) / own.file).as_posix() in dict(found.weights.files)
    assert found.parts[own.head].tensors == own.parts
    assert own.task in found.tasks and own.names <= {tensor.name for tensor in found.tensors}
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert mlxbert.verify(tmp_path / "a", tmp_path / "b")
    last = min(own.names)
    changed = {name: array + (name == last) for name, array in arrays(tmp_path / "a" / own.inner / own.file).items()}
    mx.eval(changed)
    (tmp_path / "b" / own.inner / own.file).unlink()
    mx.save_safetensors(str(tmp_path / "b" / own.inner / own.file), changed)
    (difference,) = mlxbert.verify(tmp_path / "a", tmp_path / "b").differences
    assert last.rpartition(".")[2] in difference.name


def test_it_is_left_behind_with_the_labels_that_had_it(own: Own, source: Path, tmp_path: Path) -> None:
    own.model(source, tmp_path / "a")
    for head, kind in (("sequence_classifier", "Sequence"), ("token_classifier", "Token")):
        model = mlxbert.load(tmp_path / "a", new_heads={head: Labels(("O", "B-X", "I-X"))})
        saved = mlxbert.save(model, tmp_path / head)
        assert not [*saved.rglob(own.file)] and not own.key.keys() & read_config(saved).keys()
        assert read_config(saved)["architectures"] == [f"BertFor{kind}Classification"]
    encoder = mlxbert.save(mlxbert.load(tmp_path / "a", task="embed"), tmp_path / "encoder")
    assert not [*encoder.rglob(own.file)] and not own.key.keys() & read_config(encoder).keys()
    if own.head == "token_classifier":
        fresh: Any = mlxbert.load(tmp_path / "a", new_heads={own.head: Labels(("O", "B-X", "I-X"), crf=True)})
        assert not mx.any(fresh.network.heads[own.head].crf.transitions).item()
        change_config(tmp_path / "a", crf=None)  # nothing asks for it
        assert mlxbert.load(tmp_path / "a").labels == NER


def test_a_folder_without_it_or_with_another(own: Own, source: Path, tmp_path: Path) -> None:
    own.model(source, tmp_path / "a")
    (tmp_path / "a" / own.inner / own.file).rename(tmp_path / "kept")
    with pytest.raises(CheckpointError):
        mlxbert.load(tmp_path / "a", task=own.task)
    mlxbert.load(tmp_path / "a", task="embed")
    mx.save_safetensors(str(tmp_path / "a" / own.inner / own.file), {name: mx.zeros(7) for name in own.names})
    with pytest.raises(CheckpointError, match="shape"):
        mlxbert.load(tmp_path / "a", task=own.task)
    (tmp_path / "a" / own.inner / own.file).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=own.file):
        mlxbert.load(tmp_path / "a", task=own.task)
    (key,) = own.key
    for value in own.wrong:
        change_config(tmp_path / "a" / own.inner, **{key: value})
        with pytest.raises(mlxbert.MlxbertError):
            mlxbert.load(tmp_path / "a", task=own.task)


@together(
    "head,labels,said",
    [
        ("sequence_classifier", OWN["crf"].labels, "crf, which is for"),
        ("token_classifier", Labels(("O", "B-X", "I-X", "Z"), crf=True), "`crf` is True"),
        ("token_classifier", OWN["vectors"].labels, "pooling"),
        ("sequence_classifier", Labels(("a", "b"), head_pooling="middle"), "pooling"),
    ],
)
def test_labels_that_do_not_go_with_it(source: Path, head: str, labels: Labels, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        mlxbert.load(source, new_heads={head: labels})


def test_it_is_downloaded_with_the_weights(own: Own) -> None:
    names = ["config.json", "model.safetensors", own.file, "vocab.txt", "other.safetensors"]
    listed = [(Path(own.inner) / name).as_posix() for name in names]
    modules = [{"type": "sentence_transformers.models.Transformer", "path": own.inner}]
    files = {"modules.json": modules} if own.inner else {}
    found = needed_files("a/b", [*listed, *files], lambda name: files.get(name, {}))
    assert {*found} == {*listed[:4], *files}
