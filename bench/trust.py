"""What protection costs: the same stock Java client with TLS and without, in turn.

    make bench NAME=trust [ARGS="tls --quick"]

Needs a JDK and Maven; the first run builds the client. Prints one JSON object per figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bench.figures import trust_tls
from bench.figures.peers_common import RUNS, SECONDS, Plan

FIGURES: dict[str, Callable[[Plan], None]] = {"tls": trust_tls.run}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.trust", description=__doc__)
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], metavar="|".join(FIGURES))
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that one run measures")
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    given = parser.parse_args()
    runs, seconds = (1, 4.0) if given.quick else (given.runs, given.seconds)
    plan = Plan(threads=[64], body_bytes=[300], runs=runs, measure_ms=int(seconds * 1_000))
    for name in given.figures or FIGURES:
        FIGURES[name](plan)
