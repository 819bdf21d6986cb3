"""Writes the defaults of the settings as a module that imports nothing: `orchestrator/core/default_settings.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.core.settings import Settings, leaves

TARGET = Path(__file__).parents[1] / "orchestrator" / "core" / "default_settings.py"
_HEAD = '''"""Defaults of the settings. Generated from orchestrator/core/settings.py by `make generate`; do not edit."""

from __future__ import annotations

from typing import Any, Final

'''


def rendered() -> str:
    """Return the text of the module."""
    defaults = Settings()
    values: dict[str, Any] = {leaf.path[0]: leaf.of(defaults) for leaf in leaves() if len(leaf.path) == 1}
    sections: dict[str, dict[str, Any]] = {}
    for leaf in leaves():
        if len(leaf.path) > 1:
            section, name = leaf.path
            sections.setdefault(section, {})[name] = leaf.of(defaults)
    lines = [_HEAD, "VALUES: Final[dict[str, Any]] = {\n"]
    lines += [f"    {json.dumps(name)}: {_literal(value)},\n" for name, value in values.items()]
    lines += ["}\n", "SECTIONS: Final[dict[str, dict[str, Any]]] = {\n"]
    for section, entries in sections.items():
        lines.append(f"    {json.dumps(section)}: {{\n")
        lines += [f"        {json.dumps(name)}: {_literal(value)},\n" for name, value in entries.items()]
        lines.append("    },\n")
    return "".join([*lines, "}\n"])


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    TARGET.write_text(rendered(), encoding="utf-8")
