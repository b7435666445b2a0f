"""Callables for `ray.data`, and jobs that compute large tables on many machines with Ray."""

from mlxbert.scale.callables import BatchEmbedder, Classifier, Reranker, Tagger

Embedder = BatchEmbedder  # its name for users; the network has an `Embedder`, too

__all__ = ["Classifier", "Embedder", "Reranker", "Tagger"]
