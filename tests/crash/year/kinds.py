"""What must happen in a year, each at least once."""

from __future__ import annotations

#: Kinds of events that each whole run must have.
KINDS = (
    "days",
    "messages",
    "delayed",
    "halves",
    "halves that outlive retention",
    "commits",
    "rollbacks",
    "decisions repeated",
    "contradictions refused",
    "batches",
    "batches repeated",
    "topics made",
    "topics deleted",
    "groups",
    "groups that returned",
    "clients",
    "origins",
    "queries",
    "restarts",
    "crashes",
    "torn tails",
    "answers lost",
    "clocks ahead",
    "clocks back",
    "suspensions",
    "power cuts",
    "full disks",
    "messages refused for room",
    "backups",
    "restores",
    "segments deleted",
    "messages read",
    "messages read again",
)
#: Those of a release with topics in the log.
WITH_CATALOG = ("topics made again", "small tables lost")
