"""The server and its client read the catalogue of tasks: a route for each task, with its options, and equal results."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

import mlxbert
from mlxbert.serve import server_models
from mlxbert.serve.http.app import PROTOCOLS, _description, make_app
from mlxbert.tasks.catalogue import CATALOGUE, SIMILARITY, TaskEntry, imported
from mlxbert.tasks.options import TaskOptions, deciding_options
from tests.cli.test_tasks import GLINER
from tests.helpers import token_folders
from tests.helpers.serving import serving
from tests.helpers.sparse_folder import save_splade
from tests.helpers.task_models import save_discriminator
from tests.serve.commands.test_server import URL, connect
from tests.serve.test_own import CONTEXT, LONG, MASKED, PAIRS, QUESTIONS, TEXTS, assert_same, post

ROOT = Path(__file__).parents[2]
ENTRIES = {**CATALOGUE, SIMILARITY.name: SIMILARITY}
BODIES = {route.path: route.body for protocol in PROTOCOLS for route in protocol.routes if route.body is not None}
APART = {"model", "on_error", "texts", "pairs", "questions", "context", "query"}
OF_OLLAMA = {"embed": {"input", "truncate", "options", "keep_alive", "encoding_format"}}  # and the form of vectors
# By the names of tasks: the model that a server has, and items that it can use.
ITEMS: dict[str, tuple[str, list[Any]]] = {
    "embed": ("embed", [*TEXTS, LONG, "\u4e00"]), "embed-words": ("embed", [*TEXTS, LONG]),
    "embed-sparse": ("sparse", [*TEXTS, LONG]), "embed-tokens": ("tokens", [*TEXTS, LONG]),
    "fill-mask": ("fill-mask", MASKED), "classify": ("sentiment", [*TEXTS, LONG]), "tag": ("tag", [*TEXTS, LONG]),
    "answer": ("answer", [(question, CONTEXT) for question in QUESTIONS]),
    "rerank": ("rerank", [("a dog", text) for text in (*TEXTS, TEXTS[0], LONG)]),
    "next-sentence": ("fill-mask", [(first, second) for first, second in PAIRS]), "replaced": ("electra", TEXTS),
    "similarity": ("embed", [("a dog", text) for text in (*TEXTS, TEXTS[0], LONG)]),
}  # fmt: skip
# Names of tasks in the code of the server that are not keys of the catalogue, and why.
NAMED = {
    "mlxbert/serve/engine/engine.py": "the result of each task, for type checkers, as a script writes it",
    "mlxbert/serve/service.py": "the order in which the heads of a model say what it was made for",
    "mlxbert/serve/protocols/huggingface.py": "a pipeline for what a model was made for: its inputs, parameters, JSON",
    "mlxbert/serve/protocols/tei.py": "what TEI calls models, and two tasks that only its routes have",
}


@pytest.fixture(scope="module")
def served(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("served")
    tokens, sparse = token_folders.PYLATE["usual"](made / "tokens"), save_splade(made / "sparse")
    return {**folders, "electra": save_discriminator(made / "electra"), "sparse": sparse, "tokens": tokens}


@pytest.fixture(scope="module")
def client(served: dict[str, Path]) -> Iterator[TestClient]:
    with serving(served) as service:
        yield TestClient(make_app(service))


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_a_route_takes_the_options_of_its_task(entry: TaskEntry) -> None:
    body = BODIES[f"/api/{entry.name}"]
    defaults = {field.name: field.default for field in fields(entry.options)}
    of_all = {field.name for field in fields(TaskOptions)}  # how large batches are is up to the server
    options = {field.name: field for field in msgspec.structs.fields(body) if field.name not in APART}
    assert {*deciding_options(entry.options)} | OF_OLLAMA.get(entry.name, set()) == {*options}
    assert {*deciding_options(entry.options)} == {*defaults} - of_all
    described = json.loads(_description())["components"]["schemas"][body.__name__]["properties"]
    for name, (kind, option) in deciding_options(entry.options).items():
        assert options[name].default == defaults[name]
        assert described[name]["description"].startswith(" ".join(option.help.split()))
        if option.bounds is not None:
            assert (described[name]["minimum"], described[name]["maximum"]) == option.bounds
        assert msgspec.json.schema(kind).items() <= described[name].items()


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_a_server_gives_what_this_process_gives(
    entry: TaskEntry, client: TestClient, served: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, client)
    name, items = ITEMS[entry.name]
    ask = getattr(mlxbert, "embed_stream" if entry.name == "embed" else entry.name.replace("-", "_"))
    if entry.name == "embed-tokens":  # the function returns arrays
        ask = lambda model, items: entry.make(model, entry.options()).run(items)  # noqa: E731
    model = mlxbert.load(served[name])
    expected: list[Any]
    if entry.items.ranked:
        expected = sorted(ask(model, items[0][0], [text for _, text in items]), key=lambda one: one.index)
    else:
        expected = list(ask(model, items))
    task = entry.name if entry is not SIMILARITY else "embed"
    found = list(server_models.ServerModel(URL, name, task).run(entry.name, items, on_error="raise"))
    assert {type(one) for one in found} == {imported(entry.result)} == {type(one) for one in expected}
    assert_same([values_of(one) for one in found], [values_of(one) for one in expected])


@pytest.mark.parametrize("names", [("sentiment", "fill-mask", "embed"), ("sentiment", "embed", "nli")])
def test_labels_go_to_the_first_model_that_takes_some(
    names: tuple[str, ...], folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["cat", "city"]
    with serving({name: folders[name] for name in names}) as service:
        client = TestClient(make_app(service))
        connect(monkeypatch, client)
        assert post(client, "classify", texts=["cat"])["model"] == "sentiment"
        assert post(client, "classify", texts=["cat"], labels=labels)["model"] == names[-1]
        assert server_models.ServerModel(URL, "builtin", "classify", labels=True).source == names[-1]
        body = {"inputs": "cat", "parameters": {"candidate_labels": labels}}
        assert client.post("/", json=body).status_code == 200
        error = post(client, "classify", 400, texts=["cat"], model="sentiment", labels=labels)
        assert "entail" in error["error"] and error["hint"]


def test_entities_of_any_labels_are_found_by_the_model_that_takes_them(folders: dict[str, Path]) -> None:
    with serving({"gliner": Path(GLINER), "tag": folders["tag"]}) as service:
        client = TestClient(make_app(service))
        assert post(client, "tag", texts=["the cat"])["model"] == "tag"
        assert post(client, "tag", texts=["the cat"], labels=["animal"])["model"] == "gliner"


def values_of(result: Any) -> dict[str, Any]:
    """All values of a result; its parts as in its JSON."""
    more = {name: getattr(result, name) for name in ("truncated", "only_unknown") if hasattr(result, name)}
    return more | result.to_dict() | {"context": getattr(result, "context", None)}


def test_the_server_knows_no_task_by_its_name() -> None:
    """A new task is an entry of the catalogue: nothing compares names, and look-ups are all that spells them."""
    spelled = set()

    def named(node: ast.AST) -> list[ast.Constant]:
        constants = [part for part in ast.walk(node) if isinstance(part, ast.Constant)]
        return [part for part in constants if part.value in (*ENTRIES, "embed-all")]

    for path in sorted((ROOT / "mlxbert/serve").rglob("*.py")):
        nodes = [*ast.walk(tree := ast.parse(path.read_text(encoding="utf-8")))]
        look_ups = [one for one in nodes if isinstance(one, ast.Subscript) and ast.unparse(one.value) == "CATALOGUE"]
        compared = [one if isinstance(one, ast.Compare) else one.pattern
                    for one in nodes if isinstance(one, ast.Compare | ast.match_case)]  # fmt: skip
        assert [f"{path}:{part.lineno}" for one in compared for part in named(one)] == []
        if len(named(tree)) > sum(len(named(one.slice)) for one in look_ups):
            spelled.add(path.relative_to(ROOT).as_posix())
    assert spelled == {*NAMED}


@pytest.fixture(scope="module")
def document() -> Any:
    return json.loads(_description())


def test_every_route_is_described_once_with_references_that_have_an_end(document: Any) -> None:
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    routes = [route for protocol in PROTOCOLS for route in protocol.routes]
    assert {(route.method.lower(), re.sub(r":\w+\}", "}", route.path)) for route in routes} == described
    assert len(described) == len(routes)
    for route in routes:
        operation = document["paths"][re.sub(r":\w+\}", "}", route.path)][route.method.lower()]
        assert ("requestBody" in operation) == (route.body is not None)
    found = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert found <= {*document["components"]["schemas"]}
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len({*names}) == len(names)


def test_types_fields_and_routes_have_descriptions(document: Any) -> None:
    for schema in document["components"]["schemas"].values():
        assert schema["description"] and "Attributes:" not in schema["description"]
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    assert all(one["description"] for one in operations)
    bodies = [one["requestBody"]["content"]["application/json"]["schema"] for one in operations if "requestBody" in one]
    names = {one["$ref"].rpartition("/")[2] for one in bodies if "$ref" in one}
    own = [name for name in names if "`mlxbert." in document["components"]["schemas"][name]["description"]]
    assert len(own) == len(CATALOGUE) + 2  # and similarity and search
    for name in [*own, "EmbeddingsBody"]:
        fields = document["components"]["schemas"][name]["properties"]
        assert [field for field, schema in fields.items() if not schema.get("description")] == []
    embed = document["components"]["schemas"]["Embed"]["properties"]
    assert embed["kind"]["description"].startswith("Use the model's own prompt.") and "on_error" in embed
    assert (embed["dimensions"]["minimum"], embed["dimensions"]["maximum"]) == (1, 1_000_000)


def test_it_is_valid(document: Any) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(document)
