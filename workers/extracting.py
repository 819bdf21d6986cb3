"""The handler of a skill that extracts records from chats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_text
from orchestrator.embedding.model import Embedder
from orchestrator.extraction.model import Extraction  # noqa: TC001 - the worker reads the annotations
from orchestrator.extraction.running import RangeExtraction, check_batch
from orchestrator.memory.queries import check_tiers
from orchestrator.workers.context import TaskContext  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.extraction.model import Extractor
    from orchestrator.memory.model import Tier


def make_extraction_handler(
    extractor: Extractor, *, skill: str, tier: Tier, batch: int, embedder: Embedder | None
) -> Callable[..., Awaitable[Extraction]]:
    """Return the handler of a skill that stores what an extractor finds.

    Raises:
        InvalidInput: an option is invalid.
    """
    if not callable(getattr(extractor, "extract", None)):
        raise InvalidInput(f"give an extractor, as RuleExtractor(), not {extractor!r:.80}")
    for what in ("name", "version"):
        check_text(f"{what} of the extractor", getattr(extractor, what, None))  # type: ignore[arg-type]
    check_tiers((tier,))
    if embedder is not None and not isinstance(embedder, Embedder):
        raise InvalidInput(f"give an embedder, as HashedNgrams(), not {embedder!r:.80}")
    extraction = RangeExtraction(
        extractor=extractor, skill=skill, tier=tier, batch=check_batch(batch), embedder=embedder
    )

    async def extract(ctx: TaskContext, source: str, after: int, upto: int, subject: str | None = None) -> Extraction:
        """Store what an extractor finds in a range of messages of the session's chat; `orc.extract` submits it."""
        return await extraction.run(ctx, source=source, after=after, upto=upto, subject=subject)

    return extract
