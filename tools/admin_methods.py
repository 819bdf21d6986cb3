"""Writes the methods of `orc.admin` from the declarations in `orchestrator.control.commands`.

The methods are source, not made at run time, so that type checkers, editors and the API reference see them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.control.commands import JSON, KINDS, AmountText, Command, given_fields

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

TARGET: Final = Path(__file__).parents[1] / "orchestrator" / "client" / "admin.py"
BEGIN: Final = "    # Generated from orchestrator/control/commands.py by `make generate`; do not edit.\n"
END: Final = "    # End of the generated methods.\n"


def rendered(source: str) -> str:
    """Return the source with its generated methods written anew."""
    head, _, rest = source.partition(BEGIN)
    _, _, tail = rest.partition(END)
    methods = "\n".join(_method(model) for model in KINDS.values() if model.verb)
    return _formatted(f"{head}{BEGIN}\n{methods}\n{END}{tail}")


def _method(model: type[Command]) -> str:
    fields = given_fields(model)
    required = [f"{name}: {_annotation(field)}" for name, field in fields.items() if field.is_required()]
    options = [
        f"{name}: {_annotation(field)} = {field.default!r}" for name, field in fields.items() if not field.is_required()
    ]
    parameters = ["self", *required, "*", *options, 'reason: str = ""', "actor: str | None = None"]
    values = ", ".join(f'"{name}": {_value(name, field)}' for name, field in fields.items())
    kind = model.model_fields["kind"].default
    return (
        f"    async def {kind.replace('-', '_')}({', '.join(parameters)}) -> Sent:\n"
        f"{_docstring(model, fields)}"
        f'        return await self._give("{kind}", {{{values}}}, reason, actor)\n'
    )


def _annotation(field: FieldInfo) -> str:
    if _is_json(field):
        return "Any"
    if field.is_required():
        return "float" if field.annotation is float else "str"
    usual: dict[Any, str] = {bool: "bool", float: "float", int | None: "int | None", float | None: "float | None"}
    usual[AmountText | None] = "float | str | None"
    return usual.get(field.annotation, "str | None")


def _value(name: str, field: FieldInfo) -> str:
    return f'self._json("{name}", {name})' if _is_json(field) else name


def _is_json(field: FieldInfo) -> bool:
    return JSON in field.metadata


def _docstring(model: type[Command], fields: dict[str, FieldInfo]) -> str:
    text = (model.__doc__ or "").replace("\n    ", "\n        ").strip()
    if len(fields) < 2:
        one_line = f'        """{text}"""\n'
        return one_line if "\n" not in text else f'        """{text}\n        """\n'
    lines = [f"            {name}: {_described(field)}" for name, field in fields.items()]
    lines += [
        "            reason: kept with the command.",
        "            actor: user and host of this process by default.",
    ]
    listed = "\n".join(lines)
    return f'        """{text}\n\n        Args:\n{listed}\n        """\n'


def _described(field: FieldInfo) -> str:
    text = "JSON value." if _is_json(field) else field.description or ""
    return text if text.startswith("JSON") or text[:2].isupper() else text[:1].lower() + text[1:]


def _formatted(source: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    TARGET.write_text(rendered(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
