"""An agent whose skills get a secret and do with it what leaks: raise it, return it, log it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os

from pydantic import BaseModel, field_validator

from orchestrator import Agent, Reject, Retry, Snooze, TaskContext

PLAIN_HOWS = ("raise", "chained", "group", "reject", "retry", "key", "type", "return")
"""What a handler without a context does."""
HOWS = (*PLAIN_HOWS, "snooze", "huge", "log", "emit")


class Account(BaseModel):
    """A value whose validator puts it into its message."""

    number: str

    @field_validator("number")
    @classmethod
    def _check(cls, number: str) -> str:
        if number.endswith("!"):
            raise ValueError(f"{number} is no account")
        return number


def _leak(secret: str, how: str) -> object:
    """Do what handlers of all kinds can do."""
    match how:
        case "raise":
            raise ValueError(f"cannot pay {secret}")
        case "chained":
            try:
                raise KeyError(secret)
            except KeyError as first:
                first.add_note(f"for {secret}")
                raise RuntimeError(f"payment of {secret} failed") from first
        case "group":
            raise ExceptionGroup(secret, [ValueError(secret), TypeError(secret)])
        case "reject":
            raise Reject(f"no account {secret}")
        case "retry":
            raise Retry(0.01, reason=f"bank of {secret} is closed")
        case "key":
            return {(secret, 1): 1}
        case "type":
            return {secret: object()}
    return {"paid": secret}


async def pay(ctx: TaskContext, secret: str, how: str, account: Account | None = None) -> object:
    """Leak in the event loop."""
    del account
    match how:
        case "snooze":
            if ctx.attempt == 1 and not await ctx.once("snoozed", lambda: False):
                raise Snooze(600, reason=f"after {secret}")
        case "huge":
            return [secret] * 200_000
        case "emit":
            await ctx.emit({"paid": secret})
        case "log":
            try:
                raise ValueError(f"cannot pay {secret}")
            except ValueError:
                ctx.log.exception("pay_failed")
                logging.getLogger("bank").exception("paying failed")
        case "lost":

            async def fail() -> None:
                raise ValueError(f"cannot pay {secret}")

            task = asyncio.get_running_loop().create_task(fail())
            await asyncio.sleep(0.01)
            del task
            gc.collect()
    return _leak(secret, how)


def pay_in_thread(secret: str, how: str) -> object:
    """Leak in a thread."""
    return _leak(secret, how)


def pay_in_process(secret: str, how: str) -> object:
    """Leak in a process."""
    if how == "environ":
        return {"environ": [f"{name}={value}" for name, value in os.environ.items()], "pid": os.getpid()}
    if how == "client":
        from orchestrator.core.settings_sources import load_settings

        return load_settings().redis.url is not None
    return _leak(secret, how)


def make_agent(*, redact: bool) -> Agent:
    """Return the agent, redacted or not."""
    agent = Agent("vault", concurrency=4)
    for handler, process in ((pay, False), (pay_in_thread, False), (pay_in_process, True)):
        agent.skill(redact=redact, max_attempts=2, backoff=0.01, process=process)(handler)
    return agent


agent = make_agent(redact=os.environ.get("VAULT_SHOWS") != "1")
