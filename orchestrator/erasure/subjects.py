"""People that texts are about: `orc.subjects` assigns sessions to them and erases them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from orchestrator.core.command_record import check_said
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import encode_foreign
from orchestrator.erasure.erasing import Eraser
from orchestrator.subjects.places import Place, digest_of, note, read_places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.erasure.model import ErasureReport
    from orchestrator.locks.waiter import LockWaiter
    from orchestrator.payloads.payloads import Payloads
    from orchestrator.secondary.model import SecondaryStore
    from orchestrator.store.store import Store

ASSIGNED_FOR_S: Final = 366 * 24 * 3600.0
_ASKED_BY_CHARS: Final = 200


class Subjects:
    """Finds and erases what is stored about people: `orc.subjects`.

    A subject is the id of a person, as `Record.subject` and `Message.subject` name it: any text of up to 256 bytes.
    """

    __slots__ = ("_payloads", "_settings", "_store", "_waiter")

    def __init__(
        self, store: Store, settings: Settings, waiter: LockWaiter, *, payloads: Payloads | None = None
    ) -> None:
        self._store, self._settings, self._waiter, self._payloads = store, settings, waiter, payloads

    async def assign(self, subject: str, *, session: str) -> None:
        """Assign a session to a person as a whole, so that `erase` empties it: workspace, chats and tasks of this pool.

        Call it before the first text is written, and again when the session is used for more than a year.

        Raises:
            SubjectErased: the person was erased less than 20 minutes ago.
            InvalidInput, StoreError: not an id; no reply.
        """
        encode_foreign("session", session)
        for place in (Place("session", session), Place("tasks", session, self._store.keys.pool)):
            await note(self._store, self._settings, subject, place, ASSIGNED_FOR_S)

    def digest(self, subject: str) -> str:
        """Return the hash of a person's id that the records of erasures have.

        Raises:
            InvalidInput: not an id.
        """
        return digest_of(self._settings.prefix, subject)

    async def places(self, subject: str) -> list[Place]:
        """List the places that may hold text about a person, at most 500.

        Raises:
            InvalidInput, StoreError: not an id; no reply.
        """
        return await read_places(self._store, self._settings, subject)

    async def erase(
        self,
        subject: str,
        *,
        asked_by: str,
        reason: str = "",
        stores: Sequence[SecondaryStore] = (),
        actor: str | None = None,
    ) -> ErasureReport:
        """Remove all text about a person: records, messages, summaries, assigned sessions, copies in second storage.

        Two records of the action name who asked, what was removed and a hash of the person's id. Text about the person
        is refused with `SubjectErased` for 20 minutes. A repeat is safe, and goes on after a crash.

        Args:
            subject: id of the person.
            asked_by: who asked for it, as a ticket or a person in charge.
            reason: for the record.
            stores: second storages that may have copies.
            actor: user and host of this process by default.

        Raises:
            InvalidInput: not an id, or the record would contain it.
            CommandRefused: the action could not be recorded; nothing was removed.
            SecondaryStoreError, PayloadStoreUnavailable, StoreError: a call failed; a repeat goes on.
        """
        encode_foreign("subject", subject)
        check_said(actor, reason)
        if not isinstance(asked_by, str) or not asked_by.strip() or len(asked_by) > _ASKED_BY_CHARS:
            raise InvalidInput(f"asked_by names who asked for it, in 1 to {_ASKED_BY_CHARS} characters")
        for name, text in (("asked_by", asked_by), ("reason", reason), ("actor", actor or "")):
            if re.search(rf"(?<!\w){re.escape(subject)}(?!\w)", text, re.IGNORECASE):
                raise InvalidInput(
                    f"{name} contains the id of the person, which the record of the action must not have"
                )
        eraser = Eraser(self._store, self._settings, self._waiter, subject, stores, payloads=self._payloads)
        return await eraser.run(asked_by=asked_by, reason=reason, actor=actor)
