"""The classes of the protocol's messages. ``messages.pyi``, made from the table, types them."""

from __future__ import annotations

from escrowmq.protocol.grpc.building import build

globals().update(build())
