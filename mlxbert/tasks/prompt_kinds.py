"""Finds the prompts that a model has for queries and for documents; clients of a server import it without MLX."""

from collections.abc import Mapping

from mlxbert.other_libraries import not_one_of

# The names of prompts by the kind of text, in models of sentence-transformers and of Jina.
KINDS = {
    "query": ("query", "retrieval.query"),
    "document": ("document", "passage", "corpus", "retrieval.passage"),
}


def own_prompt(prompts: Mapping[str, str], kind: str) -> str | None:
    """Returns the name of a model's own prompt for texts of a kind; `None` if it has none."""
    if kind not in list(KINDS):
        raise not_one_of("kind", kind, KINDS)
    return next((name for name in KINDS[kind] if name in prompts), None)
