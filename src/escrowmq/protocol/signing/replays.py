"""Refuses requests that were sent before: the last count of each client's session.

A session is forgotten when the time of its last request is too old to be accepted. All its earlier
requests are older still, so none of them is accepted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.protocol.signing.native import SLACK_MS

if TYPE_CHECKING:
    from escrowmq.protocol.signing.native import Nonce

SESSIONS_MAX = 100_000
"""Sessions that are remembered; each takes about 300 bytes."""
OF_ONE_USER_MAX = 20_000
"""Sessions of one user, so that one user cannot shut out the others."""


class Replays:
    """The sessions of all clients, for the last minutes."""

    def __init__(self, sessions_max: int = SESSIONS_MAX, of_one_max: int = OF_ONE_USER_MAX) -> None:
        self._sessions_max = sessions_max
        self._of_one_max = of_one_max
        #: By user and session: the last count and its time, those not used for longest first.
        self._last: dict[tuple[str, str], tuple[int, int]] = {}
        self._counts: dict[str, int] = {}
        self._forgotten_at_ms = 0

    def __len__(self) -> int:
        return len(self._last)

    def accept(self, user: str, nonce: Nonce, now_ms: int) -> None:
        """Note a request that this user signed; refuse one that is old or was sent before."""
        if abs(now_ms - nonce.at_ms) > SLACK_MS:
            raise RequestRefused(
                "request_too_old",
                "set the clocks of client and broker: they may differ by 5 minutes",
                ahead_ms=nonce.at_ms - now_ms,
            )
        key = user, nonce.session
        last = self._last.pop(key, None)
        if last is None:
            self._make_room(user, now_ms)
            self._counts[user] = self._counts.get(user, 0) + 1
            self._last[key] = nonce.number, nonce.at_ms
            return
        count, at_ms = last
        # A step back of the client's clock must not let the broker forget the session too early.
        self._last[key] = max(count, nonce.number), max(at_ms, nonce.at_ms)
        if nonce.number <= count:
            raise RequestRefused(
                "replayed", "this request was sent before; sign a new one", number=nonce.number
            )

    def _make_room(self, user: str, now_ms: int) -> None:
        is_full = len(self._last) >= self._sessions_max
        is_much = self._counts.get(user, 0) >= self._of_one_max
        if (is_full or is_much) or now_ms - self._forgotten_at_ms > SLACK_MS:
            self._forget(now_ms)
        if len(self._last) >= self._sessions_max or self._counts.get(user, 0) >= self._of_one_max:
            raise Unavailable(
                "too_many_sessions",
                "keep connections open: each new one is remembered for 5 minutes",
                user=user,
            )

    def _forget(self, now_ms: int) -> None:
        """Forget sessions whose requests are all too old."""
        if now_ms == self._forgotten_at_ms:
            # Others asked in this millisecond, and there is nothing more to forget.
            return
        self._forgotten_at_ms = now_ms
        old = [key for key, (_, at_ms) in self._last.items() if now_ms - at_ms > SLACK_MS]
        for key in old:
            del self._last[key]
            self._counts[key[0]] -= 1
            if not self._counts[key[0]]:
                del self._counts[key[0]]
