"""Chooses the messages that a model gets: never the output of a tool without its call, never half of a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.chat.tool_calls import answers_of, calls_of, may_have_links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.chat.model import StoredMessage


def select(
    messages: Sequence[StoredMessage],
    *,
    turns: int | None,
    max_tokens: int | None,
    pair_safe: bool,
    whole: bool,
) -> tuple[int, bool]:
    """Choose the newest messages within some limits.

    Args:
        messages: the newest messages, oldest first.
        turns: maximum number of turns; the result begins with the first message of a turn.
        max_tokens: maximum of all lengths.
        pair_safe: whether to leave out outputs of tools whose call is left out, and what precedes them.
        whole: whether `messages` begins with the first message of the chat.

    Returns:
        The place of the first chosen message, and whether a limit was reached, so that older messages are not needed.
    """
    start = 0 if max_tokens is None else token_start(messages, max_tokens)
    full = start > 0
    while True:
        moved = start
        if turns is not None:
            moved, found = turn_start(messages, start, turns=turns, whole=whole)
            full = full or found
        if pair_safe:
            moved = paired_start(messages, moved, whole=whole)
        if moved == start or turns is None:
            return moved, full
        start = moved


def begins_turn(message: StoredMessage, before: StoredMessage | None) -> bool:
    """Return whether a turn begins with a message: another turn is named, or, where none is, the user speaks."""
    if message.turn is not None or (before is not None and before.turn is not None):
        return before is None or message.turn != before.turn
    return isinstance(message.data, dict) and message.data.get("role") == "user" and not answers_of(message)


def paired_start(messages: Sequence[StoredMessage], start: int, *, whole: bool) -> int:
    """Return the first place from `start` on after which every tool output has its call.

    If `messages` is the whole chat, an output whose call is nowhere before it moves nothing; see `orphans`.
    """
    calls: dict[str, int] = {}
    # Most messages neither call nor answer.
    linked = [place for place, message in enumerate(messages) if may_have_links(message)]
    for place in linked:
        message = messages[place]
        answers = answers_of(message)
        for id_ in answers:
            # A message without its call, or with one that is left out, is left out with all before it.
            if calls.get(id_, start if whole else -1) < start:
                start = max(start, place + 1)
        for id_ in calls_of(message):
            calls[id_] = place
    return start


def orphans(messages: Sequence[StoredMessage]) -> set[int]:
    """Return the places of tool outputs without their calls, which were erased, removed or damaged."""
    calls, found = set[str](), set[int]()
    for place, message in enumerate(messages):
        if may_have_links(message):
            if not calls.issuperset(answers_of(message)):
                found.add(place)
            calls.update(calls_of(message))
    return found


def turn_start(messages: Sequence[StoredMessage], start: int, *, turns: int, whole: bool) -> tuple[int, bool]:
    """Return the first place from `start` on at which a turn begins and no later message is of an earlier turn.

    Args:
        messages: the newest messages.
        start: first message that may be part of the result.
        turns: maximum number of turns.
        whole: whether `messages` begins with the first message of the chat, which begins a turn.

    Returns:
        The place, and whether that many turns were found.
    """
    first: dict[str, int] = {}
    begins: set[int] = {0} if whole else set()
    for place, message in enumerate(messages):
        if begins_turn(message, messages[place - 1] if place else None) and (place or message.turn is None):
            begins.add(place)
        if message.turn is not None:
            first.setdefault(message.turn, place)
    chosen, found, earliest = len(messages), 0, len(messages)
    for place in range(len(messages) - 1, start - 1, -1):
        turn = messages[place].turn
        earliest = min(earliest, place if turn is None else first[turn])
        if place in begins and earliest == place:
            chosen, found = place, found + 1
            if found == turns:
                break
    return chosen, found == turns


def token_start(messages: Sequence[StoredMessage], max_tokens: int) -> int:
    """Return the first place after which the messages have no more than `max_tokens`."""
    left = max_tokens
    for place in range(len(messages) - 1, -1, -1):
        left -= tokens_of(messages[place])
        if left < 0:
            return place + 1
    return 0


def tokens_of(message: StoredMessage) -> int:
    """Return the length of a message: as its caller counted, else a fourth of its text as JSON."""
    if message.tokens is not None:
        return message.tokens
    return -(-len(str(message.data)) // 4)
