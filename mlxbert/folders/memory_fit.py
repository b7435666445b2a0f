"""Estimates what fits into the memory of this machine (see `mlxbert.memory_estimate`)."""

from collections.abc import Mapping

from mlxbert import memory_estimate
from mlxbert.config import EncoderConfig
from mlxbert.folders.inspection import Fit
from mlxbert.machine import device as devices
from mlxbert.text.batch import default_batch_tokens


def fit(config: EncoderConfig, parameters: int, weights: Mapping[str, int], max_length: int) -> Fit:
    """Estimates how much memory a model needs on the current device, and whether the device has enough.

    Args:
        config: The configuration of the encoder.
        parameters: The number of parameters of the network.
        weights: The size of the weights in bytes, by dtype.
        max_length: The maximum number of input tokens.
    """
    chosen = devices.choose_dtype(wide_range=config.wide_range)
    available, dtype = devices.available_memory(), devices.dtype_name(chosen)

    def fits(needed: int) -> bool | None:
        return None if available is None else needed <= available

    batch, longest = memory_estimate.of_batch(config, chosen), memory_estimate.of_text(config, max_length, chosen)
    finetuning = memory_estimate.of_training(config, parameters)
    return Fit(
        device="gpu" if devices.on_gpu() else "cpu",
        dtype=dtype,
        available=available,
        free=devices.unused_memory(),
        weights=weights[dtype],
        batch_tokens=default_batch_tokens(),
        batch=batch,
        fits=fits(weights[dtype] + batch),
        longest_tokens=max_length,
        longest=longest,
        longest_fits=fits(weights[dtype] + longest),
        finetuning=finetuning,
        finetuning_fits=fits(finetuning),
    )
