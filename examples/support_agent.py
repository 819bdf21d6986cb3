"""A support agent with a chat and a memory. It answers from real documents, by their words or by their meaning.

`python support_agent.py "How do I take a backup?"` runs all of it once: a Redis, a supervisor and a worker, which store
this project's manual and answer from the sections that fit best. With the extra `embedder` a small model compares their
meaning, else their spelling is compared; the first line says which.

Or run it with `orc up support_agent:agent`. Then, in another terminal:

    orc tasks submit learn_manual --wait
    orc tasks submit answer_customer -a question='How do I take a backup?' --session bob --wait

    orc tasks submit learn --wait
    orc tasks submit answer -a question='How do I wrap text with textwrap?' --session ada --wait
    orc tasks submit answer -a question='And how do I dedent it?' --session ada --wait
    orc chat show ada

`learn` and `answer` use the standard library's own documentation and no embedder: they look up the one whose words fit
the question best. The chat tells them what a question that names no module is about.
"""

import importlib
import inspect
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from orchestrator import (
    Agent,
    ConfigError,
    Embedder,
    HashedNgrams,
    Memory,
    MemoryQuery,
    Message,
    Record,
    Reject,
    TaskContext,
    WordLlamaEmbedder,
)
from orchestrator.embedded.attachment import attach_ephemeral
from orchestrator.sync import Orchestrator

MODULES = ("bisect", "difflib", "fnmatch", "glob", "heapq", "json", "random", "shutil", "statistics", "textwrap")
COMMON = {"an", "and", "are", "can", "do", "does", "for", "from", "how", "in", "is", "it", "of", "on", "the", "to"}

MANUAL = Path(__file__).resolve().parent.parent / "docs"
FOR_CUSTOMERS = ("README.md", "guides", "tutorial", "reference")
"""The parts of the manual that answers come from; the others are about its internals."""

agent = Agent("support", concurrency=10)


def choose_embedder() -> Embedder:
    """Return the model that the extra `embedder` installs, else an embedder that compares spelling."""
    try:
        return WordLlamaEmbedder()
    except ConfigError:
        return HashedNgrams(1024)


EMBEDDER = choose_embedder()


# ------------------------------------------------------------------------------------------- the manual, by its meaning


def sections() -> Iterator[Record]:
    """Read the manual: a record per section."""
    for path in sorted(MANUAL.rglob("*.md")):
        page, code = path.relative_to(MANUAL).as_posix(), False
        titles, body = [""], list[str]()
        for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), "# end"]):
            code ^= line.startswith("```")
            if code or not re.match(r"#{1,6} ", line):
                body.append(line)
                continue
            if text := "\n".join(body).strip():
                content = {"name": ": ".join(filter(None, titles)), "page": page, "text": text}
                yield Record(id=f"{page}:{number}", step=number, kind=page.partition("/")[0], content=content)
            titles, body = [titles[0] or line.lstrip("# "), line.lstrip("# ") if titles[0] else ""], []


def as_text(section: Any) -> str:
    """Return what the vector of a section is of: its title and its beginning. All of a long one would blur it."""
    return f"{section['name']}\n\n{section['text'][:500]}"


def manual(ctx: TaskContext) -> Memory:
    """Return the memory of the manual, which all agents share."""
    return ctx.memory_of(domain="manual").with_embedder(EMBEDDER, text=as_text)


@agent.skill
async def learn_manual(ctx: TaskContext) -> str:
    """Store the manual with the vectors of its sections. A repeat replaces it."""
    records = list(sections())
    if not records:
        raise Reject(f"there is no manual in {MANUAL}")
    await manual(ctx).store_many(records, tier="im", op_id=ctx.task_id)
    return f"{len(records)} sections, embedded by {EMBEDDER!r}"


@agent.skill
async def answer_customer(ctx: TaskContext, question: str) -> str:
    """Answer a question with the sections of the manual that are the most similar to it."""
    await ctx.chat.append([{"role": "user", "content": question}], turn=ctx.task_id, op_id=f"{ctx.task_id}/question")
    found = await manual(ctx).similar(question, k=3, where=MemoryQuery(kinds=FOR_CUSTOMERS), min_score=0.15)
    told = [f"{hit.record.content['page']}, {hit.record.content['name']} ({hit.score:.2f})" for hit in found]
    if told:
        best = found[0].record.content["text"].partition("\n\n")[0]
        reply = "\n".join([told[0], best, *(f"See also {other}" for other in told[1:])])
    else:
        reply = "The manual says nothing about that."
    message = Message({"role": "assistant", "content": reply})
    await ctx.chat.append([message], turn=ctx.task_id, op_id=f"{ctx.task_id}/reply")
    return reply


# ------------------------------------------------------------------------- the standard library's texts, by their words


def words(text: str) -> list[str]:
    """Split a text into lower-case words, without the most common ones."""
    found = re.findall(r"[a-z][a-z0-9]+", text.lower().replace("_", " "))
    return [word.removesuffix("s") for word in found if word not in COMMON]


def documents() -> Iterator[Record]:
    """Read the documentation of the modules: a record per function and class."""
    for name in MODULES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", dir(module)):
            value = getattr(module, public)
            text = inspect.getdoc(value) if inspect.isroutine(value) or inspect.isclass(value) else None
            if text and not public.startswith("_"):
                content = {"name": f"{name}.{public}", "text": text}
                # Module and name are indices of the memory, so that a question reads a few records of all.
                yield Record(id=f"{name}.{public}", step=0, kind=name, action=public.lower(), content=content)


@agent.skill
async def learn(ctx: TaskContext) -> int:
    """Store the documentation in the agent's memory. A repeat replaces it."""
    records = list(documents())
    await ctx.memory.store_many(records, tier="im", op_id=ctx.task_id)
    return len(records)


@agent.skill
async def answer(ctx: TaskContext, question: str) -> str:
    """Answer a question, and keep both in the chat of the session."""
    # The id makes a further attempt of this task store nothing twice.
    await ctx.chat.append([{"role": "user", "content": question}], turn=ctx.task_id, op_id=f"{ctx.task_id}/question")
    history = await ctx.chat.hydrate(turns=5)
    name, text = await look_up(ctx, question, [message.data.get("about", "") for message in history.messages])
    reply = f"{name}: {text.splitlines()[0]}" if name else "I found nothing about that."
    message = Message({"role": "assistant", "content": reply, "about": name.partition(".")[0]})
    await ctx.chat.append([message], turn=ctx.task_id, op_id=f"{ctx.task_id}/reply")
    return reply


async def look_up(ctx: TaskContext, question: str, abouts: list[str]) -> tuple[str, str]:
    """Return name and text of the documentation that fits best; empty if none does."""
    asked = words(question)
    if not asked:
        return "", ""
    last = next(filter(None, reversed(abouts)), "")
    # A question that names no module is about the one of the last answer.
    modules = {module for module in MODULES if module.removesuffix("s") in asked} or {last} - {""}
    queries = [MemoryQuery(actions=tuple(asked), limit=100)]
    if modules:
        queries.append(MemoryQuery(kinds=tuple(modules), limit=500))
    found = {record.id: record for query in queries for record in await ctx.memory.query(query)}
    texts = {id_: Counter(words(f"{id_} {record.content['text']}")) for id_, record in found.items()}
    mean = sum(map(Counter.total, texts.values())) / max(1, len(texts))

    def score(id_: str) -> float:
        """Rank as BM25 does. The name counts thrice, and twice as much where the chat is about its module."""
        text, weight = texts[id_], 0.0
        for word in set(asked) & set(text):
            count = text[word] + 2 * (word in words(id_))
            rarity = math.log(1 + len(texts) / sum(word in other for other in texts.values()))
            weight += rarity * count / (count + 0.5 + text.total() / mean)
        return weight * (2 if found[id_].kind in modules else 1)

    best = max(sorted(found), key=score, default="")
    if not best or score(best) == 0:
        return "", ""
    return best, found[best].content["text"]


# ----------------------------------------------------------------------------------------------------- in one command


def main(question: str) -> None:
    """Run a Redis, a supervisor and a worker; learn the manual, and answer one question."""
    with attach_ephemeral() as server, ExitStack() as beside:
        environ = {**os.environ, "ORC_REDIS__URL": server.url, "ORC_LOGGING__LEVEL": "error"}
        for part in (["supervisor", "run"], ["worker", "run", "support_agent:agent"]):
            command = [sys.executable, "-m", "orchestrator", *part]
            process = subprocess.Popen(command, env=environ, cwd=Path(__file__).parent)  # noqa: S603 - our own program
            beside.callback(process.wait)
            beside.callback(process.terminate)
        with Orchestrator(server.url) as orc:
            print(orc.submit(learn_manual, session="shell").result(timeout=60))
            print(f"\n{question}\n{orc.submit(answer_customer, {'question': question}, session='shell').result(60)}")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "How do I take a backup?")
