"""How much bad clients, very many connections and very many topics slow down other clients.

    make bench NAME=limits [ARGS="beside beside-grpc connections topics expiry"]

Starts our broker as a process of its own. Prints one JSON object per figure.
"""

from __future__ import annotations

import sys

from bench.figures import beside, expiry, many
from bench.figures.grpc_abusers import GRPC_KINDS

FIGURES = {
    "beside": beside.run,
    "beside-grpc": lambda: beside.run(GRPC_KINDS),
    "connections": many.connections,
    "topics": many.topics,
    "expiry": expiry.run,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
