"""Opens ``meta.db`` even if it is missing or damaged, which must not prevent a start."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.model.event_log import event_log
from escrowmq.store.meta.meta import DEFAULT_LIMITS, Meta, MetaLimits

if TYPE_CHECKING:
    from pathlib import Path

log = event_log(__name__)


class MetaFound(msgspec.Struct, frozen=True, kw_only=True):
    """The state in which the file was found."""

    #: There was no file.
    is_new: bool = False
    #: Why the file cannot be used; empty if it can.
    damage: str = ""
    #: Where the damaged file is now, or a copy of it.
    aside: str = ""

    @property
    def loss(self) -> str:
        """Why offsets may be lost; empty if they are not."""
        return "meta.db was missing" if self.is_new else self.damage


def open_meta(
    path: Path, limits: MetaLimits = DEFAULT_LIMITS, *, is_known: bool = False
) -> tuple[Meta, MetaFound]:
    """Open the file; move a damaged one aside and make a new one.

    ``is_known`` means that the store has written this file before. A file that then names another
    application is damaged, not foreign.
    """
    if not path.exists():
        return Meta(path, limits), MetaFound(is_new=True)
    try:
        meta = Meta(path, limits)
    except (StoreCorrupt, StoreUnusable) as error:
        if not isinstance(error, StoreCorrupt) and not (is_known and error.code == "meta_foreign"):
            raise
        aside = _aside(path)
        # The journal moves too: SQLite would play it back into the new file.
        for suffix in ("-journal", ""):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        log.error("meta_damaged", extra={"aside": str(aside), "why": str(error)})  # noqa: TRY400 - handled
        return Meta(path, limits), MetaFound(damage=str(error), aside=str(aside))
    if not meta.bad_rows:
        return meta, MetaFound()
    aside = _aside(path)
    meta.copy_to(aside)
    log.error("meta_rows_damaged", extra={"aside": str(aside), "rows": meta.bad_rows})
    return meta, MetaFound(damage=f"{meta.bad_rows} rows are damaged", aside=str(aside))


def _aside(path: Path) -> Path:
    """Return an unused file name."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    return next(name for name in names if not name.exists())
