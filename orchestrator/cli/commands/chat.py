"""`orc chat`: show, append, extract, export, clear."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal import inputs, output
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Reason, Yes
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import InvalidInput
from orchestrator.extraction.model import EXTRACT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.chat.model import Hydration, StoredMessage
    from orchestrator.views.chat import ChatView

commands = Commands(
    "chat", "orc chat show 101", 'orc chat append 101 "Where is my parcel?"', "orc chat export 101 > chat-101.json"
)

Session = Annotated[str, positional("SESSION", help="Id of the session.")]
Source = Annotated[str, option("--source", metavar="NAME", help="Source of the chat [main].")]
MAIN: Final = "main"
SHORT: Final = 100
"""Characters of a message in the table."""


@commands.command("show", "orc chat show 101", "orc chat show 101 --last 3 --full", "orc chat show 101 -o jsonl")
async def show(
    session: Session,
    /,
    *,
    source: Source = MAIN,
    last: Annotated[int, option("--last", "-n", metavar="N")] = 20,
    full: Annotated[bool, option("--full")] = False,
    common: Globals = DEFAULTS,
) -> None:
    """Show the newest messages of a chat, oldest first. It extends no lifetime.

    Args:
        last: How many [20].
        full: Show whole messages, not the beginning of each.
    """
    from orchestrator.views.chat import read_chat

    _check_last(last)
    async with common.services() as services:
        view, found = await read_chat(services, session, source, last=last)
    if common.output != "table":
        output.show_list(common.output, [_row(message) for message in found.messages], (), key="id")
    else:
        _print(found, full=full)
    if found.gap:
        output.say(f"{found.gap} messages are missing, because Redis has lost or evicted them")
    if found.expired:
        output.say("the messages have expired; their summary is left")
    if view.messages > len(found.messages):
        output.hint(f"these are the newest {len(found.messages)} of {view.messages}; raise --last for more")


@commands.command(
    "append",
    'orc chat append 101 "Where is my parcel?"',
    "orc chat append 101 --role assistant - < answer.txt",
    'orc chat append 101 "Hello" --op-id mail-4711',
)
async def append(
    session: Session,
    text: Annotated[str, positional("TEXT|-")],
    /,
    *,
    role: Annotated[str, option("--role", metavar="ROLE")] = "user",
    source: Source = MAIN,
    turn: Annotated[str | None, option("--turn", metavar="TURN")] = None,
    op_id: Annotated[str | None, option("--op-id", metavar="ID")] = None,
    common: Globals = DEFAULTS,
) -> None:
    """Append a message to a chat, without a lock.

    Args:
        text: Text of the message; - reads standard input.
        role: Role of its author [user].
        turn: Turn that it belongs to.
        op_id: Id of the change; repeated, the message is appended once.
    """
    content = inputs.text(text)
    if not content.strip() or not role:
        raise InvalidInput("a message needs a text and a role")
    async with common.client() as orc:
        chat = orc.chat(session).source(source)
        done = await chat.append([{"role": role, "content": content}], turn=turn, op_id=op_id)
    record = {"id": done.ids[0], "number": done.numbers[0], "duplicate": done.duplicate}
    output.show_record(common.output, record, key="id")


@commands.command(
    "extract",
    "orc chat extract 101 --agent support",
    "orc chat extract 101 --agent support --subject ann --wait",
)
async def extract(
    session: Session,
    /,
    *,
    agent: Annotated[str, option("--agent", metavar="AGENT")],
    source: Source = MAIN,
    skill: Annotated[str, option("--skill", metavar="SKILL")] = EXTRACT,
    subject: Annotated[str | None, option("--subject", metavar="ID")] = None,
    wait: Annotated[bool, option("--wait")] = False,
    timeout: Annotated[str | None, option("--timeout", metavar="DURATION")] = None,
    common: Globals = DEFAULTS,
) -> int:
    """Submit a task that stores what was said in a chat in the memory of an agent; print its id.

    It extracts the messages that the skill has not extracted. While none is added, a repeat returns the same task.

    Args:
        agent: Agent with the skill.
        skill: Skill that extracts [extract].
        subject: Person that messages are about which name none.
        wait: Wait for the end, and print the result; the exit code tells how the task ended.
        timeout: How long to wait.
    """
    timeout_s = inputs.duration_s("--timeout", timeout)
    if timeout is not None and not wait:
        raise InvalidInput("--timeout needs --wait")
    from orchestrator.cli.terminal.submitted import say_submitted, tell_end
    from orchestrator.cli.terminal.waiting import wait_for_end, wait_through_outages

    async with common.client() as orc:
        handle = await orc.extract(session, agent=agent, source=source, skill=skill, subject=subject)
        if handle is None:
            output.say("all messages were extracted")
            if common.output in {"json", "jsonl"}:
                output.write(output.json_text({"id": None}))
            return 0
        if not wait:
            say_submitted(handle.id, common)
            return 0
        output.hint(f"submitted as {handle.id}; Ctrl-C stops the waiting, not the task")
        async with wait_through_outages(orc, of=handle):
            end = await wait_for_end(handle, timeout_s, loads=orc.services.payloads)
    return tell_end(end, common, timeout)


@commands.command("export", "orc chat export 101 > chat-101.json", "orc chat export 101 --source mail -o jsonl")
async def export(session: Session, /, *, source: Source = MAIN, common: Globals = DEFAULTS) -> None:
    """Print a chat with all its messages as JSON; -o jsonl prints one message per line. It extends no lifetime."""
    from orchestrator.views.chat import read_whole_chat

    async with common.services() as services:
        found, messages = await read_whole_chat(services, session, source)
    rows = [_row(message) for message in messages]
    if found.gap:
        output.say(f"{found.gap} messages are missing, because Redis has lost or evicted them")
    if common.output in {"jsonl", "id"}:
        output.show_list(common.output, rows, (), key="id")
        return
    document = {
        "session": session,
        "source": source,
        "rev": found.rev,
        "gap": found.gap,
        "meta": output.user_json(dict(found.meta)),
        "summary": None if found.summary is None else asdict(found.summary),
        "messages": rows,
    }
    output.write(output.json_text(document, indent=True))


@commands.command("clear", "orc chat clear 101", 'orc chat clear 101 --source mail --reason "wrong customer" --yes')
def clear(
    session: Session, /, *, source: Source = MAIN, reason: Reason = "", yes: Yes = False, common: Globals = DEFAULTS
) -> int:
    """Remove messages, fields and summary of a chat. Asks for confirmation. Numbers of later messages continue.

    Exit code: 0 cleared, 3 no such chat, 4 not confirmed, 75 a task holds the session alone.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    import anyio

    from orchestrator.cli.terminal.confirm import ask

    view = anyio.run(_view, session, source, common)
    messages = f"{view.messages} message{'s' * (view.messages != 1)}"
    ask(f"clear chat {output.clean(source)} of session {output.clean(session)}: {messages}", yes=yes)
    return anyio.run(_clear, session, view, reason, common)


async def _view(session: str, source: str, common: Globals) -> ChatView:
    from orchestrator.views.chat import read_chat

    async with common.services() as services:
        view, _ = await read_chat(services, session, source, last=1)
    return view


async def _clear(session: str, view: ChatView, reason: str, common: Globals) -> int:
    from orchestrator.cli.terminal.failures import DONE, say_error
    from orchestrator.client.session_actions import clear_chat

    async with common.client() as orc:
        chat = orc.chat(session).source(view.source)
        copied = (await chat.head()).saved > 0
        unrecorded = await clear_chat(orc.services, orc.locks(), session, view.source, reason=reason)
    if unrecorded:
        say_error(f"the chat was cleared, which was not recorded: {unrecorded}")
    if copied:
        output.say("its copy in a second storage is removed when a program next reads or changes the chat with it")
    if common.output == "table":
        output.write(f"cleared chat {output.clean(view.source)} of session {output.clean(session)}\n")
    else:
        output.show_record(common.output, {"session": session, "source": view.source}, key="session")
    return DONE


# ------------------------------------------------------------------------------------------------------------- messages


def _check_last(last: int) -> None:
    if not 1 <= last <= 10_000:
        raise InvalidInput("--last must be between 1 and 10000")


def _row(message: StoredMessage) -> dict[str, Any]:
    row = {name: getattr(message, name) for name in ("number", "id", "version", "turn", "tokens", "subject")}
    return row | {"at": message.at, "data": output.user_json(message.data)}


def _print(found: Hydration, *, full: bool) -> None:
    if found.summary is not None:
        output.write(f"summary up to {found.summary.upto}: {_cut(output.clean(found.summary.text), full=full)}\n")
    if not full:
        rows = [
            {
                "number": message.number,
                "at": message.at,
                "role": _role(message.data),
                "text": _cut(_text(message.data), full=False),
            }
            for message in found.messages
        ]
        output.show_list("table", rows, ("number", "at", "role", "text"), key="number", empty="no messages")
        return
    for message in found.messages:
        head = f"{message.number}  {output.clean(_role(message.data))}  {output.ago(message.at)}"
        # Indented, so that no message can imitate the head of another one.
        text = output.clean_lines(_text(message.data)).replace("\n", "\n  ")
        output.write(f"{output.paint(head, '1')}\n  {text}\n")


def _role(data: Mapping[str, Any]) -> str:
    return str(data.get("role") or data.get("type") or "-")


def _text(data: Mapping[str, Any]) -> str:
    """Return the text of a message of a usual form, else its JSON."""
    content = data.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "\n".join(part["text"] for part in content)
    return bytes(output.user_json(dict(data))).decode()


def _cut(text: str, *, full: bool) -> str:
    return text if full or len(text) <= SHORT else f"{text[: SHORT - 1]}…"
