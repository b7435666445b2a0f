"""Tests of `mlxbert.ray`: those of callables, parts and manifests without Ray, those of nodes with it."""
