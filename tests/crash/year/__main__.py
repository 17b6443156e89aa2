"""A year of one broker: ``python -m tests.crash.year --seed S [--days 365] [--seconds N]``.

Prints one JSON object: how often each kind of event happened, and how large the broker was after
day 30 and at the end. Exit code 1: a promise was broken, a kind of event never happened, or the
broker grew to more than 1.5 times its size.
"""

from __future__ import annotations

import argparse
import secrets
import sys

from tests.crash.year.run import DAYS, SECONDS_MAX, run, say

SEED_BITS = 32


def main(words: list[str] | None = None) -> int:
    """Run that long; return 1 if something was found or too little was done."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.year")
    parser.add_argument("--seed", type=int, help="a fresh one unless given")
    parser.add_argument("--days", type=int, default=DAYS)
    parser.add_argument("--seconds", type=float, default=SECONDS_MAX, help="stop after these")
    arguments = parser.parse_args(words)
    seed = secrets.randbits(SEED_BITS) if arguments.seed is None else arguments.seed
    say(f"seed {seed}")
    return run(seed, arguments.days, arguments.seconds)


if __name__ == "__main__":
    sys.exit(main())
