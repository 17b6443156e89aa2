"""Tells whether a policy has a say about a need; ``deciding.py`` weighs all those of a user."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import TYPE_CHECKING, TypeAlias

from escrowmq.model.users import EVERY, Effect, Policy, Resource, ResourceKind

if TYPE_CHECKING:
    from ipaddress import IPv4Address

    from escrowmq.access.needs import Need

Address: TypeAlias = "IPv4Address | IPv6Address | None"
"""Where a client is; None if that is unknown."""

NETWORKS_MAX = 16_384


class Bearing(StrEnum):
    """What a policy has to do with a need; if not ``MATCHES``, the first part that differs."""

    MATCHES = "matches"
    OTHER_RESOURCE = "other_resource"
    OTHER_ACTION = "other_action"
    OTHER_SOURCE = "other_source"


def matches(policy: Policy, need: Need, address: Address) -> bool:
    """Whether a policy has a say about this need from this address."""
    return bearing(policy, need, address) is Bearing.MATCHES


def bearing(policy: Policy, need: Need, address: Address) -> Bearing:
    """Return what a policy has to do with this need from this address."""
    if not _has_resource(policy.resource, need):
        return Bearing.OTHER_RESOURCE
    if need.action not in policy.actions:
        return Bearing.OTHER_ACTION
    return Bearing.MATCHES if _has_source(policy, address) else Bearing.OTHER_SOURCE


def _has_resource(resource: Resource, need: Need) -> bool:
    """Whether the resource that is needed is among those of a policy."""
    if resource.kind not in (need.kind, ResourceKind.ANY):
        return False
    if resource.name.endswith(EVERY):
        return need.name.startswith(resource.name.removesuffix(EVERY))
    return need.name == resource.name


def _has_source(policy: Policy, address: Address) -> bool:
    """Whether a policy applies to clients at this address.

    An unknown address meets no limit of a policy that allows, and every limit of one that denies.
    A source that cannot be read is treated in the same way.
    """
    if not policy.sources:
        return True
    is_denying = policy.effect is Effect.DENY
    if address is None:
        return is_denying
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        # A socket for both families tells IPv4 clients by such addresses.
        address = address.ipv4_mapped
    for source in policy.sources:
        network = _network(source)
        if network is None:
            if is_denying:
                return True
        elif address in network:
            return True
    return False


@lru_cache(maxsize=NETWORKS_MAX)
def _network(source: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(source)
    except ValueError:
        return None
