"""Run the hunt: ``python -m tests.ledger.borders [--seconds N] [--seed S] [--audit N]``.

A failing program is printed with its steps; ``--seed S --program K`` runs it again.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import traceback

from tests.ledger.borders.hunt import FULL_S, hunt_until, hunting

SEED_BITS = 32


def main(words: list[str] | None = None) -> int:
    """Hunt until the time is over; return 1 if a fault was found or too little was done."""
    parser = argparse.ArgumentParser(prog="python -m tests.ledger.borders")
    parser.add_argument("--seconds", type=float, default=FULL_S)
    parser.add_argument("--seed", type=int, help="a fresh one unless given")
    parser.add_argument("--program", type=int, help="only this one of the seed's programs")
    parser.add_argument(
        "--audit",
        type=int,
        default=0,
        metavar="N",
        help="audit every N-th program: 5 s each, about",
    )
    arguments = parser.parse_args(words)
    seed = secrets.randbits(SEED_BITS) if arguments.seed is None else arguments.seed
    say(f"seed {seed}")
    audit_every = arguments.audit if arguments.program is None else min(arguments.audit, 1)
    with hunting(seed, audit_every=audit_every) as hunt:
        try:
            if arguments.program is not None:
                hunt.run(arguments.program)
            else:
                hunt_until(hunt, arguments.seconds)
        except Exception:  # noqa: BLE001 - every exception is a finding
            number = hunt.programs if arguments.program is None else arguments.program
            say(traceback.format_exc())
            audit = " --audit 1" if arguments.audit else ""
            say(f"again: make borders ARGS='--seed {seed} --program {number}{audit}'")
            return 1
    report = hunt.report()
    if arguments.program is None:
        report["shortfalls"] = hunt.shortfalls(arguments.seconds)
    say(json.dumps(report))
    return 1 if report.get("shortfalls") else 0


def say(text: str) -> None:
    """Print at once, so that a long run can be watched."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
