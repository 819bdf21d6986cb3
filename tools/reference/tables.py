"""Renders the reference pages that are tables: settings, keys, states, codes, errors, control commands."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

import orchestrator
from orchestrator.core.durability import Level
from orchestrator.core.durations import Duration
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.public_names import homes
from orchestrator.core.settings import leaves
from orchestrator.doctor.findings import TOPICS
from orchestrator.monitoring.catalogue import METRICS
from orchestrator.repair.findings import DAMAGE_KINDS
from orchestrator.store.key_kinds import POOL_KEYS, SCOPE_KEYS
from orchestrator.tasks.options import REPEATABLE, TASK_OPTIONS, OnBusy
from orchestrator.tasks.states import STEPS
from tools.alert_rules import rules
from tools.commands_table import commands_table
from tools.log_events import LOG_KEYS, RESERVED, SECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.core.settings import Leaf
    from orchestrator.store.key_kinds import KeyKind
    from tools.log_events import LogEvent

TYPES: Final[dict[object, str]] = {
    bool: "flag",
    str | None: "text",
    str | int: "text or integer",
    int | None: "integer",
    Sequence[str]: "list of texts",
    str | Sequence[str] | None: "text, or list of texts",
    Duration | None: "seconds or `timedelta`",
    datetime | None: "`datetime` with a time zone",
    OnBusy: "text",
    Level | None: "text",
}
KEY_HEAD: Final = ("key", "type", "holds", "lifetime", "permanent", "in a backup", "loss")


def settings() -> str:
    """Return the page of settings: name, environment variable, default, meaning."""
    rows = [
        (f"`{leaf.name}`", f"`{leaf.variable}`", _default(leaf), "SIGHUP" if leaf.live else "restart", leaf.description)
        for leaf in leaves()
    ]
    return _page(
        "Settings",
        "[Configuration](../guides/configuration.md) describes where settings come from, and what SIGHUP changes "
        "while a program runs.",
        ("setting", "variable", "default", "changes with", "meaning"),
        rows,
    )


def _default(leaf: Leaf) -> str:
    if leaf.open or leaf.default is None:
        return "none"
    return f"`{json.dumps(leaf.default)}`"


def metrics() -> str:
    """Return the page of metrics: name, type, unit, labels, meaning, source."""
    rows = [
        (
            f"`{metric.name}`",
            metric.type,
            metric.unit,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.help + (f" `{metric.labels[-1]}`: {', '.join(metric.values)}." if metric.values else ""),
            metric.source,
        )
        for metric in METRICS
    ]
    return _page(
        "Metrics",
        "`/metrics` of a process exports these; [Monitoring](../guides/monitoring.md) explains how to read them. "
        "Every metric has the labels `prefix` and `pool` too. Sources: `pool` and `server` are exported by every "
        "supervisor, "
        "`process` by every process, `supervisor` and `host` by processes of that kind.",
        ("metric", "type", "unit", "labels", "meaning", "source"),
        rows,
    )


def alerts() -> str:
    """Return the page of alerts: name, severity, meaning, what to do."""
    rows = [
        (
            f"`{rule.name}`",
            rule.severity or "",
            f"{re.sub(r'{{[^}]*}}', '…', rule.summary)}. {rule.description}",
            _runbook(rule.runbook.partition("#")[2]),
            f"`{rule.expression}`",
        )
        for rule in rules()
        if rule.severity
    ]
    return _page(
        "Alerts",
        "`config/prometheus/alerts.yml` has these alerts; [Dashboard and alerts](../guides/alerts.md) tells how to use "
        "them.",
        ("alert", "severity", "meaning", "runbook", "fires when"),
        rows,
    )


def _runbook(section: str) -> str:
    return f"[{section.replace('-', ' ')}](../guides/operations.md#{section})"


def keys() -> str:
    """Return the page of Redis keys: suffix, type, content, lifetime."""
    pool = _page(
        "Redis keys",
        "The keys of a pool begin with `prefix:{pool:P}:`. A capital letter stands for a name. "
        "The [data model](../internals/data-model.md) explains prefixes and the fields of records, "
        "[repair](../guides/repair.md#what-the-loss-of-a-key-means) the words of the last column.",
        KEY_HEAD,
        _key_rows(POOL_KEYS),
    )
    scopes = _table(KEY_HEAD, _key_rows(SCOPE_KEYS))
    return f"{pool}\n## Keys of scopes\n\nThe keys of a session begin with `prefix:{{session:S}}:`.\n\n{scopes}"


def _key_rows(kinds: Iterable[KeyKind]) -> list[tuple[str, ...]]:
    return [
        (
            f"`{kind.suffix}`",
            kind.type,
            kind.holds,
            kind.lifetime,
            "yes" if kind.permanent else "",
            kind.backup.value,
            kind.loss.value,
        )
        for kind in kinds
    ]


def doctor() -> str:
    """Return the page of the codes of `orc doctor`."""
    rows = [(f"`{topic.code}`", topic.condition, topic.fix) for topic in TOPICS.values()]
    return _page(
        "Doctor codes",
        "[orc doctor](../guides/doctor.md) reports these codes. A code never changes its meaning.",
        ("code", "reported when", "fix"),
        rows,
    )


def repair() -> str:
    """Return the page of the codes of `orc keys check`."""
    rows = [
        (
            f"`{each.code}`{', harmless' * each.harmless}",
            each.found,
            each.repair or "Nothing: inspect it by hand.",
        )
        for each in DAMAGE_KINDS.values()
    ]
    return _page(
        "Repair codes",
        "The leading supervisor and `orc keys check` report these codes; "
        "[Repair](../guides/repair.md) explains when. Harmless codes do not change the exit code.",
        ("code", "damage", "repair"),
        rows,
    )


def events() -> str:
    """Return the page of log events: the keys, then the events of each kind of program."""
    keys = [(f"`{name}`", key.type, key.meaning) for name, key in sorted(LOG_KEYS.items())]
    sections = [
        "\n".join([f"## {section.title}\n\n{section.text}\n".rstrip() + "\n", *map(_event, section.events)])
        for section in SECTIONS
    ]
    lines = ", ".join(f"`{name}`" for name in RESERVED[:4])
    table = _table(("key", "type", "meaning"), keys)
    return f"# Log events\n\n{_EVENTS.format(lines=lines)}\n" + "\n".join(sections) + f"\n## Keys\n\n{table}"


_EVENTS: Final = """\
The supervisor, the worker host, the workers and the client log events: a name and keys. Names, levels and keys are
fixed, and a key means the same in every event. [Logging](../guides/logging.md) describes the formats. Every event has
its level and its keys in brackets, then what it tells and what to do; *Often* marks what to do when the event is
frequent. A key in square brackets may be missing.

`error`: a person should look. `warning`: the program handled a failure. Events of the level `debug` appear with
`--debug`, or after `orc control log-level debug`. The handlers of your agents add events of their own with `ctx.log`,
and other libraries add lines whose `event` is a sentence.

Every line also has {lines}; a line with a traceback has `exception`.
"""


def _event(event: LogEvent) -> str:
    keys = ", ".join(f"[`{key[:-1]}`]" if key.endswith("?") else f"`{key}`" for key in event.keys)
    level = f"{event.level}, {event.up_level} under `orc up`" if event.up_level else event.level
    return f"- **`{event.name}`** ({level}{f'; {keys}' if keys else ''}): {event.text}"


def states() -> str:
    """Return the page of the states of a task: a diagram of all steps and their table."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for step in STEPS:
        arrows.setdefault((step.before or "[*]", step.after or "[*]"), []).append(step.script)
    lines = ["```mermaid", "stateDiagram-v2"]
    for (before, after), scripts in arrows.items():
        lines.append(f"    {before} --> {after}: {', '.join(dict.fromkeys(scripts))}")
    lines += ["```", ""]
    rows = [
        (step.before or "no record", step.event, step.after or "no record", f"`tasks/{step.script}`") for step in STEPS
    ]
    return _page(
        "States of a task",
        "The scripts take these steps and no others. [Results and states](../guides/results.md#states) "
        "explains the states.\n\n" + "\n".join(lines),
        ("from", "event", "to", "script"),
        rows,
    )


def errors() -> str:
    """Return the page of public exceptions: base, exit code of `orc`, meaning."""
    found = [getattr(orchestrator, name) for name in homes("orchestrator")]
    classes = [each for each in found if isinstance(each, type) and issubclass(each, OrchestratorError)]
    rows = [
        (
            f"[`{error.__name__}`](api/core.md#orchestrator.{error.__name__})",
            ", ".join(f"`{base.__name__}`" for base in error.__bases__),
            str(error.exit_code),
            " ".join((error.__doc__ or "").partition("\n\n")[0].split()),
        )
        for error in sorted(classes, key=lambda error: [base.__name__ for base in reversed(error.__mro__)])
    ]
    return _page(
        "Errors",
        "Every exception derives from `OrchestratorError`. `orc` exits with the exit code of the error.",
        ("error", "bases", "exit code", "raised when"),
        rows,
    )


def control_commands() -> str:
    """Return the page of control commands."""
    return f"# Control commands\n\n[Control](../guides/control.md) explains how commands work.\n\n{commands_table()}"


def _page(title: str, introduction: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return f"# {title}\n\n{introduction}\n\n{_table(head, rows)}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def task_options() -> str:
    """Return the page of the options of a task: keyword, flag of `orc tasks submit`, type, default, meaning."""
    rows = [
        (
            f"`{option.name}`",
            f"`{f'{option.flag} {option.metavar}'.strip()}`",
            TYPES[option.type],
            "none" if option.default is None else f"`{json.dumps(option.default)}`",
            "yes" if option.name in REPEATABLE else "",
            option.text,
        )
        for option in TASK_OPTIONS.values()
    ]
    return _page(
        "Options of a task",
        "Keyword arguments of `Orchestrator.submit`, `Submission`, `TaskContext.submit` and of the blocking client. "
        "Schedules take those that are marked. [Submitting tasks](../guides/submitting.md) explains them.",
        ("option", "`orc tasks submit`", "type", "default", "schedules", "meaning"),
        rows,
    )
