"""Number of names that a broker keeps and their limits, with a warning before a limit."""

from __future__ import annotations

import msgspec

from escrowmq.model.event_log import event_log
from escrowmq.store.meta.meta import Meta
from escrowmq.store.store import Store

log = event_log(__name__)

NEAR = 0.8
"""The broker warns the operator from this share of a limit on."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one kind of names; the setting ``limits.KIND_max`` is its limit."""

    kind: str
    used: int
    max: int

    @property
    def is_near(self) -> bool:
        """Whether the limit is near."""
        return self.used >= NEAR * self.max

    def __str__(self) -> str:
        return f"{self.used:,} of {self.max:,} {self.kind}"


class Capacities:
    """Use of all kinds of names, and the limits that were near at the last look."""

    def __init__(self, *, store: Store, meta: Meta) -> None:
        self._store = store
        self._meta = meta
        self._near: frozenset[str] = frozenset()

    def all(self) -> list[Capacity]:
        """Return the current use of each kind."""
        limits, catalog = self._store.core.limits, self._store.catalog
        used = {
            "topics": (len(catalog.topics), limits.topics_max),
            "groups": (len(catalog.groups), limits.groups_max),
            "offsets": (len(self._meta.offsets), limits.offsets_max),
            "origins": (len(self._store.core.names.origins), limits.origins_max),
            "users": (len(catalog.users), limits.users_max),
        }
        return [Capacity(kind=kind, used=count, max=most) for kind, (count, most) in used.items()]

    def look(self) -> None:
        """Log each limit that came near, or is no longer near, since the last look."""
        near = frozenset(one.kind for one in self.all() if one.is_near)
        for one in self.all():
            facts = {"kind": one.kind, "used": one.used, "max": one.max}
            if one.kind in near - self._near:
                log.warning("limit_near", extra=facts)
            elif one.kind in self._near - near:
                log.info("limit_far", extra=facts)
        self._near = near
