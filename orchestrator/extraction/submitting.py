"""Chooses the messages that a task is to extract, and names the task by them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.ids import check_name, encode_foreign
from orchestrator.core.reading import json_reader
from orchestrator.extraction.model import Extraction
from orchestrator.extraction.running import note_name
from orchestrator.tasks.submission import Submission

if TYPE_CHECKING:
    from orchestrator.chat.chat import Chat

_read_extraction: Final = json_reader(Extraction)


@dataclass(frozen=True, slots=True)
class ExtractionSkill:
    """The skill of a task that extracts, for a client that does not have the agent.

    Attributes:
        name: name of the skill.
    """

    name: str

    def check_args(self, args: bytes) -> None:
        """Accept the arguments, which `plan_extraction` has made."""

    def read_result(self, data: bytes) -> Extraction:
        """Read a result."""
        return _read_extraction(data)


async def plan_extraction(chat: Chat, *, agent: str, skill: str, subject: str | None) -> Submission | None:
    """Return the task that extracts the messages behind those that a skill has extracted; None if there are none.

    Its key is made from the range, so that the same messages are submitted once. Tasks of one chat and skill share a
    lane: they run one after another.

    Args:
        chat: the chat.
        agent: agent that extracts.
        skill: its skill.
        subject: person that messages are about which name none.

    Raises:
        InvalidInput, StoreError: an invalid name; no reply.
    """
    by = note_name(check_name("agent", agent), check_name("skill", skill))
    if subject is not None:
        encode_foreign("subject", subject)
    head = await chat.head()
    after, upto = head.extracted.get(by, 0), head.seq
    if after >= upto:
        return None
    # A chat that has ended begins again with number 1: the revision tells the messages apart.
    last = await chat.page(before=upto + 1, n=1)
    revision = last[-1].revision if last else head.rev
    names = (by, chat.session, chat.name)
    return Submission(
        ExtractionSkill(skill),
        {"source": chat.name, "after": after, "upto": upto, "subject": subject},
        agent=agent,
        session=chat.session,
        key=f"extract {after + 1}-{upto} {_digest(*names, revision, subject)}",
        lane=f"extract {_digest(*names)}",
    )


def _digest(*names: object) -> str:
    return hashlib.sha256(repr(names).encode()).hexdigest()[:32]
