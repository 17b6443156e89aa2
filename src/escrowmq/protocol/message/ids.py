"""Hosts in RocketMQ's packed form, and message ids that consist of a host and a log offset.

A host is its address, 4 or 16 bytes, and its port, 4 bytes. An offset message id is the store's
host and the log offset, 8 bytes, in hexadecimal. All integers are big-endian.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

from escrowmq.model.errors import RequestRefused

IPV4_HOST_BYTES = 8
IPV6_HOST_BYTES = 20
HOST_BYTES = (IPV4_HOST_BYTES, IPV6_HOST_BYTES)
PORT_MAX = 65_535

_PORT_BYTES = 4
_OFFSET_BYTES = 8
_LOG_OFFSET_MAX = 2**63 - 1


def pack_host(address: str, port: int) -> bytes:
    """Pack a host into 8 bytes for an IPv4 address, or 20 bytes for an IPv6 address."""
    try:
        ip = ip_address(address)
    except ValueError:
        raise RequestRefused("host_illegal", "not an IP address", address=address) from None
    if not 0 <= port <= PORT_MAX:
        raise RequestRefused("host_illegal", "no such port", port=port, port_max=PORT_MAX)
    # A dual-stack socket reports an IPv4 peer like this. Java treats it as IPv4 regardless of
    # the sys flag, so it must be packed as IPv4 here.
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return ip.packed + port.to_bytes(_PORT_BYTES, "big")


def format_address(host: str, port: int) -> str:
    """Format as ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def offset_message_id(store_host: bytes, log_offset: int) -> str:
    """Return a message id that says where the message is stored: 32 characters, or 56 for IPv6."""
    return (store_host + log_offset.to_bytes(_OFFSET_BYTES, "big")).hex().upper()


def parse_offset_message_id(text: str) -> tuple[bytes, int]:
    """Return store host and log offset."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    host, log_offset = raw[:-_OFFSET_BYTES], int.from_bytes(raw[-_OFFSET_BYTES:], "big")
    # fromhex skips whitespace, so check the length of the text too.
    if len(host) not in HOST_BYTES or len(text) != 2 * len(raw) or log_offset > _LOG_OFFSET_MAX:
        raise RequestRefused(
            "message_id_illegal", "not 32 or 56 hexadecimal digits", message_id=text[:64]
        )
    return host, log_offset
