"""Embeds texts with the model of the package `wordllama`. Needs the extra `embedder`.

The package itself is not imported: that imports an HTTP client and configures the log of the process, and its loader
looks for the tokenizer in another folder than the one it ships it in, then downloads it. Its two files are read here.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from anyio import to_thread

from orchestrator.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

_PARTS: Final = ("numpy", "safetensors", "tokenizers", "wordllama")
_WEIGHTS: Final = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER: Final = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_BATCH: Final = 64


class _Model(NamedTuple):
    """Vectors of all tokens, and what splits a text into them."""

    vectors: NDArray[np.float32]
    tokenizer: Tokenizer


class WordLlamaEmbedder:
    """Compares the meaning of texts with a small model that its package ships: no network, no GPU, no cache folder.

    Install it with `pip install 'redis-orchestrator[embedder]'`. The weights, 33 MB of memory, are read once, in a
    thread, when the first text is embedded. A text has the mean of the vectors of its tokens: the order of words does
    not count, and the model knows English best. Larger models find more; give one as an `Embedder` of your own.

    Attributes:
        name: name of the space.
        dims: 256.

    Raises:
        ConfigError: a part of the extra is not installed.
    """

    __slots__ = ("_loading", "_model", "dims", "name")

    def __init__(self) -> None:
        missing = [name for name in _PARTS if find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"WordLlamaEmbedder needs {', '.join(missing)}; run `pip install 'redis-orchestrator[embedder]'`"
            )
        self.name: str = "wordllama-l2-supercat-256"
        self.dims: int = 256
        self._model: _Model | None = None
        self._loading = Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    async def embed(self, texts: Sequence[str], /) -> list[bytes]:
        """Return a vector of length 1 for each text, as bytes; zeros for an empty text."""
        return await to_thread.run_sync(self._embed, texts)

    def _embed(self, texts: Sequence[str]) -> list[bytes]:
        with self._loading:
            model = self._model = self._model or _load()
        found: list[bytes] = []
        for start in range(0, len(texts), _BATCH):
            batch = model.tokenizer.encode_batch(list(texts[start : start + _BATCH]), add_special_tokens=False)
            found += [_mean(model.vectors, tokens.ids) for tokens in batch]
        return found


def _load() -> _Model:
    import numpy as np
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    spec = find_spec("wordllama")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0])
    tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # Stored in 16 bits, which take thrice as long to add up.
    return _Model(load_file(folder / _WEIGHTS)["embedding.weight"].astype(np.float32), tokenizer)


def _mean(vectors: NDArray[np.float32], ids: Sequence[int]) -> bytes:
    import numpy as np

    if not ids:
        return bytes(4 * vectors.shape[1])
    mean = vectors[np.minimum(ids, len(vectors) - 1)].mean(axis=0)
    length = float(np.linalg.norm(mean))
    encoded: bytes = (mean / length if length else mean).astype("<f4").tobytes()
    return encoded
