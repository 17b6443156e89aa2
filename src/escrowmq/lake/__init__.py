"""The lake: tables of messages and transactions, which the archive writes and any tool can read.

Names are imported when they are first used, because reading tables needs no Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq.pipeline.archive.archiving import archive_once
    from escrowmq.pipeline.archive.stream import ArchiveOptions
    from escrowmq.pipeline.lake.delta import Lake
    from escrowmq.pipeline.lake.sql import SUMMARY_SQL, register

__all__ = ["SUMMARY_SQL", "ArchiveOptions", "Lake", "archive_once", "register"]

_HOMES = {
    "ArchiveOptions": "escrowmq.pipeline.archive.stream",
    "Lake": "escrowmq.pipeline.lake.delta",
    "SUMMARY_SQL": "escrowmq.pipeline.lake.sql",
    "archive_once": "escrowmq.pipeline.archive.archiving",
    "register": "escrowmq.pipeline.lake.sql",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
