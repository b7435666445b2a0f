"""List the parties of contracts: train a small tagger for names, then read a folder of contracts with it.

    python examples/contract_parties.py
    python examples/contract_parties.py ~/contracts --model contract-tagger

The training data are 280 invented sentences, `examples/data/contract_sentences.jsonl`: a text, and spans with labels
PARTY, OTHER (those who are named but not parties: witnesses, banks, notaries), DATE and AMOUNT. No name in the
contracts occurs in them: a tagger that has seen the names would only recall them. The folder `--model` is made by the
first run. For the names of persons and organisations in general, take a model from the hub:
`mlxbert tag --input contract.txt --model dslim/bert-base-NER`.

Convert contracts in PDF or .docx to text first, with `pdftotext FILE.pdf` or `pandoc -t plain -o FILE.txt FILE.docx`.
A tagger reads best what it was trained on. The sentences have no headings and no line ends, so a contract is read
paragraph by paragraph, without its headings. The built-in model does not see capital letters. For contracts of your
own, train on some hundred of their sentences, or start from a larger model with `--base`.
"""

import argparse
from pathlib import Path

import mlxbert

DATA = Path(__file__).parent / "data"
SURE = 0.9  # of a lower probability, the tagger only guesses


def train(sentences, base, folder):
    """Trains the tagger. The CRF rules out sequences of tags that make no sense."""
    options = {"epochs": 4, "lr": 3e-4, "batch_size": 16, "crf": True}
    for event in mlxbert.finetune("tag", train=sentences, model=base, output=folder, **options):
        if isinstance(event, mlxbert.Evaluated):
            print(f"epoch {event.epoch:g}: F1 {event.metrics['f1']:.2f} on sentences that were set aside")


def paragraphs(text):
    """Splits a contract at empty lines, joins the lines of each paragraph, and leaves out headings."""
    joined = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return [paragraph for paragraph in joined if paragraph.endswith((".", ":", ";"))]


def names(model, text):
    """Returns the names in a contract, by label, each once and in their order."""
    found = {label: {} for label in ("PARTY", "OTHER", "DATE", "AMOUNT")}
    for result in mlxbert.tag(model, paragraphs(text)):
        for entity in result.entities:
            if entity.score >= SURE:
                found[entity.label][entity.text] = True
    return {label: list(texts) for label, texts in found.items()}


def main():
    """Trains the tagger unless its folder exists, then prints what it finds in each contract."""
    arguments = argparse.ArgumentParser(description="List the parties of contracts.")
    arguments.add_argument("folder", nargs="?", type=Path, default=DATA / "contracts")
    arguments.add_argument("--train", type=Path, default=DATA / "contract_sentences.jsonl")
    arguments.add_argument("--base", default="builtin")
    arguments.add_argument("--model", type=Path, default=Path("contract-tagger"))
    given = arguments.parse_args()
    if not given.model.exists():
        train(given.train, given.base, given.model)
    model = mlxbert.load(given.model)
    for path in sorted(given.folder.expanduser().glob("*.txt")):
        found = names(model, path.read_text(encoding="utf-8"))
        print(f"{path.name}: " + " / ".join(found.pop("PARTY")))
        for label, texts in found.items():
            print(f"    {label.lower()}: {', '.join(texts) or '-'}")


if __name__ == "__main__":
    main()
