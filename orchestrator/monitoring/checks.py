"""Defines the checks of a process, and writes them as text or JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: of what was checked.
        failure: what is wrong, or None.
    """

    name: str
    failure: str | None = None


def render_checks(checks: Sequence[Check], *, as_json: bool) -> bytes:
    """Return one line per check, or a JSON object."""
    if as_json:
        failures = {check.name: check.failure for check in checks}
        healthy = not any(failures.values())
        return msgspec.json.encode(
            {"healthy": healthy, "checks": {name: one or "ok" for name, one in failures.items()}}
        )
    return "".join(f"{check.name}: {check.failure or 'ok'}\n" for check in checks).encode()
