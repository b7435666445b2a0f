"""What a check found, and what follows from what.

An operation that is wrong makes wrong what is computed with it: its gradient, models, training. Only the operation is a
fault then; the others are its consequences. A model that is wrong although each of its operations is right is a fault.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlxbert.machine import device as devices
from mlxbert.nn import gpu_attention

_MULTIPLIES = frozenset({"products", "quantized products"})  # what TF32 rounds
_FUSED = "gradient of attention"  # for which Metal has a kernel


@dataclass(frozen=True)
class Finding:
    """Something that was checked.

    Attributes:
        group: What it belongs to: `products`, `attention`, …, `gradients`, `families`, `training`, `built-in model`.
        operation: What is wrong if it is: `layer norm`, `gradient of gelu`, `update`, or the family with its head.
        name: The operation with its shape, or the family and its head.
        dtype: The dtype of the computation.
        error: Of an operation, as `Computed.error` defines it; of a model, the largest difference as a share of the
            largest expected value, or of 1. `None` where there is no result, or one that is not finite.
        allowed: What is allowed.
        problem: What MLX said instead of a result.
        uses: The operations that it is computed with.
        odd: Whether no published model has such a shape; of a family, whether its operations have such shapes here.
    """

    group: str
    operation: str
    name: str
    dtype: str
    error: float | None
    allowed: float
    problem: str | None = None
    uses: frozenset[str] = frozenset()
    odd: bool = False

    @property
    def ok(self) -> bool:
        """Whether the result is right."""
        return self.error is not None and self.error <= self.allowed

    def causes(self, wrong: Sequence["Finding"]) -> list["Finding"]:
        """Those of some wrong results that explain this one.

        One in half precision does not explain one in float32; one of a width that no published model has does not
        explain one of a width that they have.
        """
        return [
            one
            for one in wrong
            if one.operation in self.uses and one.dtype in (self.dtype, "float32") and (self.odd or not one.odd)
        ]


def summary(findings: Sequence[Finding]) -> dict[str, Any]:
    """`groups`, `faults` and `consequences`, see `mlxbert.bench.device_check.check_device.check`."""
    wrong = [one for one in findings if not one.ok]
    causes = {id(one): one.causes(wrong) for one in wrong}
    faults = [one for one in wrong if not causes[id(one)]]
    return {
        "groups": _groups(findings, {id(one) for one in faults}),
        "faults": [
            {**_facts(one), "published_models": _of_published(one, []), "hint": _hint(one)} for one in faults
        ],
        "consequences": [
            {
                **_facts(one), "published_models": _of_published(one, causes[id(one)]),
                "follows_from": sorted({cause.operation for cause in causes[id(one)]}),
            }
            for one in wrong if causes[id(one)]
        ],
    }  # fmt: skip


def _facts(one: Finding) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if name not in ("uses", "odd")}


def _of_published(one: Finding, causes: Sequence[Finding]) -> bool:
    """Whether published models are concerned: not by a fault in a shape that none of them has.

    A family that is wrong by itself is one: the shapes of its tiny model explain it only through its operations.
    """
    return any(not cause.odd for cause in causes) if causes else one.group == "families" or not one.odd


def _hint(one: Finding) -> str:
    """What may avoid a fault, and whether it matters."""
    on_gpu = devices.on_gpu()
    if one.operation == _FUSED and on_gpu and gpu_attention.on_metal() and devices.fused_attention_gradient():
        return "MLX_SDPA_VJP_FALLBACK=1, which mlxbert sets unless it is set, computes this gradient without the kernel"
    if one.dtype == "float32" and on_gpu and devices.tf32() and _MULTIPLIES & {one.operation, *one.uses}:
        return "MLX_ENABLE_TF32=0 keeps float32 products from being rounded"
    if not _of_published(one, []):
        return "please report it; no published model has such a width"
    ways = ["--dtype float32"] * (one.dtype in ("float16", "bfloat16")) + ["--device cpu"] * on_gpu
    return f"{' or '.join(ways)} may avoid it" if ways else "please report it"


def _groups(findings: Sequence[Finding], faults: set[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for group in dict.fromkeys(one.group for one in findings):
        own = [one for one in findings if one.group == group]
        errors = [one.error / one.allowed for one in own if one.error is not None and one.allowed]
        worst = max((error for error in errors if math.isfinite(error)), default=0.0)
        count = sum(id(one) in faults for one in own)
        consequences = sum(not one.ok for one in own) - count
        found[group] = {
            "checks": len(own), "faults": count, "consequences": consequences, "worst": round(worst, 3),
        }  # fmt: skip
    return found
