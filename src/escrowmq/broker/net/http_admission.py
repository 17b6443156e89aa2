"""Lets HTTP requests in: finds their users, and checks what their pages need."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from escrowmq.broker.access.needs_http import HTTP_NEEDS
from escrowmq.model.errors import EscrowError, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.broker.access.gate import AccessGate
    from escrowmq.broker.access.known_users import KnownUser

AUTHORIZATION = b"authorization"


@dataclass(slots=True, eq=False)
class HttpLink:
    """The connection of one HTTP request."""

    peer_host: str
    is_tls: bool = False
    certificate_names: tuple[str, ...] = ()
    caller: KnownUser | None = None

    def cut(self, event: str, **facts: object) -> None:
        """Do nothing: the request is answered at once."""


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """How a page is refused."""

    status: HTTPStatus
    text: str
    #: How long the answer waits.
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HttpAdmission:
    """Asks the gate about pages."""

    #: Whether access control is on, and its gate; None while the store recovers.
    is_on: bool
    gate: Callable[[], AccessGate | None]

    def refusal(self, link: HttpLink, path: str, head: bytes) -> HttpRefusal | None:
        """Return why a page is refused; None if it is not."""
        needs = HTTP_NEEDS.get(path, ())
        if not self.is_on or needs is None:
            return None
        gate = self.gate()
        if gate is None:
            return HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, "the store recovers")
        now_s = asyncio.get_running_loop().time()
        try:
            known = gate.admit_http(link, path, authorization_of(head))
        except EscrowError as refused:
            gate.note(refused, link.peer_host, now_s, path=path)
            delay_s = gate.failures.note(link.peer_host, now_s)
            if delay_s:
                # The connection ends with its answer, and open ones are few: none needs to wait.
                gate.failures.answered(link.peer_host)
            return HttpRefusal(HTTPStatus.UNAUTHORIZED, str(refused), delay_s or 0.0)
        finally:
            gate.closed(link)
        try:
            gate.require(known, needs, link.peer_host)
        except RequestRefused as refused:
            gate.note(refused, link.peer_host, now_s, path=path)
            return HttpRefusal(HTTPStatus.FORBIDDEN, str(refused))
        return None


def authorization_of(head: bytes) -> str:
    """Return the Authorization header; empty if there is none, or more than one."""
    found = [
        value.strip()
        for line in head.split(b"\r\n")[1:]
        for name, _, value in [line.partition(b":")]
        if name.lower() == AUTHORIZATION
    ]
    return found[0].decode("latin-1") if len(found) == 1 else ""
