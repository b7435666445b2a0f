"""The commands that `scripts/behaviour` runs: a table for each command of the program.

`OUT` in a command is its output folder, `out/NAME`; models are `models/NAME`, texts `texts/NAME`.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

EXTRA = ("minilm", "minilm-mlm")  # optional models, added by `--model NAME=PATH`


@dataclass(frozen=True)
class Case:
    """A run of the program.

    Attributes:
        name: The name of the case, and of its output folder.
        argv: The arguments after `mlxbert`.
        stdin: The file that it reads from a pipe.
        after: Cases that must run before, because it uses their files or changes files that they use.
        terminal: Whether its stdout is a terminal, 100 columns wide.
        cache: Whether it uses a hub cache with models, rather than an empty one.
        variables: Additional environment variables.
        shared: The case whose output folder it writes to, if not its own.
    """

    name: str
    argv: tuple[str, ...]
    stdin: str | None = None
    after: tuple[str, ...] = ()
    terminal: bool = False
    cache: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    shared: str = ""

    @property
    def extra(self) -> set[str]:
        """The extra models that the case needs."""
        return {name for name in EXTRA if f"models/{name}" in self.argv}


_MANY_BERT = "-i texts/many.txt -m models/bert-Model"
_CHANGED = "models/changed"
_PLAIN = "models/bert-ForPreTraining"
_TEXTS = '"the cat sat on the [MASK]." "[MASK] is the largest [MASK], he went" "a"'
# Words for a mask; the second class of each family stands for its other heads.
_FAMILIES = {
    "bert": ("ForMaskedLM", "ForSequenceClassification"),
    "roberta": ("ForMaskedLM", "ForSequenceClassification"),
    "xlm-roberta": ("ForMaskedLM", "ForTokenClassification"),
    "camembert": ("ForMaskedLM", "ForQuestionAnswering"),
    "distilbert": ("ForMaskedLM", "ForSequenceClassification"),
    "albert": ("ForMaskedLM", "ForPreTraining"),
    "albert-two-groups": ("Model", "ForTokenClassification"),
    "electra": ("ForMaskedLM", "ForQuestionAnswering"),
    "mpnet": ("ForMaskedLM", "ForSequenceClassification"),
    "modernbert": ("ForMaskedLM", "ForSequenceClassification"),
    "nomic": ("ForMaskedLM", "ForTokenClassification"),
    "gte": ("ForMaskedLM", "ForSequenceClassification"),
    "deberta-v2": ("ForMaskedLM", "ForQuestionAnswering"),
    "deberta-v3": ("ForMaskedLM", "ForSequenceClassification"),
}

GENERAL = {
    "version": "--version",
    "nothing": "",
    "help": "--help",
    "unknown-command": "fill",
    "unknown-option": "embed text --nonsense",
    "unknown-choice": "embed text --dtype float8",
    **{
        f"help-{name}": f"{name.replace('models-', 'models ')} --help"
        for name in (
            *("fill-mask", "embed", "similarity", "next-sentence", "replaced", "tokenize", "inspect", "convert"),
            *("verify", "doctor", "models", "models-list", "models-download", "models-path", "models-remove"),
        )
    },
}
FILL_MASK = {
    "fill": 'fill-mask "Tokyo is the largest city in [MASK]." "The [MASK] sat on the [MASK]."',
    "fill-one": 'fill-mask "She plays the [MASK] in an orchestra." --top-k 2 --json --quiet',
    "fill-targets": 'fill-mask "She plays the [MASK] in an orchestra." --targets violin,piano,drums',
    "fill-targets-top": 'fill-mask "She plays the [MASK]." --targets "violin, piano,drums" --top-k 1',
    "fill-unknown-target": 'fill-mask "She plays the [MASK]." --targets violin,zzzzqq',
    "fill-empty-target": 'fill-mask "She plays the [MASK]." --targets violin,,piano',
    "fill-no-mask": 'fill-mask "There is none."',
    "fill-some-no-mask": 'fill-mask "There is none." "A [MASK]."',
    "fill-long": "fill-mask -i texts/long.txt --top-k 2",
    "fill-long-truncate": "fill-mask -i texts/long.txt --overflow truncate",
    "fill-long-error": "fill-mask -i texts/long.txt --overflow error",
    "fill-bad": "fill-mask -i texts/bad.jsonl -m models/bert-ForMaskedLM",
    "fill-strict": "fill-mask -i texts/bad.jsonl -m models/bert-ForMaskedLM --strict",
    "fill-many": "fill-mask -i texts/masked.jsonl -m models/bert-ForMaskedLM -o OUT/filled.jsonl --batch-tokens 256",
    "fill-truncate": "fill-mask -i texts/masked.jsonl -m models/gte-ForMaskedLM -o OUT/a.jsonl --overflow truncate",
    "fill-half": "fill-mask -i texts/masked.txt -m models/bert-ForMaskedLM --dtype float16",
    "fill-bfloat16": "fill-mask -i texts/masked.txt -m models/roberta-ForMaskedLM --dtype bfloat16",
    "fill-pairs": f"fill-mask {_TEXTS} -m models/roberta-pairs",
    "fill-pieces": f"fill-mask {_TEXTS} -m models/xlm-pieces",
    "fill-no-head": f"fill-mask {_TEXTS} -m models/bert-Model",
    "fill-zero": 'fill-mask "A [MASK]." --top-k 0',
    "fill-too-many": f"fill-mask {_TEXTS} -m models/bert-ForMaskedLM --top-k 44",
    "fill-ending": 'fill-mask "A [MASK]." -o OUT/filled.npy',
    "fill-table": "fill-mask -i texts/good.csv --text-column text --top-k 1",
    "fill-minilm": "fill-mask -i texts/long.txt -m models/minilm-mlm --top-k 3",
    **{f"fill-{family}": f"fill-mask {_TEXTS} -m models/{family}-{head}" for family, (head, _) in _FAMILIES.items()},
}
EMBED = {
    "embed": 'embed "a text" "another text, longer than the first"',
    "embed-npy": f"embed {_MANY_BERT} -o OUT/v.npy",
    "embed-sqlite": f"embed {_MANY_BERT} -o OUT/v.sqlite --batch-tokens 200 --pooling max",
    "embed-parquet": "embed -i texts/many.jsonl -m models/mpnet-ForMaskedLM -o OUT/v.parquet",
    "embed-jsonl": "embed -i texts/many.jsonl -m models/st-dense -o OUT/deep/v.jsonl --quiet",
    "embed-window": f"embed {_MANY_BERT} -o OUT/v.npy --overflow window",
    "embed-error": f"embed {_MANY_BERT} -o OUT/v.parquet --overflow error",
    "embed-builtin": "embed -i texts/many.txt -o OUT/v.npy",
    "embed-prose": "embed -i texts/prose.txt -o OUT/v.npy --pooling cls+mean",
    "embed-long": "embed -i texts/long.txt --overflow window --dimensions 8",
    "embed-minilm": "embed -i texts/prose.txt -m models/minilm -o OUT/v.npy",
    "embed-minilm-half": "embed -i texts/plain.txt -m models/minilm --dtype float16 --dimensions 16",
    "embed-minilm-long": "embed -i texts/long.txt -m models/minilm --overflow window -o OUT/v.jsonl",
    "embed-dimensions": "embed -i texts/plain.txt --dimensions 12",
    "embed-dimensions-unit": "embed -i texts/plain.txt --dimensions 12 --normalize",
    "embed-dimensions-all": "embed text --dimensions 4000",
    "embed-raw": "embed -i texts/plain.txt --no-normalize -m models/minilm-mlm --dimensions 8",
    "embed-unit": "embed -i texts/plain.txt --normalize -m models/wide",
    "embed-dense": "embed -i texts/plain.txt -m models/st-dense",
    "embed-query": "embed -i texts/plain.txt -m models/st-dense --prompt-name query",
    "embed-prompt": 'embed -i texts/plain.txt -m models/st-dense --prompt "he bought: " --no-normalize',
    "embed-no-prompt": "embed text -m models/st-dense --prompt-name nonsense",
    "embed-old": "embed -i texts/plain.txt -m models/st-old",
    "embed-verbose": 'embed "the cat" -m models/bert-Model --verbose',
    "embed-nan": 'embed "the cat" "a dog" -m models/changed-nan',
    "embed-bfloat16": "embed -i texts/plain.txt -m models/wide --dtype bfloat16",
    **{
        f"embed-{name.replace('_', '-')}": f"embed -i texts/plain.txt -m models/wide --pooling {name}"
        for name in ("mean_sqrt_len", "weighted_mean", "last_token", "attention", "max+cls", "nonsense")
    },
    **{
        f"embed-{family}": f"embed -i texts/plain.txt -m models/{family}-{head} --overflow window"
        for family, (_, head) in _FAMILIES.items()
    },
}
RECORDS = {
    "read-bad": "embed -i texts/bad.jsonl -m models/bert-Model",
    "read-bad-npy": "embed -i texts/bad.jsonl -m models/bert-Model -o OUT/v.npy",
    "read-bad-parquet": "embed -i texts/bad.jsonl -m models/bert-Model -o OUT/v.parquet",
    "read-bad-sqlite": "embed -i texts/bad.jsonl -m models/bert-Model -o OUT/v.sqlite",
    "read-all-bad": "embed -i texts/all-bad.jsonl -m models/bert-Model -o OUT/v.npy",
    "read-strict": "embed -i texts/bad.jsonl -m models/bert-Model --strict -o OUT/v.npy",
    "read-csv": "embed -i texts/good.csv --text-column text -m models/bert-Model",
    "read-csv-note": "tokenize -i texts/good.csv --text-column note -m models/bert-Model",
    "read-bad-csv": "embed -i texts/bad.csv -m models/bert-Model",
    "read-no-column": "embed -i texts/good.csv --text-column body -m models/bert-Model",
    "read-twice": "embed -i texts/twice.csv -m models/bert-Model",
    "read-semicolons": "embed -i texts/semicolons.csv -m models/bert-Model",
    "read-tsv": "tokenize -i texts/good.tsv --text-column text -m models/bert-Model",
    "read-bad-tsv": "embed -i texts/bad.tsv -m models/bert-Model",
    "read-field": "embed -i texts/titles.jsonl --field title --dimensions 4",
    "read-no-field": "embed -i texts/titles.jsonl --field name --dimensions 4",
    "read-format": "tokenize -i texts/plain.data --format txt -m models/bert-Model",
    "read-ending": "tokenize -i texts/plain.data -m models/bert-Model",
    "read-field-of-text": "tokenize -i texts/plain.txt --field a",
    "read-column-of-text": "tokenize -i texts/plain.txt --text-column a",
    "read-latin-1": "tokenize -i texts/latin-1.txt -m models/bert-Model",
    "read-utf-16": "tokenize -i texts/utf-16.txt -m models/bert-Model",
    "read-windows": "tokenize -i texts/windows.txt -m models/bert-Model",
    "read-empty": "embed -i texts/empty.txt -m models/bert-Model",
    "read-empty-npy": "embed -i texts/empty.txt -m models/bert-Model -o OUT/v.npy",
    "read-empty-csv": "embed -i texts/empty.txt --format csv -m models/bert-Model",
    "read-missing": "embed -i texts/none.txt",
    "read-both": "embed text -i texts/plain.txt",
    "read-argument": "tokenize texts/plain.txt",
    "write-folder": "embed text -o models/folder.npy",
    "write-ending": "embed text -o OUT/v.csv",
    "write-input": "tokenize -i texts/many.jsonl -o texts/many.jsonl --overwrite",
    "write-nowhere": "embed text -o texts/plain.txt/v.npy",
}
SIMILARITY = {
    "similar": 'similarity "A man is eating." "Someone is having lunch." "The sky is blue."',
    "similar-file": 'similarity "A refund" -i texts/prose.txt --top-k 5',
    "similar-dense": "similarity -i texts/plain.txt -m models/st-dense --prompt-name query --dimensions 6",
    "similar-many": 'similarity "the cat" -i texts/many.jsonl -m models/bert-Model --top-k 20 --pooling attention',
    "similar-bad": 'similarity "the cat" -i texts/bad.jsonl -m models/bert-Model --overflow error',
    "similar-strict": 'similarity "the cat" -i texts/bad.jsonl -m models/bert-Model --strict',
    "similar-window": "similarity -i texts/plain.txt -m models/bert-Model --overflow window --prompt 'a city '",
    "similar-one": 'similarity "alone"',
    "similar-zero": "similarity a b --top-k 0",
    "similar-minilm": 'similarity "A refund" -i texts/prose.txt --top-k 3 -m models/minilm',
}
NEXT_SENTENCE = {
    "next": 'next-sentence "The man went to the store." "He bought a gallon of milk."',
    "next-file": "next-sentence -i texts/pairs.jsonl -m models/bert-ForNextSentencePrediction -o OUT/next.jsonl",
    "next-error": f"next-sentence -i texts/pairs.jsonl -m {_PLAIN} --overflow error --batch-tokens 100",
    "next-csv": f"next-sentence -i texts/pairs.csv -m {_PLAIN}",
    "next-bad": f"next-sentence -i texts/bad-pairs.jsonl -m {_PLAIN}",
    "next-strict": f"next-sentence -i texts/bad-pairs.jsonl -m {_PLAIN} --strict",
    "next-order": "next-sentence a b -m models/albert-ForPreTraining",
    "next-three": "next-sentence a b c",
    "next-text": "next-sentence -i texts/plain.txt",
    "next-column": "next-sentence -i texts/pairs.csv --text-column a",
    "next-minilm": "next-sentence -i texts/pairs.jsonl -m models/minilm-mlm",
}
REPLACED = {
    "replaced": 'replaced "the cat went to tokyo, he" "a dog" -m models/electra-ForPreTraining',
    "replaced-file": "replaced -i texts/plain.txt -m models/electra-ForPreTraining",
    "replaced-many": "replaced -i texts/many.txt -m models/electra-ForPreTraining -o OUT/r.jsonl --overflow truncate",
    "replaced-window": "replaced -i texts/many.txt -m models/electra-ForPreTraining -o OUT/r.jsonl --batch-tokens 300",
    "replaced-error": "replaced -i texts/bad.jsonl -m models/electra-ForPreTraining --overflow error",
    "replaced-google": 'replaced "the cat sat" -m models/tf1-electra-pretraining',
    "replaced-bert": 'replaced "the cat"',
}
TOKENIZE = {
    "tokenize": 'tokenize "Hello, playwrights!" --pair "Goodbye."',
    "tokenize-file": "tokenize -i texts/plain.txt --overflow truncate",
    "tokenize-many": "tokenize -i texts/many.jsonl -m models/bert-Model -o OUT/t.jsonl --overflow truncate",
    "tokenize-error": "tokenize -i texts/plain.txt -m models/bert-Model",
    "tokenize-pairs": "tokenize -i texts/plain.txt -m models/roberta-pairs --pair 'the cat' --overflow truncate",
    "tokenize-pieces": "tokenize -i texts/plain.txt -m models/xlm-pieces --overflow truncate",
    "tokenize-case": 'tokenize "The CAT, the cat" -m models/changed-case',
    "tokenize-wordless": "tokenize a -m models/changed-wordless",
    "tokenize-minilm": "tokenize -i texts/plain.txt -m models/minilm",
}
INSPECT = {
    "inspect": "inspect",
    "inspect-quiet": f"inspect {_PLAIN} --json --quiet",
    "inspect-hub": "inspect tests/none",
    "inspect-minilm": "inspect models/minilm",
    "inspect-minilm-mlm": "inspect models/minilm-mlm",
    **{
        f"inspect-{name}": f"inspect models/{name}"
        for name in (
            *("wide", "st-dense", "st-old", "roberta-pairs", "xlm-pieces", "torch-bert", "npz-bert"),
            *("tf1-bert-pretraining", "tf1-bert-classifier", "tf1-bert-squad"),
            *("tf1-albert-pretraining", "tf1-electra-pretraining", "torch-1.4-python-2.7-stream", "missing"),
            *("torch-1.6-python-3.7-zip", "broken-empty", "broken-config", "broken-weights", "broken-keras"),
            *("broken-modules", "changed-family", "changed-facts", "changed-less", "changed-more", "changed-size"),
            *("changed-half", "changed-wordless", "changed-activation", "electra-ForPreTraining"),
        )
    },
    **{f"inspect-{family}": f"inspect models/{family}-{head}" for family, (_, head) in _FAMILIES.items()},
}
CONVERT = {
    "convert": "convert builtin OUT/copy",
    "convert-dense": "convert models/st-dense OUT/copy --dtype float16",
    "convert-bfloat16": f"convert {_PLAIN} OUT/copy --dtype bfloat16",
    "convert-half": f"convert {_PLAIN} OUT/copy --dtype float16",
    "convert-float32": "convert models/changed-half OUT/copy --dtype float32",
    "convert-shards": f"convert {_PLAIN} OUT/copy --max-shard-size 30KB",
    "convert-q8": "convert models/wide OUT/copy --quantize 8 --group-size 32",
    "convert-q4": "convert models/wide OUT/copy --quantize 4",
    "convert-q4-half": "convert models/wide OUT/copy --quantize 4 --dtype float16 --group-size 64",
    "convert-q-narrow": f"convert {_PLAIN} OUT/copy --quantize 8",
    "convert-q-minilm": "convert models/minilm OUT/copy --quantize 8",
    "convert-minilm-mlm": "convert models/minilm-mlm OUT/copy --dtype bfloat16 --max-shard-size 20MB",
    "convert-large": f"convert {_CHANGED}-large OUT/copy --dtype float16",
    "convert-nan": f"convert {_CHANGED}-nan OUT/copy",
    "convert-more": f"convert {_CHANGED}-more OUT/copy",
    "convert-less": f"convert {_CHANGED}-less OUT/copy",
    "convert-bits": f"convert {_PLAIN} OUT/copy --quantize 5",
    "convert-group": f"convert {_PLAIN} OUT/copy --group-size 32",
    "convert-size": f"convert {_PLAIN} OUT/copy --max-shard-size big",
    "convert-into": f"convert {_PLAIN} {_PLAIN}/inner",
    "convert-over": f"convert {_PLAIN} models/wide --overwrite",
    "convert-file": f"convert {_PLAIN} texts/plain.txt",
    "convert-missing": "convert models/missing OUT/copy",
    **{
        f"convert-{name}": f"convert models/{name} OUT/copy"
        for name in (
            *("torch-bert", "npz-bert", "tf1-bert-pretraining"),
            *("tf1-bert-classifier", "tf1-bert-squad", "tf1-albert-pretraining", "tf1-electra-pretraining"),
            *("torch-1.6-python-3.7-stream", "st-old", "roberta-pairs", "xlm-pieces"),
        )
    },
    **{f"convert-{family}": f"convert models/{family}-{head} OUT/copy" for family, (_, head) in _FAMILIES.items()},
}
VERIFY = {
    "verify-builtin": "verify builtin builtin",
    "verify-other-family": f"verify {_PLAIN} models/roberta-ForMaskedLM",
    "verify-other-head": f"verify {_PLAIN} models/bert-ForSequenceClassification",
    "verify-other-size": "verify models/wide models/bert-Model",
    "verify-dense": "verify models/st-dense models/wide",
    "verify-broken": f"verify {_PLAIN} models/broken-weights",
    "verify-missing": f"verify models/missing {_PLAIN}",
    "verify-minus": f"verify {_PLAIN} {_PLAIN} --tolerance=-1",
    "verify-tolerant": f"verify {_PLAIN} {_CHANGED}-nudged --tolerance 0.5",
    "verify-half-strict": f"verify {_PLAIN} {_CHANGED}-half --tolerance 1e-6",
    "verify-minilm": "verify models/minilm models/minilm-mlm",
    "verify-formats": "verify models/torch-bert models/npz-bert",
    **{
        f"verify-{name}": f"verify {_PLAIN} {_CHANGED}-{name}"
        for name in (
            *("nothing", "transposed", "nudged", "nan", "half", "more", "less", "activation", "dropout"),
            *("family", "words", "case", "size", "wordless"),
        )
    },
}
MODELS = {
    "models": "models",
    "models-list": "models list",
    "models-path-builtin": "models path builtin",
    "models-path-folder": "models path models/wide",
    "models-path-missing": "models path tests/none",
    "models-download": "models download tests/none",
    "models-verify-missing": "models verify tests/none",
    "models-remove-missing": "models remove tests/none --yes",
    "models-offline": "embed text --model tests/none --offline",
}
CACHED = {
    "cached-list": "models list --json",
    "cached-verify": "models verify --json",
    "cached-path": "models path tests/whole",
    "cached-revision": "models path tests/whole --revision nonsense",
    "cached-half": "models path tests/half",
    "cached-embed": 'embed "the cat" --model tests/whole --offline',
    "cached-inspect": "inspect tests/whole --revision main",
    "cached-ask": "models remove tests/whole",
    "cached-convert": "convert tests/whole OUT/copy",
}
AT_TERMINAL = {
    "shown-fill": 'fill-mask "Tokyo is the largest city in [MASK]." "The [MASK] sat on the [MASK]."',
    "shown-fill-json": 'fill-mask "A [MASK]." --json --top-k 1',
    "shown-embed": "embed 'a text' 'another text' 'the cat sat on the mat, and \u6771\u4eac' --dimensions 64",
    "shown-bad": "embed -i texts/bad.jsonl -m models/bert-Model",
    "shown-similar": 'similarity "A man is eating." "Someone is having lunch." "The sky is blue."',
    "shown-next": 'next-sentence "The man went to the store." "He bought a gallon of milk."',
    "shown-replaced": 'replaced "the cat went to tokyo, he bought milk" -m models/electra-ForPreTraining',
    "shown-tokenize": 'tokenize "Hello, playwrights! The cat sat on the mat in Paris." --pair "Goodbye."',
    "shown-inspect": "inspect models/st-dense",
    "shown-inspect-tensors": "inspect models/tf1-bert-classifier --tensors",
    "shown-convert": "convert models/tf1-bert-squad OUT/copy --dtype float16",
    "shown-verify": f"verify {_PLAIN} {_CHANGED}-transposed",
    "shown-verify-words": f"verify {_PLAIN} {_CHANGED}-words",
    "shown-list": "models list",
    "shown-help": "embed --help",
}
_LATE = "embed -i texts/late.jsonl -m models/bert-Model -o out/late/v.jsonl"
_ALREADY = "embed -i texts/plain.txt -m models/bert-Model -o out/there/v.npy"


def case(name: str, command: str) -> Case:
    """Makes a case from a command line."""
    return Case(name, tuple(shlex.split(command.replace("OUT/", f"out/{name}/"))))


def _special() -> Iterator[Case]:
    """Cases that read from a pipe, or use files of other cases."""
    fill = replace(case("fill-pipe", "fill-mask -m models/bert-ForMaskedLM --top-k 2"), stdin="texts/masked.txt")
    yield fill
    yield replace(fill, name="fill-pipe-strict", argv=(*fill.argv, "--strict"))
    yield replace(fill, name="fill-variable", argv=fill.argv[:1], variables={"MLXBERT_MODEL": "models/xlm-pieces"})
    yield replace(case("read-pipe-csv", "tokenize -i - --text-column text"), stdin="texts/good.csv")
    yield replace(case("read-pipe-field", "tokenize --field title"), stdin="texts/titles.jsonl")
    yield replace(case("read-pipe-output", "embed -o OUT/v.npy -m models/bert-Model"), stdin="texts/many.txt")
    yield replace(case("next-pipe", f"next-sentence -m {_PLAIN}"), stdin="texts/pairs.jsonl")
    yield replace(case("similar-pipe", "similarity 'the cat' -m models/st-old"), stdin="texts/plain.txt")
    yield replace(case("similar-pipe-all", "similarity -m models/st-old --top-k 2"), stdin="texts/plain.txt")
    yield case("late", f"{_LATE} --strict")
    yield replace(case("late-other", f"{_LATE} --pooling cls"), after=("late",), shared="late")
    yield replace(case("late-again", _LATE), after=("late-other",), shared="late")
    yield case("there", _ALREADY)
    yield replace(case("there-again", _ALREADY), after=("there",), shared="there")
    yield replace(case("there-over", f"{_ALREADY} --overwrite --pooling cls"), after=("there-again",), shared="there")
    again = case("convert-there", f"convert {_PLAIN} out/convert-half/copy")
    yield replace(again, after=("convert-half",), shared="convert-half")
    over = f"convert {_PLAIN} out/convert-float32/copy --overwrite --dtype bfloat16"
    yield replace(case("convert-there-over", over), after=("convert-float32",), shared="convert-float32")
    for name in ("half", "bfloat16", "shards", "q8", "q4", "dense", "tf1-bert-pretraining", "minilm-mlm"):
        source = {"q8": "models/wide", "q4": "models/wide", "dense": "models/st-dense", "half": _PLAIN}.get(name)
        source = source or (_PLAIN if name in ("bfloat16", "shards") else f"models/{name}")
        verification = case(f"verify-converted-{name}", f"verify {source} out/convert-{name}/copy")
        yield replace(verification, after=(f"convert-{name}",))
    for name, command in {
        "verify-q8-strict": "verify models/wide out/convert-q8/copy --tolerance 1e-5",
        "inspect-q8": "inspect out/convert-q8/copy",
        "embed-q8": "embed -i texts/plain.txt -m out/convert-q8/copy",
        "convert-q8-back": "convert out/convert-q8/copy OUT/copy --dtype float32",
    }.items():
        yield replace(case(name, command), after=("convert-q8",))
    yield replace(case("inspect-shards", "inspect out/convert-shards/copy"), after=("convert-shards",))
    gone = replace(case("cached-remove", "models remove tests/whole --yes"), cache=True, after=tuple(CACHED))
    yield gone
    yield replace(case("cached-rest", "models list"), cache=True, after=(gone.name,))


# The cases that run without `--all`: each command, format and kind of failure.
_CORE = """
version nothing unknown-command unknown-option help-embed fill fill-targets fill-unknown-target fill-no-mask
fill-some-no-mask fill-long fill-bad fill-many fill-half fill-pairs fill-pieces fill-no-head fill-too-many
fill-roberta fill-distilbert fill-albert fill-mpnet fill-modernbert fill-nomic fill-gte fill-deberta-v2
fill-deberta-v3 fill-pipe shown-fill embed embed-npy embed-parquet embed-jsonl embed-window
embed-error embed-prose embed-minilm embed-dimensions-unit embed-dense embed-query embed-prompt embed-old
embed-nan embed-attention embed-nonsense embed-xlm-roberta embed-camembert embed-albert-two-groups late
late-other late-again shown-embed read-bad read-bad-npy read-bad-parquet read-all-bad read-csv read-bad-csv
read-no-column read-field read-latin-1 read-windows read-empty-npy read-missing read-both read-pipe-csv
write-ending similar similar-file similar-dense similar-bad shown-similar next next-file next-csv next-bad
next-order replaced replaced-window replaced-bert shown-replaced tokenize tokenize-many tokenize-error
tokenize-pairs shown-tokenize inspect inspect-st-dense inspect-tf1-electra-pretraining
inspect-broken-weights inspect-torch-1.4-python-2.7-stream inspect-deberta-v2 inspect-q8 shown-inspect
convert-dense convert-bfloat16 convert-half convert-shards convert-q8 convert-q4 convert-large
convert-torch-bert convert-npz-bert convert-tf1-bert-classifier convert-albert
convert-modernbert convert-gte verify-other-head verify-nothing verify-transposed verify-words
verify-half verify-half-strict verify-dense verify-less verify-converted-half verify-converted-q8
verify-q8-strict shown-verify models-list cached-list cached-embed
"""
CORE = frozenset(_CORE.split())


def cases(*, whole: bool) -> list[Case]:
    """All cases, or the cases in `CORE`; each case comes after those in its `after`."""
    plain = (GENERAL, FILL_MASK, EMBED, RECORDS, SIMILARITY, NEXT_SENTENCE, REPLACED, TOKENIZE, INSPECT, CONVERT)
    all_cases = [case(name, command) for table in (*plain, VERIFY, MODELS) for name, command in table.items()]
    all_cases += [replace(case(name, command), cache=True) for name, command in CACHED.items()]
    all_cases += [replace(case(name, command), terminal=True) for name, command in AT_TERMINAL.items()]
    all_cases += _special()
    names = {each.name for each in all_cases}
    assert len(names) == len(all_cases), "two cases have the same name"
    assert names >= CORE, CORE - names
    return [each for each in all_cases if whole or each.name in CORE]
