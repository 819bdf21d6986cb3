"""The peers that can be measured, in the order in which the report shows them."""

from __future__ import annotations

from benchmarks.peers.ardiq import ARDIQ
from benchmarks.peers.arq import ARQ
from benchmarks.peers.dramatiq import DRAMATIQ
from benchmarks.peers.saq import SAQ
from benchmarks.peers.streaq import STREAQ

PEERS = {peer.name: peer for peer in (ARDIQ, ARQ, SAQ, DRAMATIQ, STREAQ)}
