"""Divides the findings of a check into faults and their consequences.

If an operation is wrong, everything that uses it is wrong, too: its gradient, models, and training. Only the operation
then counts as a fault, and the other findings as its consequences. A model that is wrong although all of its operations
are right is a fault.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlxbert.machine import device as devices
from mlxbert.nn import gpu_attention

_MULTIPLIES = frozenset({"products", "quantized products"})  # operations that TF32 rounds
_FUSED = "gradient of attention"  # for which Metal has a kernel


@dataclass(frozen=True)
class Finding:
    """The result of a single check."""

    group: str  # the group: `products`, `attention`, …, `gradients`, `families`, `training`, `built-in model`
    # The checked operation, such as `layer norm`, `gradient of gelu` or `update`; or the family and head.
    operation: str
    name: str  # the operation with its shape; or the family and head
    dtype: str  # the dtype of the computation
    # The error of the result, or `None` if there is no finite result. For an operation, see `ComputedOperation.error`;
    # for a model, it is the largest difference as a share of the largest expected value, or of 1 if that is larger.
    error: float | None = None
    allowed: float = 0.0  # the allowed error
    problem: str | None = None  # the error message, if there is no finite result
    uses: frozenset[str] = frozenset()  # the operations that the computation consists of
    # Whether the shape occurs in no published model. For a family, whether its tiny model has such shapes.
    odd: bool = False

    @property
    def ok(self) -> bool:
        """Whether the result is finite and its error is allowed."""
        return self.error is not None and self.error <= self.allowed

    def causes(self, wrong: Sequence["Finding"]) -> list["Finding"]:
        """Returns the findings in `wrong` that explain this one.

        A fault in half precision does not explain a wrong result in float32. A fault at a width that no published model
        has does not explain a wrong result at a width of published models.
        """
        return [
            cause
            for cause in wrong
            if cause.operation in self.uses and cause.dtype in (self.dtype, "float32") and (self.odd or not cause.odd)
        ]


def summary(findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns `groups`, `faults` and `consequences` (see `mlxbert.doctor.check.check_device.check`)."""
    wrong = [finding for finding in findings if not finding.ok]
    causes = {id(finding): finding.causes(wrong) for finding in wrong}
    faults = [finding for finding in wrong if not causes[id(finding)]]
    return {
        "groups": _groups(findings, {id(finding) for finding in faults}),
        "faults": [
            {**_facts(fault), "published_models": _affects_published(fault, []), "hint": _hint(fault)}
            for fault in faults
        ],
        "consequences": [
            {
                **_facts(finding), "published_models": _affects_published(finding, causes[id(finding)]),
                "follows_from": sorted({cause.operation for cause in causes[id(finding)]}),
            }
            for finding in wrong if causes[id(finding)]
        ],
    }  # fmt: skip


def _facts(finding: Finding) -> dict[str, Any]:
    return {name: value for name, value in asdict(finding).items() if name not in ("uses", "odd")}


def _affects_published(finding: Finding, causes: Sequence[Finding]) -> bool:
    """Whether a finding affects published models.

    A fault in a shape that no published model has does not affect them. If a tiny model of a family is wrong although
    its operations are right, published models are affected: the odd shapes of the tiny model are not to blame, because
    otherwise its operations would be wrong, too.
    """
    return any(not cause.odd for cause in causes) if causes else finding.group == "families" or not finding.odd


def _hint(finding: Finding) -> str:
    """Returns advice on how to avoid a fault, or on whether it matters."""
    on_gpu = devices.on_gpu()
    if finding.operation == _FUSED and on_gpu and gpu_attention.on_metal() and devices.fused_attention_gradient():
        return "set MLX_SDPA_VJP_FALLBACK=1, the default of mlxbert, to compute this gradient without the kernel"
    if finding.dtype == "float32" and on_gpu and devices.tf32() and _MULTIPLIES & {finding.operation, *finding.uses}:
        return "MLX_ENABLE_TF32=0 keeps float32 products from being rounded"
    if not _affects_published(finding, []):
        return "please report this fault, although no published model has such a width"
    options = ["--dtype float32"] * (finding.dtype in ("float16", "bfloat16")) + ["--device cpu"] * on_gpu
    return f"{' or '.join(options)} may avoid this fault" if options else "please report this fault"


def _groups(findings: Sequence[Finding], faults: set[int]) -> dict[str, Any]:
    groups: dict[str, Any] = {}
    for group in dict.fromkeys(finding.group for finding in findings):
        members = [finding for finding in findings if finding.group == group]
        errors = [member.error / member.allowed for member in members if member.error is not None and member.allowed]
        worst = max((error for error in errors if math.isfinite(error)), default=0.0)
        count = sum(id(finding) in faults for finding in members)
        consequences = sum(not finding.ok for finding in members) - count
        groups[group] = {
            "checks": len(members), "faults": count, "consequences": consequences, "worst": round(worst, 3),
        }  # fmt: skip
    return groups
