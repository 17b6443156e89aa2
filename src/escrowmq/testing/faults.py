"""Failures that a ``FaultyDisk`` is told to have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from escrowmq.testing.survivors import Survivors


class Kind(StrEnum):
    """The calls that ``fail_after`` can make fail."""

    READ = "read"
    WRITE = "write"
    TRUNCATE = "truncate"
    FLUSH = "flush"
    CREATE = "create"
    RENAME = "rename"
    REMOVE = "remove"
    MAKE_DIRECTORY = "make_directory"
    FLUSH_DIRECTORY = "flush_directory"


@dataclass(slots=True, kw_only=True)
class Fault:
    """Calls of one kind that fail, and how."""

    kind: Kind
    successes_left: int
    failures_left: int | None
    errno: int
    under: str
    short_bytes: int
    survivors: Survivors
