"""Reads the tool calls of messages, in the formats of OpenAI and Anthropic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_OUTPUT_SUFFIX: Final = "_call_output"
_NONE: Final[tuple[str, ...]] = ()


class CallingMessage(Protocol):
    """A message; the ids of its tool calls and of the answered ones are read from its content where they are None."""

    @property
    def calls(self) -> tuple[str, ...] | None:
        """Tool calls that the message makes."""

    @property
    def answers(self) -> tuple[str, ...] | None:
        """Tool calls whose output the message holds."""

    @property
    def data(self) -> Any:
        """The message as its writer gave it."""


def open_calls(messages: Sequence[CallingMessage]) -> dict[str, int]:
    """Return the ids of the tool calls without an output, each with the place of its message."""
    waiting: dict[str, int] = {}
    for place, message in enumerate(messages):
        if may_have_links(message):
            for id_ in answers_of(message):
                waiting.pop(id_, None)
            waiting.update(dict.fromkeys(calls_of(message), place))
    return waiting


def answered(messages: Sequence[CallingMessage]) -> list[int]:
    """Return the places of the messages without those that make an unanswered tool call, and without their outputs."""
    left_out = set(open_calls(messages).values())
    if not left_out:
        return list(range(len(messages)))
    unmade = {id_ for place in left_out for id_ in calls_of(messages[place])}
    return [
        place
        for place, message in enumerate(messages)
        if place not in left_out and not (may_have_links(message) and unmade.intersection(answers_of(message)))
    ]


def calls_of(message: CallingMessage) -> tuple[str, ...]:
    """Return the ids of the tool calls that a message makes."""
    return message.calls or _NONE if message.calls is not None else _read_calls(message.data)


def answers_of(message: CallingMessage) -> tuple[str, ...]:
    """Return the ids of the tool calls whose output a message holds."""
    return message.answers or _NONE if message.answers is not None else _read_answers(message.data)


def may_have_links(message: CallingMessage) -> bool:
    """Return whether a message may make or answer tool calls; most do neither."""
    data = message.data
    return (
        message.calls is not None
        or message.answers is not None
        or (
            data.__class__ is dict
            and (
                "tool_calls" in data
                or "tool_call_id" in data
                or "call_id" in data
                or data.get("content").__class__ is list
            )
        )
    )


def _read_calls(data: Any) -> tuple[str, ...]:
    if not isinstance(data, dict):
        return _NONE
    # OpenAI Responses: function_call, computer_call, local_shell_call, ... each with its output type.
    kind = data.get("type")
    if isinstance(kind, str) and kind.endswith("_call") and isinstance(call := data.get("call_id"), str):
        return (call,)
    # OpenAI chat.
    if isinstance(calls := data.get("tool_calls"), list):
        return tuple([call["id"] for call in calls if isinstance(call, dict) and isinstance(call.get("id"), str)])
    # Anthropic.
    return _blocks(data, "tool_use", "id")


def _read_answers(data: Any) -> tuple[str, ...]:
    if not isinstance(data, dict):
        return _NONE
    kind = data.get("type")
    if isinstance(kind, str) and kind.endswith(_OUTPUT_SUFFIX) and isinstance(call := data.get("call_id"), str):
        return (call,)
    if isinstance(call := data.get("tool_call_id"), str):
        return (call,)
    return _blocks(data, "tool_result", "tool_use_id")


def _blocks(data: dict[str, Any], kind: str, name: str) -> tuple[str, ...]:
    content = data.get("content")
    if not isinstance(content, list):
        return _NONE
    return tuple(
        [
            block[name]
            for block in content
            if isinstance(block, dict) and block.get("type") == kind and isinstance(block.get(name), str)
        ]
    )
