"""Growth has a price: how much there is to learn, and to read, is counted.

Whoever adds one more raises its number in `BOUNDS` and writes the reason next to it; whoever takes one away lowers it.
"""

import functools

import mlxbert
from mlxbert.rooms import ROOMS
from mlxbert.serve.http.app import PROTOCOLS
from tests.helpers.cases import together
from tests.helpers.commands import COMMANDS
from tests.test_structure import MODULES

# What is counted, the most that there may be, how many fewer there may be, and the reason for the last rise.
BOUNDS = (
    ("options", 209, 0, "those of all commands when counting began; an option of several commands counts once"),
    ("public names", 143, 0, "those of `mlxbert` when counting began"),
    ("routes", 41, 0, "those of six protocols, of the metrics and of the description when counting began"),
    ("lines of the core", 37_400, 1_000, "all Python that is in no room: what one reads in a day"),
)


@functools.cache
def _counts() -> dict[str, int]:
    options = {
        max(parameter.opts, key=len)
        for command in COMMANDS.values()
        for parameter in command.params
        if parameter.param_type_name == "option"
    }
    routes = {(route.method, route.path) for protocol in PROTOCOLS for route in protocol.routes}
    rooms = {f"mlxbert.{room}" for room in ROOMS}
    core = [path for module, path in MODULES.items() if ".".join(module.split(".")[:2]) not in rooms]
    return {
        "options": len(options),
        "public names": len(mlxbert.__all__),  # type: ignore[attr-defined]
        "routes": len(routes),
        "lines of the core": sum(path.read_text(encoding="utf-8").count("\n") for path in core),
    }


@together("what,most,fewer,reason", BOUNDS)
def test_growth_has_its_reason(what: str, most: int, fewer: int, reason: str) -> None:
    count = _counts()[what]
    assert reason and count <= most, f"{count} {what}, more than {most}: raise the number and say why"
    assert count >= most - fewer, f"{count} {what}, fewer than {most - fewer}: lower the number"
