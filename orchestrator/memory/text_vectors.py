"""Makes the vectors of records and questions from their texts, for a memory that has an embedder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_text
from orchestrator.core.reading import read_text
from orchestrator.embedding.embedding import embed_texts
from orchestrator.embedding.model import Embedder
from orchestrator.memory.encoding import is_whole
from orchestrator.memory.writer import other_space
from orchestrator.store.keys import VECTORS, VECTORS_META
from orchestrator.vectors.encoding import MAX_DIMS, space_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.memory.model import Json
    from orchestrator.store.scoped import ScopedStore


def text_of(content: Json) -> str:
    """Return the text of a content: a text as it is, of an object its `text`, of anything else its JSON."""
    text = content.get("text") if isinstance(content, dict) else content
    return text if isinstance(text, str) else json.dumps(content, ensure_ascii=False)


class TextVectors(NamedTuple):
    """Embeds the texts of one memory handle.

    Attributes:
        embedder: makes the vectors.
        text: returns the text of a content.
    """

    embedder: Embedder
    text: Callable[[Json], str] = text_of

    @classmethod
    def checked(cls, embedder: Any, text: Callable[[Json], str]) -> TextVectors:
        """Return one with an embedder that can be asked.

        Raises:
            InvalidInput: it has not what an embedder has.
        """
        if not isinstance(embedder, Embedder):
            raise InvalidInput(f"an embedder has name, dims and embed(texts); {embedder!r:.80} lacks one of them")
        check_text("name of the embedder", embedder.name)
        if not is_whole(embedder.dims) or not 1 <= embedder.dims <= MAX_DIMS:
            raise InvalidInput(f"dims of an embedder is a whole number from 1 to {MAX_DIMS}, not {embedder.dims!r:.80}")
        return cls(embedder, text)

    async def of_contents(self, contents: Sequence[Json]) -> list[bytes]:
        """Return the vectors of contents; empty for each whose text has nothing to compare.

        Raises:
            EmbeddingError: the embedder failed.
            InvalidInput: `text` did not return a text.
        """
        texts = [self.text(content) for content in contents]
        for text in texts:
            if not isinstance(text, str):
                raise InvalidInput(f"text= of with_embedder must return a str, not {text!r:.80}")
        return await embed_texts(self.embedder, texts)

    async def check_space(self, scope: ScopedStore, vector: bytes) -> None:
        """Refuse a question that the stored vectors, which are of another embedder, cannot be compared with.

        Raises:
            InvalidInput: the stored vectors are of another space.
        """
        keys = scope.keys
        stored, space = await scope.read_many([("HLEN", keys.key(VECTORS)), ("HGET", keys.key(VECTORS_META), "space")])
        if stored and space and read_text(space) != space_of(vector, self.embedder.name):
            raise other_space(keys.words, read_text(space), advice="ask with the same embedder")

    async def of_question(self, text: str) -> bytes:
        """Return the vector of a question.

        Raises:
            EmbeddingError: the embedder failed.
            InvalidInput: the text has nothing to compare.
        """
        (vector,) = await embed_texts(self.embedder, [text])
        if not vector:
            raise InvalidInput(f"the text {text!r:.80} has nothing that the embedder could compare")
        return vector
