"""ONNX graphs: what torch exported is read bit by bit under torch's names; anything odd is refused in words."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.bench.reference import GOLDENS as FROZEN, arrays
from mlxbert.errors import CheckpointError
from mlxbert.machine.device import mx
from mlxbert.weights.formats.onnx import reader

GOLDENS = FROZEN / "onnx"
ODD = np.arange(6, dtype=np.float32).reshape(2, 3)


def read(folder: Path) -> tuple[dict[str, mx.array], tuple[str, ...]]:
    """The parameters of the graph in a folder, and what else is in it."""
    headers = reader.read_headers(folder)
    assert headers is not None
    ((path, header),) = headers.items()
    found = reader.load_arrays(path, header)
    assert {name: array.shape for name, array in found.items()} == {n: i.shape for n, i in header.tensors.items()}
    return dict(found), header.skipped


def write(folder: Path, nodes: list[Any], initializers: Mapping[str, Any], name: str = "model.onnx") -> Path:
    """A folder with a graph; initializers are arrays or messages."""
    onnx = pytest.importorskip("onnx")
    protos = []
    for key, value in initializers.items():
        protos.append(onnx.numpy_helper.from_array(value, key) if isinstance(value, np.ndarray) else value)
    graph = onnx.helper.make_graph(nodes, "g", [], [], protos)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(onnx.helper.make_model(graph).SerializeToString())
    return folder


def node(kind: str, inputs: list[str], output: str, name: str = "", **attributes: Any) -> Any:
    return pytest.importorskip("onnx").helper.make_node(kind, inputs, [output], name, **attributes)


def outside(location: str, dims: Any = (2, 3), **places: object) -> Any:
    """A tensor whose data lies in another file."""
    onnx = pytest.importorskip("onnx")
    proto = onnx.TensorProto(name="a.weight", data_type=1, dims=dims, data_location=1)
    for key, value in {"location": location, **places}.items():
        proto.external_data.add(key=key, value=str(value))
    return proto


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        reader.read_headers(folder)
    assert caught.value.message.startswith(str(folder))
    return f"{caught.value.message} | {caught.value.hint}"


@pytest.mark.parametrize("name", ["bert", "bert-new", "albert"])
def test_what_torch_exported_is_read_bit_by_bit(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    (tmp_path / "onnx").mkdir()
    shutil.copy(GOLDENS / f"{name}.onnx", tmp_path / "onnx" / "model.onnx")
    if name == "bert-new":
        shutil.copy(GOLDENS / f"{name}.onnx.data", tmp_path / "onnx")
    found, skipped = read(tmp_path)
    expected = arrays(GOLDENS / f"{name}.safetensors")
    tied = {"cls.predictions.decoder.bias"} if name == "bert" else set()  # a copy of cls.predictions.bias
    assert found.keys() == expected.keys() - tied
    for key, array in found.items():
        assert array.dtype == expected[key].dtype
        assert mx.array_equal(array, expected[key]).item(), key
    assert not any(key.endswith((".weight", ".bias")) for key in skipped)


def test_a_folder_without_a_graph_is_another_formats(tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx").write_bytes(b"")
    assert reader.read_headers(tmp_path) is None


def test_of_two_graphs_the_one_at_the_top_is_read(tmp_path: Path) -> None:
    write(write(tmp_path, [], {"a.weight": ODD}), [], {"b.weight": ODD}, "onnx/model.onnx")
    assert read(tmp_path)[0].keys() == {"a.weight"}


def test_doubles_are_listed_and_not_computed_with(tmp_path: Path) -> None:
    folder = write(tmp_path, [], {"a.weight": ODD.astype(np.float64)})
    headers = reader.read_headers(folder)
    assert headers is not None
    ((path, header),) = headers.items()
    assert header.tensors["a.weight"].dtype == "F64"
    with pytest.raises(CheckpointError, match=r"tensor 'a\.weight' has dtype F64"):
        reader.load_arrays(path, header)["a.weight"]


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "pip install onnx" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("kind", "scope", "bias", "attributes", "name", "transposed"),
    [
        ("MatMul", "/a/query/MatMul", None, {}, "a.query.weight", True),
        ("MatMul", "MatMul_7", "a.query.bias", {}, "a.query.weight", True),
        ("MatMul", "/a/query_1/MatMul", "a.query.bias", {}, "a.query.weight", True),
        ("MatMul", "MatMul_7", "cls.predictions.bias", {}, "cls.predictions.decoder.weight", True),
        ("MatMul", "/lm_head/decoder/MatMul", "lm_head.bias", {}, "lm_head.decoder.weight", True),
        ("Gemm", "/a/out/Gemm", None, {"transB": 1}, "a.out.weight", False),
        ("Gemm", "/a/out/Gemm", None, {}, "a.out.weight", True),
        ("MatMul", "/0/auto_model/encoder/q/MatMul", None, {}, "encoder.q.weight", True),
    ],
)
def test_a_matrix_is_named_by_where_it_is_used(
    kind: str, scope: str, bias: str | None, attributes: dict[str, Any], name: str, transposed: bool, tmp_path: Path
) -> None:
    nodes = [node(kind, ["x", "onnx::MatMul_1"], "y", scope, **attributes)]
    initializers: dict[str, Any] = {"onnx::MatMul_1": ODD, "mask": np.ones((1, 4), np.float32)}
    if bias:
        nodes.append(node("Add", [bias, "y"], "z", "Add_8"))
        initializers[bias] = np.ones(3, np.float32)
    found, skipped = read(write(tmp_path, nodes, initializers))
    assert np.array_equal(np.array(found[name]), ODD.T if transposed else ODD)
    assert found.keys() == {name} | ({bias} if bias else set())
    assert skipped == ("mask",)


def test_matrices_are_followed_through_nodes_that_change_no_number(tmp_path: Path) -> None:
    nodes = [
        node("Identity", ["w"], "w1"),
        node("Transpose", ["w1"], "w2", perm=[1, 0]),
        node("Cast", ["w2"], "w3", to=1),
        node("MatMul", ["x", "w3"], "y", "/a/q/MatMul"),
        node("Identity", ["a.q.bias"], "b.q.bias"),
        node("Transpose", ["e.weight"], "e1"),
        node("MatMul", ["x", "e1"], "y2", "/decoder/MatMul"),  # tied to the table, which has its name
    ]
    for name, orders in {"c": ([1, 0], [1, 0]), "d": ([0, 1],)}.items():
        nodes += [
            node("Transpose", [f"w{name}{place}" if place else "w"], f"w{name}{place + 1}", perm=perm)
            for place, perm in enumerate(orders)
        ]
        nodes.append(node("MatMul", ["x", f"w{name}{len(orders)}"], f"y{name}", f"/{name}/q/MatMul"))
    bias = np.arange(3, dtype=np.float32)
    found, _ = read(write(tmp_path, nodes, {"w": ODD, "a.q.bias": bias, "e.weight": ODD}))
    assert found.keys() == {"a.q.weight", "a.q.bias", "b.q.bias", "e.weight", "c.q.weight", "d.q.weight"}
    for name in "cd":
        assert np.array_equal(np.array(found[f"{name}.q.weight"]), ODD.T)
    assert np.array_equal(np.array(found["a.q.weight"]), ODD)
    assert np.array_equal(np.array(found["b.q.bias"]), bias)


@pytest.mark.parametrize(
    ("names", "more"),
    [
        ({"cls.predictions.decoder.bias"}, {"cls.predictions.bias"}),
        ({"lm_head.decoder.bias", "roberta.embeddings.position_embeddings.weight"}, {"lm_head.bias"}),
        ({"lm_head.decoder.bias", "new.embeddings.word_embeddings.weight"}, set()),
        ({"classifier.decoder.bias"}, set()),
    ],
)
def test_the_bias_of_words_has_both_names_where_it_is_tied(names: set[str], more: set[str], tmp_path: Path) -> None:
    found, _ = read(write(tmp_path, [], dict.fromkeys(names, ODD)))
    assert found.keys() == names | more


def scoped(scope: str, kind: str, inputs: list[str], output: str) -> Any:
    """A node that notes where it comes from, as torch's newer exporter writes it."""
    made = node(kind, inputs, output)
    made.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', 'bert', '{scope}', 'linear_1']")
    return made


def test_a_table_that_is_tied_has_both_names(tmp_path: Path) -> None:
    table = scoped("bert.embeddings.word_embeddings", "Gather", ["cls.decoder.weight", "ids"], "x")
    found, _ = read(write(tmp_path, [table], {"cls.decoder.weight": ODD}))
    assert found.keys() == {"cls.decoder.weight", "bert.embeddings.word_embeddings.weight"}


def test_vectors_that_are_equal_and_stored_once_have_all_their_names(tmp_path: Path) -> None:
    nodes = [
        scoped("a.norm", "LayerNormalization", ["x", "a.norm.weight", "a.q.bias"], "y"),
        scoped("b.norm", "LayerNormalization", ["y", "a.norm.weight", "a.q.bias"], "z"),
        scoped("a.q", "MatMul", ["z", "val_1"], "m"),
        node("Add", ["m", "a.q.bias"], "n"),
        scoped("b.q", "MatMul", ["n", "val_2"], "o"),
        node("Add", ["o", "a.q.bias"], "p"),
    ]
    vectors = {"a.norm.weight": np.ones(3, np.float32), "a.q.bias": np.zeros(3, np.float32)}
    found, _ = read(
        write(tmp_path, nodes, vectors | {"val_1": np.eye(3, dtype=np.float32), "val_2": np.eye(3, dtype=np.float32)})
    )
    assert found.keys() == {
        f"{part}.{kind}" for part in ("a.q", "b.q", "a.norm", "b.norm") for kind in ("weight", "bias")
    }
    assert np.array_equal(np.array(found["b.norm.weight"]), np.ones(3))
    assert np.array_equal(np.array(found["b.q.bias"]), np.zeros(3))


def without_bias(scope: str, matrix: str, note: str | None, **attributes: Any) -> Any:
    """A multiplication of which torch's newer exporter has left the bias out, or of a module that has none."""
    made = scoped(scope, "Gemm", ["x", matrix], f"{scope} out")
    made.attribute.extend(node("Gemm", [], "", **attributes).attribute)
    if note:
        made.metadata_props.add(key="pkg.onnxscript.rewriter.rule_name", value=note)
    return made


def test_a_bias_of_zeros_that_the_exporter_left_out_is_there(tmp_path: Path) -> None:
    note = "RemoveOptionalBiasFromGemm"
    nodes = [
        without_bias("a.pooler", "a.pooler.weight", note, transB=1),
        without_bias("a.transposed", "val_1", f"Other, {note}"),
        without_bias("a.plain", "a.plain.weight", None, transB=1),
        without_bias("a.other", "val_2", "MatMulAddToGemm", transB=1),
        without_bias("a.empty", "a.empty.weight", note, transB=1),
        without_bias("a.vector", "a.vector.weight", note, transB=1),
    ]
    empty, vector = np.zeros((2**31 - 1, 0), np.float32), np.ones(3, np.float32)
    matrices = {"a.pooler.weight": ODD, "val_1": ODD.astype(np.float16), "a.plain.weight": ODD, "val_2": ODD}
    found, _ = read(write(tmp_path, nodes, matrices | {"a.empty.weight": empty, "a.vector.weight": vector}))
    weights = {f"a.{name}.weight" for name in ("pooler", "transposed", "plain", "other", "empty", "vector")}
    assert found.keys() == weights | {"a.pooler.bias", "a.transposed.bias", "a.empty.bias"}
    assert found["a.pooler.bias"].tolist() == [0, 0] and found["a.pooler.bias"].dtype == mx.float32
    assert found["a.transposed.bias"].tolist() == [0, 0, 0] and found["a.transposed.bias"].dtype == mx.float16
    assert found["a.empty.bias"].size == 0
    header = (reader.read_headers(tmp_path) or {})[tmp_path / "model.onnx"]
    assert header.tensors["a.pooler.bias"].stored_as is None


def test_a_bias_that_is_there_after_all_must_be_zeros(tmp_path: Path) -> None:
    nodes = [without_bias("a", "a.weight", "RemoveOptionalBiasFromGemm", transB=1)]
    found, _ = read(write(tmp_path, nodes, {"a.weight": ODD, "a.bias": np.zeros(2, np.float32)}))
    assert found.keys() == {"a.weight", "a.bias"}
    write(tmp_path, nodes, {"a.weight": ODD, "a.bias": np.ones(2, np.float32)})
    assert "expected them to be equal" in refusal(tmp_path)


def test_nodes_without_inputs_or_outputs_say_nothing(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    kinds = ("MatMul", "Gemm", "Gather", "Add", "Identity", "Transpose", "LayerNormalization")
    nodes = [onnx.NodeProto(op_type=kind, input=["a.weight"] * count) for kind in kinds for count in range(4)]
    assert read(write(tmp_path, nodes, {"a.weight": ODD}))[0].keys() == {"a.weight"}


@pytest.mark.parametrize("change", [0.0, 1.0])
def test_a_shared_layer_may_be_stored_twice_if_it_is_the_same(change: float, tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], "y", "/a/MatMul"), node("MatMul", ["y", "v"], "z", "/a/MatMul_1")]
    write(tmp_path, nodes, {"w": ODD, "v": ODD + np.float32(change)})
    if change:
        assert "'a.weight' is 'w' and 'v', expected them to be equal" in refusal(tmp_path)
    else:
        assert read(tmp_path)[0].keys() == {"a.weight"}


@pytest.mark.parametrize(
    ("kind", "domain"),
    [
        ("MatMulInteger", ""),
        ("QLinearMatMul", ""),
        ("DynamicQuantizeLinear", ""),
        ("DequantizeLinear", ""),
        ("Attention", "com.microsoft"),
        ("EmbedLayerNormalization", "com.microsoft"),
        ("SkipLayerNormalization", "com.microsoft"),
    ],
)
def test_quantized_and_fused_graphs_are_refused_by_name(kind: str, domain: str, tmp_path: Path) -> None:
    write(tmp_path, [node(kind, ["x", "a.weight"], "y", domain=domain)], {"a.weight": ODD})
    text = refusal(tmp_path)
    assert kind in text
    assert "safetensors" in text


@pytest.mark.parametrize("half", [np.float16, np.float32, np.int64])
def test_numbers_that_are_not_stored_as_bytes(half: Any, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(half))
    proto = onnx.helper.make_tensor("a.weight", kind, (2, 3), [1, 2, 3, 4, 5, 6])
    assert not proto.raw_data
    found, _ = read(write(tmp_path, [], {"a.weight": proto}))
    assert np.array_equal(np.array(found["a.weight"]), np.array([[1, 2, 3], [4, 5, 6]], half))
    del proto.float_data[1:], proto.int32_data[1:], proto.int64_data[1:]
    assert "bytes, expected" in refusal(write(tmp_path, [], {"a.weight": proto}))


@pytest.mark.parametrize("location", ["data", "sub/data"])
def test_data_beside_the_graph_is_read(location: str, tmp_path: Path) -> None:
    (tmp_path / location).parent.mkdir(exist_ok=True)
    (tmp_path / location).write_bytes(bytes(8) + ODD.tobytes())
    found, _ = read(write(tmp_path, [], {"a": outside(location, offset=8, length=24)}))
    headers = reader.read_headers(tmp_path)
    assert headers is not None
    assert headers[tmp_path / "model.onnx"].size == 32 + (tmp_path / "model.onnx").stat().st_size
    assert np.array_equal(np.array(found["a.weight"]), ODD)


def test_data_may_lie_where_the_graph_itself_is_linked_to(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "model"
    blobs.mkdir()
    folder.mkdir()
    (blobs / "1").write_bytes(ODD.tobytes())
    write(blobs, [], {"a": outside("data")}, "0")
    (folder / "data").symlink_to(blobs / "1")
    (folder / "model.onnx").symlink_to(blobs / "0")
    assert np.array_equal(np.array(read(folder)[0]["a.weight"]), ODD)


@pytest.mark.parametrize(
    ("proto", "said"),
    [
        (("../../etc/passwd",), "within the folder"),
        (("/etc/passwd",), "within the folder"),
        (("sub\\..\\data",), "within the folder"),
        (("",), "within the folder"),
        (("link",), "a link to outside"),
        (("missing",), "not in the folder"),
        (("data", (2, 4)), "has 24 bytes, expected 32"),
        (("data", (2**31 - 1, 2**31 - 1)), "has 24 bytes"),
        (("data", (2**40, 0)), "has shape"),
        (("data", (-1, 3)), "has shape"),
        (("data", (1,) * 9), "has shape"),
    ],
)
def test_data_elsewhere_is_refused(proto: tuple[Any, ...], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(ODD.tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "data").write_bytes(ODD.tobytes())
    assert said in refusal(write(folder, [], {"a": outside(*proto)}))


@pytest.mark.parametrize("places", [{"offset": 1}, {"offset": "-8"}, {"length": 23}, {"offset": "1e3"}, {"length": ""}])
def test_wrong_places_in_the_data_are_refused(places: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(ODD.tobytes())
    assert "a.weight" in refusal(write(tmp_path, [], {"a": outside("data", **places)}))


def test_bytes_that_do_not_fit_the_shape_are_refused(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    proto = onnx.TensorProto(name="a.weight", data_type=1, dims=(2, 3), raw_data=bytes(20))
    assert "has 20 bytes, expected 24" in refusal(write(tmp_path, [], {"a": proto}))
    assert "no parameters" in refusal(write(tmp_path, [], {"constant": ODD}))
    same = onnx.numpy_helper.from_array(ODD, "a.weight")
    assert "appears twice" in refusal(write(tmp_path, [], {"a.weight": ODD, "again": same}))


def test_damaged_files_end_in_an_error_of_ours(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    path = tmp_path / "model.onnx"
    path.write_bytes(b"")
    assert "0 bytes" in refusal(tmp_path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "damaged" in refusal(tmp_path)
    whole = (GOLDENS / "albert.onnx").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "damaged" in refusal(tmp_path)
