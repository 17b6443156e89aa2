"""The state stores compared in one run: transactions per second, scans, recovery, bytes, memory.

    make bench NAME=state [ARGS="speed sql scan base=CHECKOUT"]

Prints one JSON object per figure. ``scan`` fills a store with 1,000,000 undecided transactions,
which takes a minute; ``scan=100000`` takes fewer. A PostgreSQL server is started. ``base`` compares
the table with that of another version, whose checkout it names; it runs only if it is asked for.
"""

from __future__ import annotations

import sys

from bench.figures import state_scan, state_speed

FIGURES = {
    "speed": state_speed.speed,
    "sql": state_speed.sql,
    "scan": state_scan.run,
}

if __name__ == "__main__":
    for argument in sys.argv[1:] or FIGURES:
        name, _, size = argument.partition("=")
        if name == "base":
            state_speed.base(size)
        elif size:
            state_scan.run(int(size))
        else:
            FIGURES[name]()
