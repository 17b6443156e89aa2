"""Hunts for crash bugs with fresh seeds: ``python -m tests.crash.long [--seconds N] [--seed S]``.

The hunts take turns, each with a seed that is printed before it starts. A hunt is a function
``(seed) -> counts``; a hunt whose module does not exist is skipped.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path

Hunt = Callable[[int], Mapping[str, int]]

#: Name to the hunt's module and function.
HUNTS = {
    "whole": ("tests.crash.hunts", "whole"),
    "whole-os": ("tests.crash.hunts", "whole_os"),
    "birth": ("tests.crash.hunts", "birth"),
    "day": ("tests.crash.hunts", "day"),
    "kill": ("tests.crash.long", "kill"),
    "states": ("tests.crash.hunts", "states"),
    "machine": ("tests.crash.hunts", "machine"),
    "checks": ("tests.unit.broker.checked_hours", "hunt"),
}
DEFAULT_SECONDS = 600
KILLS = 12
SEED_BITS = 32


def kill(seed: int) -> Mapping[str, int]:
    """Kill a real process again and again."""
    from tests.crash.kill_loop import kill_loop

    with tempfile.TemporaryDirectory(prefix="escrowmq-kill-") as directory:
        report = kill_loop(seed, KILLS, Path(directory))
    return {"kills": report.kills, "answers": report.acknowledged}


def present_hunts(only: str = "") -> dict[str, Hunt]:
    """Hunts whose module and function exist."""
    found: dict[str, Hunt] = {}
    for name, (module, function) in HUNTS.items():
        if only in ("", name) and importlib.util.find_spec(module) is not None:
            hunt = getattr(importlib.import_module(module), function, None)
            if hunt is not None:
                found[name] = hunt
    return found


def seeds(first: int | None) -> Iterator[int]:
    """Yield the given seed once; without one, yield new seeds forever."""
    if first is not None:
        yield first
        return
    while True:
        yield secrets.randbits(SEED_BITS)


def main(words: list[str] | None = None) -> int:
    """Hunt until the time is over; return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.long")
    parser.add_argument("--seconds", type=float, default=DEFAULT_SECONDS)
    parser.add_argument("--seed", type=int, help="only this one, once for each hunt")
    parser.add_argument("--only", default="", choices=("", *HUNTS))
    arguments = parser.parse_args(words)
    deadline = time.monotonic() + arguments.seconds
    hunts = present_hunts(arguments.only)
    counts: Counter[str] = Counter()
    turns = (
        ((name, seed) for seed in seeds(arguments.seed) for name in hunts)
        if arguments.seed is not None
        else zip(cycle(hunts), seeds(None), strict=False)
    )
    for name, seed in turns:
        if time.monotonic() >= deadline:
            break
        say(f"{name}: seed {seed}")
        try:
            counts.update(hunts[name](seed))
        except Exception:  # noqa: BLE001 - any error is a finding
            say(traceback.format_exc())
            say(f"again: make crash ARGS='--only {name} --seed {seed}'")
            return 1
    say("nothing found: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return 0


def say(text: str) -> None:
    """Print a line and flush it, so that a long run can be watched."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
