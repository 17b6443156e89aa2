"""The look-up process of a broker: ``python -m escrowmq.look_up.child [LOG]``.

It reads requests from standard input and writes answers to standard output, in the frames of
``protocol/look_up``. Its log goes to standard error; LOG is a ``LogConfig`` as JSON. It ends when
its input ends, so also when the broker is killed. Database drivers, their threads and their memory
stay out of the broker's process.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Answer requests until the input ends. Does not return."""
    # A terminal sends Ctrl-C to the broker and to this process. The broker stops in order and may
    # still ask while it stops, so it alone ends this process. Before the imports, which are slow.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from escrowmq.look_up.serving import run

    run()


if __name__ == "__main__":
    main()
