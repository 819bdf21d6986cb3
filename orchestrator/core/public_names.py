"""Loads a package's public names on first use, from the modules that its `if TYPE_CHECKING:` block names."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_IMPORT: Final = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)


@cache
def homes(package: str) -> dict[str, str]:
    """Return the public names of a package, sorted, each with the module that defines it."""
    file = sys.modules[package].__file__
    assert file is not None, f"{package} has no __init__.py"
    found = [(name, module) for module, name in _IMPORT.findall(Path(file).read_text(encoding="utf-8"))]
    return dict(sorted(found, key=lambda row: (not row[0].isupper(), row[0])))


def load(package: str, name: str) -> Any:
    """Import a public name and store it in the package, so that the next use costs nothing.

    Raises:
        AttributeError: the package exports no such name.
    """
    if name == "__all__":
        value: Any = list(homes(package))
    elif name.startswith("__") or name not in homes(package):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    else:
        value = getattr(import_module(homes(package)[name]), name)
    setattr(sys.modules[package], name, value)
    return value
