"""Figures of the pipeline: ``python -m bench.pipeline NAME [ARGS]``, one JSON object per line."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def main() -> None:
    """Run the named benchmark, or all of them."""
    # SIGTERM then raises KeyboardInterrupt, as Ctrl-C does, and each block stops what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name, *arguments = sys.argv[1:] or ["all"]
    if name != "all" and name not in NAMES:
        sys.exit(f"no benchmark {name!r}: there are all, {', '.join(NAMES)}")
    for one in NAMES if name == "all" else (name,):
        import_module(f"bench.pipeline.{one}").main(arguments)


if __name__ == "__main__":
    main()
