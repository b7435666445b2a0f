"""How to install what an optional feature needs, from the requirements that mlxbert was installed with."""

import re


def install_command(extra: str) -> str:
    """Returns a pip command for an extra of mlxbert that names its packages, such as `pip install "mcp<3,>=2.3"`.

    It works in every folder and with an mlxbert that no package index has, whereas `pip install ".[mcp]"` works in a
    clone only.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        required = requires("mlxbert") or []
    except PackageNotFoundError:  # the source was copied, not installed
        required = []
    condition = re.compile(rf"""extra == ['"]{extra}['"]""")
    packages = [name.partition(";")[0].strip() for name in required if condition.search(name)]
    return " ".join(["pip install", *(f'"{name}"' for name in packages or [f"mlxbert[{extra}]"])])
