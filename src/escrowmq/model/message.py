"""A message, in the form that the store takes."""

from __future__ import annotations

import msgspec


# A msgspec Struct, because the hot path makes one per message, at a fifth of a frozen dataclass's
# cost. gc=False keeps them out of the garbage collector: they hold no cycles.
class SentMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message from a producer, in the form that the store takes.

    ``properties`` is RocketMQ's property string, as bytes. The broker reads ``tags``, ``keys`` and
    ``unique_key`` from it, so the store does not parse it again.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    tags: str = ""
    keys: tuple[str, ...] = ()
    unique_key: str = ""
    flag: int = 0
    sys_flag: int = 0
    born_at_ms: int = 0
    #: Packed address and port, 8 bytes (IPv4) or 20 bytes (IPv6).
    born_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
    reconsume_times: int = 0
    #: For a half message: how long after its commit it becomes visible.
    deliver_after_ms: int = 0
    #: For any other message: when it becomes visible; 0 means at once.
    deliver_at_ms: int = 0
