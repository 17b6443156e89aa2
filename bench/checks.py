"""What the broker's own checks of undecided transactions cost, and how fast they are.

    make bench NAME=checks [ARGS="producers ledger memory latency"]

Prints one JSON object per figure. Broker, look-up process, PostgreSQL, producer and load share this
machine.
"""

from __future__ import annotations

import sys

from bench.figures import checks_latency, checks_speed

FIGURES = {
    "producers": checks_speed.producers,
    "ledger": checks_speed.ledger,
    "memory": checks_speed.memory,
    "latency": checks_latency.latency,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
