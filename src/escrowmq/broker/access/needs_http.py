"""The table of HTTP pages: what each of them needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.access.common_needs import on_cluster
from escrowmq.model.users import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from escrowmq.access.needs import Needs

_STATUS = on_cluster(Action.GET)

HTTP_NEEDS: Mapping[str, Needs | None] = {
    "/": _STATUS,
    "/status": _STATUS,
    "/metrics": _STATUS,
    # Probes send no credentials, and learn nothing but whether the broker works.
    "/healthz": None,
    "/readyz": None,
}
"""By path. A page with None is open to everyone, without credentials."""
