"""Lets remoting and native requests in: finds their users, and checks what they need.

A request without valid credentials is answered after a delay that grows with the failures of its
address. A connection with too many of them is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from escrowmq.broker.access.common_needs import Asker, check_table
from escrowmq.broker.access.gate import UNKNOWN_CALLER
from escrowmq.broker.access.needs_native import NATIVE_NEEDS
from escrowmq.broker.access.needs_remoting import REMOTING_NEEDS
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.protocol.remoting.headers import read_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.access.needs import Needs
    from escrowmq.broker.access.gate import AccessGate
    from escrowmq.broker.access.stored_facts import StoredFacts
    from escrowmq.broker.native.calls import Call
    from escrowmq.broker.net.requests import Handler, Request

REFUSED_MAX = 16
"""Requests without valid credentials on one connection."""


def check_codes(codes: Iterable[int]) -> None:
    """Refuse to start if the tables lack a request code that has a handler."""
    check_table(codes, REMOTING_NEEDS.keys() | NATIVE_NEEDS.keys())


@dataclass(frozen=True, slots=True)
class RemotingAdmission:
    """Asks the gate about remoting and native requests."""

    gate: AccessGate
    facts: StoredFacts

    def admit(self, request: Request) -> bool:
        """Find the user of a request; if there is none, refuse it and return False."""
        frame, connection = request.frame, request.connection
        try:
            fields = read_fields(frame.ext)
            known = self.gate.admit_remoting(connection, frame.code, fields, frame.body)
        except EscrowError as refused:
            self._refuse(request, refused)
            return False
        # The handler reads the very fields that were signed.
        request.frame = msgspec.structs.replace(frame, ext=fields)
        request.caller = known
        connection.admitted()
        return True

    def guarded(self, code: int, handler: Handler) -> Handler:
        """Return a handler that checks first what its requests need."""
        needs = REMOTING_NEEDS.get(code)
        if needs is None:
            # A native request is checked once its header is decoded.
            assert code in NATIVE_NEEDS
            return handler

        def checked(request: Request) -> None:
            self._require(request, lambda asker: needs(request.frame, asker))
            handler(request)

        return checked

    def check(self, call: Call[Any]) -> None:
        """Refuse a native request whose needs are not met."""
        request = call.request
        self._require(request, lambda asker: NATIVE_NEEDS[request.frame.code](call, asker))

    def _require(self, request: Request, needs: Callable[[Asker], Needs]) -> None:
        known, connection = request.caller, request.connection
        assert known is not None, "the gate admitted it"
        asker = Asker(known, self.facts, connection, connection.client_id)
        try:
            self.gate.require(known, needs(asker), connection.peer_host)
        except RequestRefused as refused:
            if refused.code == "not_allowed":
                now_s = asyncio.get_running_loop().time()
                self.gate.note(refused, connection.peer_host, now_s, code=request.frame.code)
            raise

    def _refuse(self, request: Request, refused: EscrowError) -> None:
        connection, loop = request.connection, asyncio.get_running_loop()
        host = connection.peer_host
        self.gate.note(refused, host, loop.time(), code=request.frame.code)
        if refused.code not in UNKNOWN_CALLER:
            request.decline(refused)
            return
        connection.refusals += 1
        delay_s = None
        if connection.refusals <= REFUSED_MAX:
            delay_s = self.gate.failures.note(host, loop.time())
        if delay_s is None:
            # The client gets no answer, but the metrics count the refusal.
            request.decline(refused)
            connection.cut("login_failed", why=refused.code)
        elif delay_s == 0:
            request.decline(refused)
        else:
            loop.call_later(delay_s, self._answer, request, refused)

    def _answer(self, request: Request, refused: EscrowError) -> None:
        self.gate.failures.answered(request.connection.peer_host)
        request.decline(refused)
