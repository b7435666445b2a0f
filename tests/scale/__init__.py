"""Tests of `mlxbert.scale`: those of callables, parts and manifests without Ray, those of nodes with it."""
