"""Names of topics and groups in gRPC messages: a namespace and a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq.protocol.grpc.messages import Resource

SEPARATOR = "%"


def name_of(resource: Resource) -> str:
    """Return the broker's name of a topic or group."""
    space = resource.resource_namespace
    return f"{space}{SEPARATOR}{resource.name}" if space else resource.name
