"""Addresses of peers."""

from __future__ import annotations

from ipaddress import ip_address

from escrowmq.protocol.message.ids import pack_host


def pack_peer(host: str, port: int) -> bytes:
    """Pack the address of a peer as stored messages hold it."""
    ip = ip_address(host.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    return pack_host(str(mapped or ip), port)
