"""Counts failed logins by address, and says how long the answer to each of them waits.

The first failures of an address are answered at once, so that a wrong setting is soon found. Then
each one waits longer than the one before. A client with valid credentials never waits, wherever it
is: an attacker beside it cannot lock it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.access.known_users import address_of

if TYPE_CHECKING:
    from escrowmq.access.matching import Address

FREE = 3
"""Failures of an address that are answered at once."""
FIRST_S = 0.1
DELAY_S_MAX = 5.0
FORGOTTEN_S = 60.0
"""An address without failures for this long starts anew."""
ADDRESSES_MAX = 10_000
WAITING_MAX = 32
"""Answers to one address that may wait; the broker cuts the connections of further ones."""
WAITING_ALL_MAX = 2_048
_IPV6_NETWORK_BITS = 64


class Failures:
    """Failed logins of the last minute."""

    def __init__(self, addresses_max: int = ADDRESSES_MAX) -> None:
        self._addresses_max = addresses_max
        #: By address: failures, and the time of the last one; those that failed last at the end.
        self._counts: dict[str, tuple[int, float]] = {}
        self._waiting: dict[str, int] = {}
        self._waiting_all = 0

    def __len__(self) -> int:
        return len(self._counts)

    def note(self, host: str, now_s: float) -> float | None:
        """Count a failure; return how long its answer waits, or None to cut the connection.

        Call ``answered`` once an answer that had to wait is given.
        """
        place = _place(host)
        count, last_s = self._counts.pop(place, (0, now_s))
        if now_s - last_s > FORGOTTEN_S:
            count = 0
        if len(self._counts) >= self._addresses_max:
            del self._counts[next(iter(self._counts))]
        self._counts[place] = count + 1, now_s
        if count < FREE:
            return 0.0
        waiting = self._waiting.get(place, 0)
        if waiting >= WAITING_MAX or self._waiting_all >= WAITING_ALL_MAX:
            return None
        self._waiting[place] = waiting + 1
        self._waiting_all += 1
        return float(min(FIRST_S * 2 ** min(count - FREE, 16), DELAY_S_MAX))

    def answered(self, host: str) -> None:
        """Note that an answer waits no more."""
        place = _place(host)
        self._waiting_all -= 1
        self._waiting[place] -= 1
        if not self._waiting[place]:
            del self._waiting[place]


def _place(host: str) -> str:
    """Return what is counted: an IPv4 address, or an IPv6 network, which one machine may own."""
    address: Address = address_of(host)
    if address is None:
        return ""
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped is not None:
        return str(mapped)
    if address.version == 4:  # noqa: PLR2004 - IP's versions
        return str(address)
    return f"{int(address) >> _IPV6_NETWORK_BITS:x}"
