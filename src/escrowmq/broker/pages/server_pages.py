"""The pages of a broker's HTTP port: for probes, Prometheus, tools, and people with a browser."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from escrowmq.broker.native.status import OUR_RELEASE, status
from escrowmq.broker.net.http import PageContent, Pages, html, json, text
from escrowmq.broker.pages.metrics import Measured, MetricsPage
from escrowmq.model.front_page import front_page

if TYPE_CHECKING:
    from escrowmq.broker.config import BrokerConfig

#: The pages that the front page links, with what each of them shows.
LINKED = {
    "/status": "the broker's status, as JSON",
    "/metrics": "numbers for Prometheus",
    "/healthz": "200 while the process runs",
    "/readyz": "200 once the store has recovered and serves",
}


class Addresses(Protocol):
    """Where clients reach a server; known once its sockets are bound."""

    broker_address: str
    name_address: str


def server_pages(
    addresses: Addresses, running: Callable[[], Measured | None], config: BrokerConfig
) -> Pages:
    """Return the pages by path; ``running`` returns None while the store recovers."""

    def health() -> PageContent:
        """An answer alone shows that the process is alive."""
        return text("ok")

    def readiness() -> PageContent:
        broker = running()
        if broker is None:
            return text("the store recovers", HTTPStatus.SERVICE_UNAVAILABLE)
        if broker.store.failure is not None:
            return text(str(broker.store.finished()), HTTPStatus.SERVICE_UNAVAILABLE)
        return text("ready")

    def standing() -> PageContent:
        broker = running()
        return readiness() if broker is None else json(status(broker))

    def front() -> PageContent:
        facts = {
            "version": OUR_RELEASE,
            "broker": f"{config.name}, cluster {config.cluster}",
            "clients connect to": addresses.broker_address,
            "name server": addresses.name_address,
            "state": readiness().body.decode().strip(),
        }
        return html(front_page("EscrowMQ broker", facts, LINKED))

    return {
        "/": front,
        "/healthz": health,
        "/readyz": readiness,
        "/status": standing,
        "/metrics": MetricsPage(running, cluster=config.cluster, name=config.name),
    }
