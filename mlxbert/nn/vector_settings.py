"""The settings that every kind of vectors has: prompts, limits of texts, and how vectors are compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")  # as in sentence-transformers


@dataclass(frozen=True, kw_only=True)
class VectorSettings:
    """How texts are prepared for an embedder, and how its vectors are compared."""

    prompts: Mapping[str, str] = field(default_factory=dict)  # prefixes for texts, by name
    default_prompt_name: str | None = None
    # Maximum input length in tokens, if the limit for embeddings differs from the model's.
    max_length: int | None = None
    lower_case: bool = False  # whether texts are lowercased before anything else
    similarity: str = "cosine"  # how to compare vectors, one of `SIMILARITIES`
    stated: bool = False  # whether the model's files say how its vectors are made; otherwise mlxbert assumes it
