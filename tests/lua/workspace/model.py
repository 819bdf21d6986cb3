"""What the scripts of workspaces promise, once more, in plain Python: dictionaries, no Redis, no cleverness."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from orchestrator.workspace.scripts import ChangeReply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST = 2**53 - 1
Path: TypeAlias = tuple[int, str, str]
"""Version, agent, JSON."""


@dataclass
class Content:
    """What a workspace holds. Everything goes at once when it expires."""

    revision: int = 0
    floor: int = 0
    top: int = 0
    number_floor: int = 0
    doc: dict[str, Path] = field(default_factory=dict)
    scratches: dict[str, dict[str, Path]] = field(default_factory=dict)
    logs: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    sets: dict[str, set[str]] = field(default_factory=dict)
    states: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)
    since_s: float = 0.0
    older_since_s: float = 0.0
    ops: dict[str, ChangeReply] = field(default_factory=dict)
    older_ops: dict[str, ChangeReply] = field(default_factory=dict)


class Refused(Exception):
    """A change is refused with this answer."""

    def __init__(self, *answer: Any) -> None:
        self.answer = ChangeReply(answer[0], 0, answer[1:])


class Model:
    """One session's workspace."""

    def __init__(self, *, lock: str, max_items: int, max_parts: int, dedup_s: float, max_dedup: int) -> None:
        self.content = Content()
        self.lock: str | None = lock
        self.now_s = 0.0
        self.max_items, self.max_parts, self.dedup_s, self.max_dedup = max_items, max_parts, dedup_s, max_dedup
        self.fired: Counter[str] = Counter()

    def expire(self) -> None:
        """Time has passed without a change."""
        self.content = Content()

    @property
    def items(self) -> int:
        """How much it holds."""
        held = self.content
        several = [*held.scratches.values(), *held.logs.values(), *held.sets.values()]
        return len(held.doc) + len(held.states) + sum(map(len, several))

    # Every change -----------------------------------------------------------------------------------------------------

    def change(self, kind: str, op: str, token: str, make: Callable[[], tuple[bool, tuple[Any, ...]]]) -> ChangeReply:
        """What every change has in common; `make` answers whether there is an event, and what else is answered."""
        held, named = self.content, f"{kind}:{op}"
        if self.now_s >= held.since_s + 2 * self.dedup_s:
            held.ops = {}
        if self.now_s >= held.older_since_s + self.dedup_s:
            held.older_ops = {}
        if (first := held.ops.get(named) or held.older_ops.get(named)) is not None:
            self.fired["duplicate"] += 1
            return ChangeReply("duplicate", first.revision, first.rest)
        if token != self.lock:
            self.fired["fenced"] += 1
            return ChangeReply("fenced", 0, ((self.lock or "").encode(),))
        before = json.dumps([held.doc, held.scratches, held.logs, held.numbers, held.states, held.floor, held.top])
        sets = {name: set(members) for name, members in held.sets.items()}
        items = self.items
        try:
            told, rest = make()
            if self.items > self.max_items and self.items > items:
                raise Refused("full", b"items")
        except Refused as refused:
            doc, scratches, logs, held.numbers, states, held.floor, held.top = json.loads(before)
            held.doc, held.states = _tuples(doc), _tuples(states)
            held.scratches = {name: _tuples(paths) for name, paths in scratches.items()}
            held.logs = {name: [tuple(entry) for entry in entries] for name, entries in logs.items()}
            held.sets = sets
            self.fired[refused.answer.status] += 1
            return refused.answer
        if told:
            held.revision += 1
            held.events.append((kind, held.revision))
        if not held.ops:
            held.since_s = self.now_s
        answer = held.ops[named] = ChangeReply("ok", held.revision, rest)
        if self.now_s >= held.since_s + self.dedup_s or len(held.ops) >= self.max_dedup:
            held.older_ops, held.ops, held.older_since_s = held.ops, {}, self.now_s
        self.fired[kind] += 1
        return answer

    def _part(self, part: str) -> int:
        if part not in self.content.numbers and len(self.content.numbers) >= self.max_parts:
            raise Refused("full", b"parts")
        return self.content.numbers.get(part, self.content.number_floor)

    # Kinds of changes -------------------------------------------------------------------------------------------------

    def patch(
        self, rows: Sequence[tuple[str, str, bytes, str, int]], agent: str, owner: str
    ) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/patch.lua."""
        held = self.content
        if owner:
            held.numbers[f"agent:{owner}:kv"] = self._part(f"agent:{owner}:kv") + 1
        paths = held.scratches.setdefault(owner, {}) if owner else held.doc
        rest: list[Any] = []
        changed = False
        for path, mode, value, condition, number in rows:
            version, _, text = paths.get(path, (0, "", None))
            if (condition == "is" and version != number) or (condition == "newer" and version >= number):
                raise Refused("conflict", path.encode(), version, held.revision)
            told = b""
            if mode == "del":
                if path in paths:
                    del paths[path]
                    held.floor, changed = max(held.floor, version), True
                rest += [version, told]
                continue
            if mode == "incr":
                if text is not None and not text.lstrip("-").isdigit():
                    raise Refused("number", path.encode())
                sum_ = int(text or 0) + int(value)
                if abs(sum_) > MOST:
                    raise Refused("number", path.encode())
                told = str(sum_).encode()
            version = number if condition == "newer" else version + 1 if version else held.floor + 1
            held.top = max(held.top, version)
            paths[path] = (version, agent, (told or value).decode())
            changed = True
            rest += [version, told]
        return changed and not owner, tuple(rest)

    def append(self, log: str, texts: Sequence[bytes], cap: int) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/append.lua."""
        part = f"ws:log:{log}"
        number = self._part(part)
        entries = self.content.logs.setdefault(log, [])
        entries += [(number + i, text.decode()) for i, text in enumerate(texts, 1)]
        dropped = max(0, len(entries) - cap)
        del entries[:dropped]
        self.content.numbers[part] = number + len(texts)
        return True, (number + len(texts), dropped)

    def members(self, name: str, mode: str, changed: Sequence[str]) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/members.lua."""
        part = f"ws:set:{name}"
        number = self._part(part)
        members = self.content.sets.setdefault(name, set())
        before = set(members)
        members.update(changed) if mode == "add" else members.difference_update(changed)
        count = len(before ^ members)
        if count:
            self.content.numbers[part] = number + 1
        return count > 0, (number + (1 if count else 0), count)

    def transition(self, id_: str, to: str, text: bytes, expect: Sequence[str] | None) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/transition.lua."""
        version, state, _ = self.content.states.get(id_, (0, "", ""))
        if expect is not None and (state not in expect if expect else version):
            raise Refused("state", state.encode(), version)
        version = (version or self.content.floor) + 1
        self.content.top = max(self.content.top, version)
        self.content.states[id_] = (version, to, text.decode())
        return True, (version,)

    def publish(
        self, owner: str, entry: str, agent: str, *, path: str, log: str, cap: int
    ) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/publish.lua."""
        scratch = self.content.scratches.get(owner, {})
        if entry not in scratch:
            raise Refused("missing")
        _, _, text = scratch.pop(entry)
        if log:
            _, (last, _) = self.append(log, [text.encode()], cap)
            return True, (last,)
        _, (version, _) = self.patch([(path, "set", text.encode(), "any", 0)], agent, "")
        return True, (version,)

    def clear(self) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/clear.lua."""
        held = self.content
        held.floor = max(held.floor, held.top)
        held.number_floor = max([held.number_floor, *held.numbers.values()])
        for content in (held.doc, held.scratches, held.logs, held.sets, held.states, held.numbers):
            content.clear()
        return True, ()


def _tuples(paths: dict[str, list[Any]]) -> dict[str, Any]:
    return {name: tuple(value) for name, value in paths.items()}
