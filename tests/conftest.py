"""The device that tests run on, and models that many of them share."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # newer GPUs would round float32 products

import mlxbert
from mlxbert import device
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.helpers.tiny import save

device.use()  # MLXBERT_DEVICE=cpu keeps a Mac's tests from its GPU


@pytest.fixture(scope="session")
def builtin() -> mlxbert.Model:
    """The built-in model."""
    return mlxbert.load("builtin", dtype="float32")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model with all heads."""
    return save(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def tiny(tiny_folder: Path) -> mlxbert.Model:
    """A tiny random model with all heads, loaded afresh."""
    return mlxbert.load(str(tiny_folder), dtype="float32")


@pytest.fixture(scope="session")
def unit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of sentence-transformers with prompts, of unit length, that leaves prompts out of its mean."""
    settings = {"prompts": {"query": "man is : ", "passage": "in "}}
    return save_st(tmp_path_factory.mktemp("unit"), pooling("mean", include_prompt=False), NORMALIZE, settings=settings)


@pytest.fixture
def unit(unit_folder: Path) -> mlxbert.Model:
    """The tiny model as sentence-transformers would save it, loaded afresh."""
    return mlxbert.load(unit_folder, dtype="float32")
