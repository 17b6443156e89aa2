"""The cost of the store, as ratios to a baseline of the same run.

    make bench NAME=store [ARGS="append durable"]

Prints one JSON object per figure. Every ratio is the median over runs in which the store and the
baseline alternate, so that a busy machine slows both.
"""

from __future__ import annotations

import sys

from bench.figures import append, delays, durable, restart, retention, space, stop

FIGURES = {
    "append": append.run,
    "delays": delays.run,
    "bytes": space.disk_bytes,
    "durable": durable.run,
    "undecided": space.undecided,
    "restart": restart.run,
    "stop": stop.run,
    "retention": retention.run,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
