"""Embeds texts by their spelling. Needs no model and no library."""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from array import array
from collections import Counter
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORD: Final = re.compile(r"[^\W_]{1,32}")
"""A longer run of letters, as in languages that write no spaces, counts as several words."""
_SIZE: Final = 4
_CACHED_WORDS: Final = 16_384
MAX_DIMS: Final = 4096


class HashedNgrams:
    """Compares the spelling of texts, not their meaning: synonyms are as far apart as any two words.

    "refund" is close to "refunds" and "refunded", and "money back" is not. Needs no extra, no model and no network; use
    it where texts and questions share their words, in tests, and where no model is at hand.

    A word is hashed, and so is each run of four letters in it. A text is the sum of its words: a word that occurs often
    counts by the logarithm, and a short word less than a long one. The order of the words does not count. The same text
    has the same vector in every process and on every machine.

    Attributes:
        name: name of the space; changes when the rules change.
        dims: number of dimensions, 64 to 4096. With more of them, fewer parts share one.
    """

    __slots__ = ("_word", "dims", "name")

    def __init__(self, dims: int = 512) -> None:
        if isinstance(dims, bool) or not isinstance(dims, int) or not 64 <= dims <= MAX_DIMS:
            raise InvalidInput(f"dims must be a whole number from 64 to {MAX_DIMS}, not {dims!r:.80}")
        self.name: str = "hashed-ngrams-1"
        self.dims: int = dims
        self._word = lru_cache(_CACHED_WORDS)(self._embed_word)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dims})"

    async def embed(self, texts: Sequence[str], /) -> list[bytes]:
        """Return a vector of length 1 for each text, as bytes; zeros for a text without a letter or digit."""
        return await to_thread.run_sync(lambda: [self._embed(text) for text in texts])

    def _embed(self, text: str) -> bytes:
        sums = [0.0] * self.dims
        words = Counter(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
        for word, count in words.items():
            weight = 1 + math.log(count)
            for place, part in zip(*self._word(word), strict=True):
                sums[place] += weight * part
        return _encode(_to_unit(sums))

    def _embed_word(self, word: str) -> tuple[array[int], array[float]]:
        """Return the places of a word and its parts, and their weights."""
        marked = f"<{word}>"
        parts = [marked[start : start + _SIZE] for start in range(max(1, len(marked) - _SIZE + 1))]
        # Short words are the frequent ones, which say the least.
        weight = math.log(1 + len(word))
        places, weights = array("H"), array("d")
        for part, share in ((marked + word, 1.0), *((part, 1 / math.sqrt(len(parts))) for part in parts)):
            hashed = int.from_bytes(blake2b(part.encode(), digest_size=8).digest(), "little")
            places.append((hashed >> 1) % self.dims)
            weights.append(share * (-weight if hashed & 1 else weight))
        return places, weights


def _to_unit(sums: Sequence[float]) -> list[float]:
    length = math.sqrt(math.fsum(each * each for each in sums))
    return [each / length for each in sums] if length else list(sums)


def _encode(floats: Sequence[float]) -> bytes:
    encoded = array("f", floats)
    if sys.byteorder == "big":
        encoded.byteswap()
    return encoded.tobytes()
