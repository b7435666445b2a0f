"""How to install what an optional feature needs, from the requirements that mlxbert was installed with."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path


def pip_install(arguments: str) -> str:
    """Returns the command for `pip install` with these arguments in the environment of this Python.

    Not every environment has a pip: pipx hides its own, and those of uv and of the Homebrew formula have none.
    """
    folder = Path(sys.prefix)
    if (folder / "pipx_metadata.json").is_file():
        return f"pipx runpip {folder.name} install {arguments}"
    if importlib.util.find_spec("pip") is not None or sys.prefix == sys.base_prefix:
        return f"pip install {arguments}"
    here, settings = shlex.quote(sys.prefix), folder / "pyvenv.cfg"
    if settings.is_file() and re.search("^uv = ", settings.read_text(encoding="utf-8"), re.MULTILINE):
        return f"uv pip install --python {here} {arguments}"
    python = getattr(sys, "_base_executable", sys.executable)  # that of the Python which made the environment
    return f"{shlex.quote(python)} -m pip --python {here} install {arguments}"


def install_command(extra: str) -> str:
    """Returns a pip command for an extra of mlxbert that names its packages, such as `pip install "mcp<3,>=2.3"`.

    It works in every folder and with an mlxbert that no package index has, whereas `pip install ".[mcp]"` works in a
    clone only.
    """
    return pip_install(required_packages(extra))


def required_packages(extra: str) -> str:
    """Returns the packages of an extra as arguments of pip, such as `"mcp<3,>=2.3"`; if unknown, the extra itself."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        required = requires("mlxbert") or []
    except PackageNotFoundError:  # the source was copied, not installed
        required = []
    condition = re.compile(rf"""extra == ['"]{extra}['"]""")
    packages = [name.partition(";")[0].strip() for name in required if condition.search(name)]
    return " ".join(f'"{name}"' for name in packages or [f"mlxbert[{extra}]"])
