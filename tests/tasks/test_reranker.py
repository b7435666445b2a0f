"""rerank with a language model that answers yes or no: its prompt, its answers, and what is refused."""

import functools
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, ConfigError, InputError, MissingHeadError, TokenizerError
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.text.usage import Usage
from mlxbert.weights.chat_template import read_prompt
from mlxbert.weights.model_folder import ModelFolder
from tests.helpers import published
from tests.helpers.cases import together
from tests.helpers.frozen import change_config
from tests.helpers.rooms import needs
from tests.helpers.vocabularies import put
from tests.tasks.test_rerank import cross_encoder

QUERY, TEXT = "Who sat?", "the cat sat on the mat ."
SIZES = {
    "model_type": "qwen3", "hidden_size": 20, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 10,
    "num_hidden_layers": 2, "intermediate_size": 24, "max_position_embeddings": 300, "tie_word_embeddings": True,
    "initializer_range": 0.3,
}  # fmt: skip
_PLACE = "sentence_transformers.{}"
MODULES = [
    {"path": "", "type": _PLACE.format("base.modules.transformer.Transformer")},
    {"path": "1_LogitScore", "type": _PLACE.format("cross_encoder.modules.logit_score.LogitScore")},
]
SETTINGS = {"transformer_task": "text-generation", "modality_config": {"text": {}, "message": {"format": "flat"}}}


@functools.cache
def _files() -> dict[str, bytes]:
    """The files of a language model whose decoder is the table of its word embeddings."""
    with tempfile.TemporaryDirectory() as parent:
        made, folder = published.qwen3_reranker(Path(parent) / "vocabulary", None), Path(parent) / "model"
        size = json.loads((made / "tokenizer.json").read_text())["added_tokens"][-1]["id"] + 1
        config = SIZES | {"vocab_size": size, "pad_token_id": size - 6}
        mlxbert.new_model(config, vocabulary=made, dtype="float32").save(folder)
        change_config(folder, architectures=["Qwen3ForCausalLM"])
        put(folder, {"tokenizer_config.json": (made / "tokenizer_config.json").read_text()})
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def language_model(folder: Path, template: str | None = published.RERANKER_TEMPLATE) -> Path:
    """Writes a language model that says yes or no."""
    folder.mkdir(parents=True)
    for name, content in _files().items():
        (folder / name).write_bytes(content)
    settings = json.loads(_files()["tokenizer_config.json"]) | ({} if template is None else {"chat_template": template})
    return put(folder, {"tokenizer_config.json": settings})


def with_modules(folder: Path, settings: dict[str, Any] = SETTINGS, **answers: Any) -> Path:
    """The same in the layout of sentence-transformers."""
    put(folder / "1_LogitScore", {"config.json": {"true_token_id": 5, "false_token_id": 6} | answers})
    return put(folder, {"modules.json": json.dumps(MODULES), "sentence_bert_config.json": settings})


def load(folder: Path) -> mlxbert.Model:
    return mlxbert.load(folder, task="classify", dtype="float32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> mlxbert.Model:
    return load(language_model(tmp_path_factory.mktemp("reranker") / "m"))


def score(model: mlxbert.Model, text: str = TEXT, query: str = QUERY, **options: Any) -> float:
    [found] = mlxbert.rerank(model, query, [text], **options)
    return found.score


def test_the_score_is_the_probability_of_yes_or_what_the_files_say(tmp_path: Path) -> None:
    folder = language_model(tmp_path / "m")
    model = load(folder)
    tokenizer = model.tokenizer
    encoding = tokenizer.encode(QUERY, TEXT)
    assert tokenizer.decode(encoding.ids) == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        f"<Query>: {QUERY}\n<Document>: {TEXT}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    hidden = model.network(mx.array([encoding.ids])).last_hidden_state[0, -1]
    words = model.network.encoder.embeddings.word.weight

    def log_odds(yes: int | None, no: int | None) -> float:
        found: Any = (hidden @ (words[yes] - words[no])).item()
        return float(found)

    logit = log_odds(tokenizer.token_id("yes"), tokenizer.token_id("no"))
    assert score(model) == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-6)
    put(folder, {"config_sentence_transformers.json": {"activation_fn": "torch.nn.modules.linear.Identity"}})
    assert score(load(folder)) == pytest.approx(logit, abs=1e-5)
    assert score(load(with_modules(folder))) == pytest.approx(log_odds(5, 6), abs=1e-5)


def test_an_instruction_takes_the_place_of_the_models_own(model: mlxbert.Model, tmp_path: Path) -> None:
    assert score(model, prompt="Find pets") != score(model)
    own = "Given a web search query, retrieve relevant passages that answer the query"
    assert score(model, prompt=own) == score(model)
    entry = CATALOGUE["rerank"]  # as a server asks
    task: Any = entry.make(model, entry.read_options({"prompt": "Find pets"}))
    assert task.compute([task.prepare((QUERY, TEXT))])[0].score == score(model, prompt="Find pets")
    other = published.RERANKER_TEMPLATE.replace(own, "Find pets")
    assert score(load(language_model(tmp_path / "other", other))) == score(model, prompt="Find pets")
    for wrong in (5, "pets " * 300):
        with pytest.raises(ArgumentError, match="`prompt` is"):
            score(model, prompt=wrong)
    with pytest.raises(ArgumentError, match="only the query and the text"):
        score(cross_encoder(tmp_path / "bert"), prompt="Find pets")


@pytest.mark.parametrize(("query", "text"), [(QUERY, "cats " * 500), ("cats " * 500, TEXT), ("a " * 999, "b " * 9999)])
def test_long_texts_are_cut_and_the_prompt_never(query: str, text: str, model: mlxbert.Model) -> None:
    tokenizer, usage = model.tokenizer, Usage()
    encoding = tokenizer.encode(query, text, overflow="truncate")
    found = tokenizer.decode(encoding.ids)
    assert len(encoding) == tokenizer.max_length == 300 and encoding.truncated
    assert found.count("\n<Query>: ") == found.count("\n<Document>: ") == 1
    assert found.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert score(model, text, query, usage=usage) and usage.truncated == 1
    with pytest.raises(InputError):
        score(model, text, query, overflow="error")


def test_a_long_text_has_the_score_of_its_best_window(model: mlxbert.Model) -> None:
    windows = model.tokenizer.windows(QUERY, "the cat sat . " * 120, stride=0)
    assert len(windows) > 2
    for window in windows:
        found = model.tokenizer.decode(window.ids)
        assert f"<Query>: {QUERY}\n<Document>:" in found and found.endswith("</think>\n\n")
    batches = [Batch(mx.array([one.ids]), mx.ones((1, len(one.ids))), None) for one in windows]
    logits = [mx.sigmoid(model.network.logits("sequence_classifier", one))[0, 0] for one in batches]
    assert score(model, "the cat sat . " * 120, overflow="window") == pytest.approx(max(logits).item(), abs=1e-6)


_PARTS = st.sampled_from([*"aZ7é中😀 ?!.,\t\n\r\u0301", "  ", "yes", "<|im_end|>", "<think>", "\n<D"])
_TEXTS = st.lists(_PARTS, max_size=4).map("".join)


@given(_TEXTS, _TEXTS)
@settings(max_examples=60, deadline=None)
def test_the_tokens_are_those_of_the_whole_input(model: mlxbert.Model, query: str, text: str) -> None:
    tokenizer = model.tokenizer
    assert tokenizer.prompt is not None
    whole = f"{tokenizer.prompt.before} {query}\n<Document>: {text}{tokenizer.prompt.after}"
    assert tokenizer.encode(query, text).ids == tokenizer.pieces(whole)


_VARIANTS = [
    '<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}\n'
    '<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}',
    published.RERANKER_TEMPLATE.replace("Judge whether", "Say whether"),
    published.RERANKER_TEMPLATE.replace("{{ query_text }}", "{{ query_text | upper }}"),
    published.RERANKER_TEMPLATE.replace("{{ query_text }}", "{{ document_text }}"),
    published.RERANKER_TEMPLATE.replace("</think>\n\n\n", "</think>\n"),
    published.RERANKER_TEMPLATE + "{{ ''.__class__ }}",
]


@pytest.mark.parametrize("template", _VARIANTS)
def test_other_templates_are_refused_by_name_and_not_run(template: str, tmp_path: Path) -> None:
    folder = language_model(tmp_path / "m", template)
    with pytest.raises(CheckpointError, match="the chat template is") as caught:
        load(folder)
    assert "never runs" in str(caught.value.hint)
    assert mlxbert.load(folder, task="embed").network.heads == {}


def test_the_same_template_in_other_words_is_known(tmp_path: Path) -> None:
    folder = language_model(tmp_path / "m")
    prompt = read_prompt(ModelFolder(folder))
    assert prompt is not None
    (folder / "chat_template.jinja").write_text(prompt.template())
    assert read_prompt(ModelFolder(folder)) == prompt
    template = published.RERANKER_TEMPLATE.replace('"', "'").replace("'yes' or 'no'", '"yes" or "no"')
    (folder / "chat_template.jinja").unlink()
    put(folder, {"tokenizer_config.json": {"chat_template": [{"name": "default", "template": template}]}})
    assert read_prompt(ModelFolder(folder)) == prompt


def test_a_template_that_is_missing_is_an_error_with_a_hint(tmp_path: Path) -> None:
    for name, template in (("none", None), ("chat", published.CHAT_TEMPLATE)):
        folder = language_model(tmp_path / name, template)
        with pytest.raises(MissingHeadError, match="chat template of Qwen3-Reranker"):
            load(folder)
        with pytest.raises(CheckpointError, match="needs a chat template") as caught:
            load(with_modules(folder))
        assert "Qwen3-Reranker" in str(caught.value.hint)


def test_a_converted_model_without_a_template_is_recognized(model: mlxbert.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "classifier")
    assert score(load(tmp_path / "classifier")) == score(model)
    (tmp_path / "classifier/chat_template.jinja").unlink()
    put(tmp_path / "classifier", {"tokenizer_config.json": {"chat_template": published.CHAT_TEMPLATE}})
    with pytest.raises(CheckpointError, match="almost the same"):
        load(tmp_path / "classifier")


@together(
    "answers",
    [
        {"true_token_id": 10**6}, {"true_token_id": -1}, {"false_token_id": None}, {"false_token_id": "no"},
        {"false_token_id": 5}, {"module_input_name": "logits"},
    ],
)  # fmt: skip
def test_answers_that_are_no_tokens_or_not_in_the_vocabulary_are_refused(
    answers: dict[str, Any], tmp_path: Path
) -> None:
    folder = language_model(Path(tempfile.mkdtemp(dir=tmp_path)) / "m")
    with pytest.raises(ConfigError, match="1_LogitScore"):
        load(with_modules(folder, **answers))
    (folder / "modules.json").unlink()
    saved = json.loads((folder / "tokenizer.json").read_text())
    del saved["model"]["vocab"]["yes"]
    saved["model"]["merges"] = [pair for pair in saved["model"]["merges"] if "".join(pair) != "yes"]
    with pytest.raises(ConfigError, match="yes is missing"):
        load(put(folder, {"tokenizer.json": saved}))


def test_settings_that_change_the_texts_count(tmp_path: Path) -> None:
    folder = language_model(tmp_path / "m")
    assert load(with_modules(folder, SETTINGS | {"max_seq_length": 260})).tokenizer.max_length == 260
    with pytest.raises(TokenizerError, match="the model's prompt"):
        load(with_modules(folder, SETTINGS | {"max_seq_length": 220}))
    with pytest.raises(ConfigError, match="processing_kwargs"):
        load(with_modules(folder, SETTINGS | {"processing_kwargs": {"text": {"max_length": 9}}}))


def test_a_text_alone_has_no_score(model: mlxbert.Model) -> None:
    with pytest.raises(InputError, match="query"):
        mlxbert.classify(model, TEXT)
    found = mlxbert.classify(model, (QUERY, TEXT))
    assert isinstance(found, mlxbert.Classification) and found.labels[0].score == score(model)
    about = mlxbert.inspect(model.folder)
    assert "classify" in about.tasks and about.parts["sequence_classifier"].parameters == 20


@needs("train")
def test_training_reads_the_prompt_and_writes_a_classifier(tmp_path: Path) -> None:
    folder = with_modules(language_model(tmp_path / "m"))
    data = [
        {"query": QUERY, "text": text, "label": label} for text, label in ((TEXT, 1), ("dogs", 0)) for _ in range(4)
    ]
    options: dict[str, Any] = {"train": data, "valid": data, "model": folder, "epochs": 2, "lr": 1e-2, "batch_size": 4}
    with pytest.raises(ArgumentError, match="`lora` cannot train"):
        [*mlxbert.finetune("rerank", output=tmp_path / "adapter", lora=2, **options)]
    [*_] = mlxbert.finetune("rerank", output=tmp_path / "out", **options)
    trained = load(tmp_path / "out")
    assert trained.tokenizer.encode(QUERY, TEXT) == load(folder).tokenizer.encode(QUERY, TEXT)
    assert abs(score(trained) - 0.5) < abs(score(load(folder)) - 0.5)  # half of the labels are 1
    assert not (tmp_path / "out/modules.json").exists()
