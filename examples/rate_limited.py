"""Limits an agent to five starts in any second, over all of its workers.

Run `orc up rate_limited:agent` in one terminal and `python rate_limited.py` in another.
"""

from __future__ import annotations

import time

import anyio

from orchestrator import Agent, Orchestrator, Submission

agent = Agent("oracle", concurrency=50, rate="5/s")


@agent.skill
async def ask(question: str) -> str:
    """Answer one question. A real handler would call a paid service."""
    return f"{question}: yes"


async def main() -> None:
    """Ask fifteen questions at once and wait for all answers."""
    questions = [Submission(ask, {"question": f"question {number}"}) for number in range(15)]
    async with Orchestrator() as orc:
        began_s = time.monotonic()
        handles = await orc.submit_many(questions)
        answers = [await handle.result(timeout=30) for handle in handles]
        took_s = time.monotonic() - began_s
    print(f"{len(answers)} answers in {took_s:.1f} s; the last one: {answers[-1]}")


if __name__ == "__main__":
    anyio.run(main)
