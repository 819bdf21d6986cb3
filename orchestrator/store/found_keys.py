"""Sorts keys by what a backup does with them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name, check_task_id, decode_foreign
from orchestrator.store.key_kinds import SCOPES, Backup, KeyKind, kind_of, scope_kind_of
from orchestrator.store.keys import CHANGES, DOCUMENT, MACHINES, META, PARTS, split_key, tag_of_pool, tagged_root

if TYPE_CHECKING:
    from collections.abc import Callable

_SCOPE: Final = re.compile(rf"({'|'.join(SCOPES)}):(.+)", re.DOTALL)
_OF_WORKSPACE: Final = frozenset(
    {META, DOCUMENT, MACHINES, PARTS, CHANGES, "ws:log:L", "ws:set:S", "agent:A:kv", "inbox:A"}
)
_OF_MEMORY: Final = frozenset(f"{tier}:{part}" for tier in ("stm", "im") for part in ("hdr", "rec", "acc"))
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A key of the prefix.

    Attributes:
        scope: `session:S` and so on, with the id encoded; empty for a key of the pool.
        suffix: the rest.
        kind: its kind; None for a key that does not belong to this program.
        name: the name in it.
    """

    scope: str
    suffix: str
    kind: KeyKind | None
    name: str

    @property
    def is_schedule(self) -> bool:
        """True for the record of a schedule."""
        return self._is("schedule:NAME")

    @property
    def is_task(self) -> bool:
        """True for the record of a task."""
        return self._is("task:ID")

    @property
    def is_workspace(self) -> bool:
        """True for the counts of a workspace, which exist exactly as long as it has anything."""
        return bool(self.scope) and self._is(META)

    @property
    def is_part_of_workspace(self) -> bool:
        """True for a key of a workspace."""
        return self.scope.startswith("session:") and self.kind is not None and self.kind.suffix in _OF_WORKSPACE

    @property
    def is_chat(self) -> bool:
        """True for the counts of a chat."""
        return self._is("chat:SRC:meta")

    @property
    def is_messages(self) -> bool:
        """True for the messages of a chat."""
        return self._is("chat:SRC:q")

    @property
    def is_headers(self) -> bool:
        """True for the headers of a tier of memory."""
        return self._is("stm:hdr") or self._is("im:hdr")

    @property
    def is_part_of_memory(self) -> bool:
        """True for the records of a tier of memory, and what goes with them."""
        return self.kind is not None and self.kind.suffix in _OF_MEMORY

    @property
    def is_log(self) -> bool:
        """True for the log of commands or of records."""
        return self.kind is not None and self.kind.backup is Backup.WITH_COMMANDS and self.kind.type == "stream"

    def _is(self, suffix: str) -> bool:
        return self.kind is not None and self.kind.suffix == suffix

    @property
    def backup(self) -> Backup:
        """The way in which it is saved."""
        return self.kind.backup if self.kind is not None else Backup.NOT_SAVED


def root_of(prefix: str, pool: str, scope: str) -> str:
    """Return the root of the keys of a scope, or of the pool."""
    return tagged_root(prefix, scope or tag_of_pool(pool))


def sort_key(full: bytes, *, prefix: str, pool: str) -> FoundKey | None:
    """Return what a key of a server is; None if it belongs to another pool or prefix."""
    try:
        text = full.decode()
    except UnicodeDecodeError:
        return None
    found = split_key(text, prefix=prefix)
    if found is None:
        return None
    tag, suffix = found
    if tag == tag_of_pool(pool):
        return name_key("", suffix)
    return name_key(tag, suffix) if _is_scope(tag, pool) else None


def name_key(scope: str, suffix: str) -> FoundKey:
    """Return the kind of a key; without one if its name is not valid."""
    found = scope_kind_of(suffix) if scope else kind_of(suffix)
    if found is None:
        return FoundKey(scope, suffix, None, "")
    kind, name = found
    word = next((part for part in kind.suffix.split(":") if part in _CHECKS), "")
    try:
        if name and word:
            _CHECKS[word](name)
    except InvalidInput:
        return FoundKey(scope, suffix, None, name)
    return FoundKey(scope, suffix, kind, name)


def check_scope(scope: str, pool: str) -> None:
    """Refuse a scope that does not belong to a pool.

    Raises:
        InvalidInput: no kind of scope, an id that is not encoded, or the locks of another pool.
    """
    if scope and not _is_scope(scope, pool):
        raise InvalidInput(f"{scope!r:.80} is no scope of this pool")


def _is_scope(tag: str, pool: str) -> bool:
    found = _SCOPE.fullmatch(tag)
    if found is None:
        return False
    try:
        id_ = decode_foreign(found[2])
    except InvalidInput:
        return False
    return found[1] != "locks" or id_ == pool


def _digits(text: str) -> None:
    if not text.isdecimal() or not text.isascii():
        raise InvalidInput(f"{text!r:.80} is no number")


def _date(text: str) -> None:
    if not _DATE.fullmatch(text):
        raise InvalidInput(f"{text!r:.80} is no date")


_CHECKS: Final[dict[str, Callable[[str], object]]] = {
    "ID": check_task_id,
    "S": decode_foreign,
    "L": decode_foreign,
    "N": decode_foreign,
    "SRC": decode_foreign,
    "T": decode_foreign,
    "E": decode_foreign,
    "KEY": decode_foreign,
    "MS": _digits,
    "DATE": _date,
    "A": lambda text: check_name("agent", text),
    "NAME": lambda text: check_name("name", text.removeprefix("@")),
}
"""Checks of the words that stand for a name in suffixes of saved kinds. No saved kind has the name of a skill."""
