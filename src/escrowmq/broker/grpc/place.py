"""Where gRPC clients find a broker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcPlace:
    """The broker's name in routes, and the address that clients connect to."""

    name: str
    host: str
    port: int
