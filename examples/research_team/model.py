"""Simulates a model provider: words arrive one by one, and too many requests in a second are answered with 429."""

import re
import time
from collections import deque
from collections.abc import AsyncIterator

import anyio

REQUESTS_PER_S = 3
WORD_S = 0.02

requests: deque[float] = deque()


class TooManyRequests(Exception):
    """Status 429, with the seconds of its `Retry-After`."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"429 Too Many Requests; Retry-After: {retry_after:.1f}")
        self.retry_after = retry_after


async def stream(prompt: str) -> AsyncIterator[str]:
    """Yield the answer word by word."""
    now = time.monotonic()
    while requests and requests[0] <= now - 1:
        requests.popleft()
    if len(requests) == REQUESTS_PER_S:
        raise TooManyRequests(requests[0] + 1 - now)
    requests.append(now)
    for word in re.findall(r"\S+\s*", _answer(prompt)):
        await anyio.sleep(WORD_S)
        yield word


async def complete(prompt: str) -> str:
    """Return the whole answer."""
    return "".join([word async for word in stream(prompt)])


def _answer(prompt: str) -> str:
    role, _, text = prompt.partition(": ")
    match role:
        case "plan":
            return "\n".join(
                f"{words} {text}?" for words in ("Why", "Who needs", "What breaks", "What replaces", "What follows")
            )
        case "investigate":
            return f"{text} A source answers that."
        case "review":
            return f"{len(text.split())} words, no mistakes found."
        case _:
            return text
