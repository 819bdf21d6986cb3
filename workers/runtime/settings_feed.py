"""Sends settings from a worker host to its workers, over one pipe per worker.

The host alone reads the sources, so that all its workers use the same settings. A frame is a length (4 bytes, big
endian) and JSON. It waits in the pipe while the worker starts.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from orchestrator.core.log import get_logger
from orchestrator.core.settings_reload import pack_settings, unpack_settings

if TYPE_CHECKING:
    from orchestrator.core.live_settings import LiveSettings

_HEAD: Final = 4
_READ_BYTES: Final = 65_536
_log = get_logger(__name__)


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    generation: int
    settings: msgspec.Raw


class SettingsFeed:
    """The pipe to one worker; the host makes it before the fork."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        self._open = {self._reader, self._writer}
        for end in self._open:
            os.set_blocking(end, False)
        self._unsent = b""
        self._waiting: bytes | None = None
        self._received = b""

    # ---------------------------------------------------------------------------------------------------- in the host

    def send(self, live: LiveSettings) -> None:
        """Send the settings of now, or as soon as the worker reads; newer ones replace those that wait."""
        packed = msgspec.json.encode(_Frame(live.generation, msgspec.Raw(pack_settings(live.current))))
        self._waiting = len(packed).to_bytes(_HEAD, "big") + packed
        self.flush()

    def flush(self) -> None:
        """Write what waits, as far as the pipe has room."""
        with suppress(BlockingIOError, BrokenPipeError):  # full, or the worker has ended
            while self._unsent or self._waiting:
                if not self._unsent:
                    self._unsent, self._waiting = self._waiting or b"", None
                self._unsent = self._unsent[os.write(self._writer, self._unsent) :]

    def keep_writer(self) -> None:
        """Close the end of the worker, so that a write after its death fails."""
        self._close(self._reader)

    def close(self) -> None:
        """Close the ends that are open."""
        for end in tuple(self._open):
            self._close(end)

    def _close(self, end: int) -> None:
        # Once, because a number that is free belongs to the next file that is opened.
        self._open.remove(end)
        os.close(end)

    # -------------------------------------------------------------------------------------------------- in the worker

    def keep_reader(self) -> None:
        """Close the end of the host, so that the worker sees when the host has ended."""
        self._close(self._writer)

    def follow(self, live: LiveSettings) -> None:
        """Use the settings that arrive, in the running event loop."""
        asyncio.get_running_loop().add_reader(self._reader, self._receive, live)

    def stop(self) -> None:
        """End `follow`."""
        asyncio.get_running_loop().remove_reader(self._reader)

    def _receive(self, live: LiveSettings) -> None:
        try:
            data = os.read(self._reader, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:  # the host has ended
            self.stop()
            return
        self._received += data
        while (frame := self._next_frame()) is not None:
            live.replace(unpack_settings(bytes(frame.settings)), generation=frame.generation)
            _log.info("settings_applied", generation=frame.generation)

    def _next_frame(self) -> _Frame | None:
        size = int.from_bytes(self._received[:_HEAD], "big")
        if len(self._received) < _HEAD + size or len(self._received) < _HEAD:
            return None
        packed, self._received = self._received[_HEAD : _HEAD + size], self._received[_HEAD + size :]
        return msgspec.json.decode(packed, type=_Frame)
