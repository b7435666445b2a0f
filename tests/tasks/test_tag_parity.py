"""tag next to the pipeline of transformers: every aggregation, every family, vocabularies of each kind; long texts.

Needs torch and transformers.
"""

import os
import warnings
from pathlib import Path
from typing import Any, get_args

import pytest

import mlxbert
from mlxbert.tasks.options import Aggregation
from mlxbert.text.words import trimmed
from tests.helpers.families import FAMILIES, make_config, make_model
from tests.helpers.frozen import add_vocabulary
from tests.helpers.taggers import HEAD, NER, save_tagger

torch = pytest.importorskip("torch", reason="parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.slow

CLASS, BOUND = "ForTokenClassification", 1e-4
VOCABULARIES = Path(os.environ.get("MLXBERT_TEST_TOKENIZERS", "/none"))
# Those of the first folder name that is there, and the family that they belong to.
REAL = {
    "bert-base-cased": "Bert", "bert-base-uncased": "Bert", "bert-base-chinese": "Bert",
    "bert-base-multilingual-cased": "Bert", "roberta-base": "Roberta", "xlm-roberta-base": "XLMRoberta",
    "albert-base-v2": "Albert",
}  # fmt: skip
TEXTS = [
    'Angela Merkel\'s dog, called "Otto", went to Paris-Nord in the U.S. of A.',
    "he bought milk in tokyo , playing",
    "  the cat  sat\ton the\n mat ",
    "\u6211\u7231\u5317\u4eac\u5929\u5b89\u95e8\u3002Hello \u4e16\u754c",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u0623\u0647\u0644\u0627",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family in Z\u00fcrich \U0001f1e9\U0001f1ea!",
    "na\u00efve caf\u00e9 re\u0301sume\u0301 \ufb01ne \u00df \u0130stanbul",
]
WORDS = ["the cat sat on the mat", "a man went to the store , playing in paris .", "cats bought milk !", "zz paris"]

Found = list[tuple[str, int, int, float]]


def pipeline(folder: Path, tokenizer: Any, aggregation: str, kind: Any = None, **options: Any) -> Any:
    kind = kind or transformers.AutoModelForTokenClassification
    model = kind.from_pretrained(folder, attn_implementation="eager")
    options |= {"aggregation_strategy": aggregation, "device": "cpu"}
    return transformers.pipeline("token-classification", model=model, tokenizer=tokenizer, **options)


def theirs(pipe: Any, text: str) -> Found:
    """What the pipeline finds; some vocabularies count spaces to their tokens."""
    with warnings.catch_warnings(action="ignore"):
        rows = pipe(text)
    found = []
    for row in rows:
        start, end = trimmed(text, (row["start"], row["end"]))
        if start < end:
            found.append((row.get("entity_group", row.get("entity")), start, end, float(row["score"])))
    return found


def ours(model: mlxbert.Model, text: str, aggregation: Any) -> Found:
    entities = mlxbert.tag(model, text, aggregation=aggregation).entities
    return [(entity.label, entity.start, entity.end, entity.score) for entity in entities]


def assert_same(model: mlxbert.Model, pipe: Any, texts: list[str], aggregation: str) -> int:
    """The same entities at the same places with the same scores; returns how many."""
    count = 0
    for text in texts:
        found, wanted = ours(model, text, aggregation), theirs(pipe, text)
        assert [one[:3] for one in found] == [one[:3] for one in wanted], text
        assert [one[3] for one in found] == pytest.approx([one[3] for one in wanted], abs=BOUND)
        count += len(found)
    return count


@pytest.mark.parametrize(
    "family", [name for name, compared in FAMILIES.items() if CLASS in compared.heads and compared.in_transformers]
)
def test_entities_are_those_of_the_pipeline(family: str, tmp_path: Path) -> None:
    compared = FAMILIES[family]
    model = make_model(compared, CLASS)
    model.config.id2label = dict(enumerate(("B-Z", "B-X", "I-X", "I-Y")))
    model.save_pretrained(tmp_path)
    tokenizer = transformers.BertTokenizer.from_pretrained(add_vocabulary(tmp_path))
    tokenizer.model_input_names = ["input_ids", "attention_mask", *["token_type_ids"] * (compared.segments > 1)]
    loaded = mlxbert.load(tmp_path, task="tag", dtype="float32")
    pipes = {how: pipeline(tmp_path, tokenizer, how, type(model)) for how in get_args(Aggregation)}
    assert sum(assert_same(loaded, pipe, WORDS, how) for how, pipe in pipes.items())


@pytest.mark.parametrize("name", REAL)
def test_words_of_real_vocabularies_are_those_of_the_pipeline(name: str, tmp_path: Path) -> None:
    if not (VOCABULARIES / name).is_dir():
        pytest.skip(f"MLXBERT_TEST_TOKENIZERS names no folder with {name}")
    for path in (VOCABULARIES / name).iterdir():
        (tmp_path / path.name.removesuffix(".rebuilt")).write_bytes(path.read_bytes())
    tokenizer = getattr(transformers, f"{REAL[name]}Tokenizer").from_pretrained(tmp_path)
    roberta = "Roberta" in REAL[name] or "RoBERTa" in REAL[name]
    torch.manual_seed(1)
    config = getattr(transformers, f"{REAL[name]}Config")(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=514, pad_token_id=tokenizer.pad_token_id, initializer_range=0.3,
        type_vocab_size=1 if roberta else 2, id2label=dict(enumerate(NER.names)),
        **({"embedding_size": 16} if REAL[name] == "Albert" else {}),
    )  # fmt: skip
    folder = tmp_path / "model"
    getattr(transformers, f"{REAL[name]}{CLASS}")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded = mlxbert.load(folder, dtype="float32")
    for how in get_args(Aggregation):
        assert assert_same(loaded, pipeline(folder, tokenizer, how), TEXTS, how)


def test_where_the_pipeline_is_wrong_on_long_texts(tmp_path: Path) -> None:
    """It drops what is beyond the longest input; with a stride it merges windows by the length of what they found.

    The model gives each token its tag whatever is around it: every difference comes from the windows.
    """
    folder = save_tagger(tmp_path, NER, {"paris": "B-LOC", "city": "I-LOC", "man": "B-PER"})
    tokenizer = transformers.BertTokenizer.from_pretrained(folder, model_max_length=32)
    loaded = mlxbert.load(folder, dtype="float32")
    texts = ["the " * before + "paris" + " city" * 19 + " the man" * 20 for before in range(60)]
    wanted = [("LOC", 1), ("PER", 20)]
    cut, split = pipeline(folder, tokenizer, "simple"), pipeline(folder, tokenizer, "simple", stride=8)
    wrong = {"cut": 0, "split": 0}
    for before, text in enumerate(texts):
        entities = ours(loaded, text, "simple")
        assert [(label, sum(one[0] == label for one in entities)) for label, _ in wanted] == wanted
        assert entities[0][1:3] == (4 * before, 4 * before + len("paris" + " city" * 19))
        spans = [one[:3] for one in entities]
        wrong["cut"] += [one[:3] for one in theirs(cut, text)] != spans
        wrong["split"] += [one[:3] for one in theirs(split, text)] != spans
    assert wrong["cut"] == len(texts) and wrong["split"] > len(texts) / 4


def test_a_folder_with_a_crf_opens_there_and_gives_the_same_numbers(tmp_path: Path) -> None:
    make_model(FAMILIES["bert"], "Model").save_pretrained(tmp_path / "source")
    add_vocabulary(tmp_path / "source")
    crf = mlxbert.Labels(NER.names, crf=True)
    model = mlxbert.load(tmp_path / "source", new_heads={HEAD: crf}, dtype="float32")
    folder = mlxbert.save(model, tmp_path / "saved")
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    config = make_config(FAMILIES["bert"], CLASS)
    assert type(transformers.AutoConfig.from_pretrained(folder)) is type(config)
    for how in get_args(Aggregation):
        assert_same(model, pipeline(folder, tokenizer, how), WORDS, how)
