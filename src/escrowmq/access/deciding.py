"""Decides whether a user may do something.

A disabled user may do nothing, a super user everything. For every other user a policy that denies
wins over all that allow, and what no policy allows is not allowed. The order of policies has no
meaning.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from escrowmq.access.roles import POLICIES_OF
from escrowmq.model.users import EVERY, Effect, Policy, Resource, ResourceKind, User, UserKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from ipaddress import IPv4Address

    from escrowmq.access.needs import Need

Address: TypeAlias = "IPv4Address | IPv6Address | None"
"""Where a client is; None if that is unknown."""

NETWORKS_MAX = 16_384


class Why(StrEnum):
    """The reason of a decision."""

    ALLOWED = "allowed"
    SUPER_USER = "super_user"
    USER_DISABLED = "user_disabled"
    DENIED = "denied"
    NOTHING_ALLOWS = "nothing_allows"


class Grant(msgspec.Struct, frozen=True):
    """A policy of a user, and the role that it comes from."""

    policy: Policy
    #: Empty if it is the user's, not a role's.
    role: str = ""


class AccessDecision(msgspec.Struct, frozen=True):
    """Whether a need is met, and which policy says so."""

    is_allowed: bool
    why: Why
    #: None if no policy decided.
    grant: Grant | None = None


def decide(user: User, need: Need, address: Address) -> AccessDecision:
    """Decide whether this user may do this from this address."""
    if not user.is_enabled:
        return AccessDecision(is_allowed=False, why=Why.USER_DISABLED)
    if user.kind is UserKind.SUPER:
        return AccessDecision(is_allowed=True, why=Why.SUPER_USER)
    allowing = None
    for grant in grants_of(user):
        if not matches(grant.policy, need, address):
            continue
        if grant.policy.effect is Effect.DENY:
            return AccessDecision(is_allowed=False, why=Why.DENIED, grant=grant)
        allowing = allowing or grant
    if allowing is None:
        return AccessDecision(is_allowed=False, why=Why.NOTHING_ALLOWS)
    return AccessDecision(is_allowed=True, why=Why.ALLOWED, grant=allowing)


def grants_of(user: User) -> Iterator[Grant]:
    """Yield the user's policies, then those of its roles."""
    for policy in user.policies:
        yield Grant(policy)
    for role in user.roles:
        for policy in POLICIES_OF[role]:
            yield Grant(policy, role)


def matches(policy: Policy, need: Need, address: Address) -> bool:
    """Whether a policy has a say about this need from this address."""
    return (
        need.action in policy.actions
        and has_resource(policy.resource, need)
        and has_source(policy, address)
    )


def has_resource(resource: Resource, need: Need) -> bool:
    """Whether the resource that is needed is among those of a policy."""
    if resource.kind not in (need.kind, ResourceKind.ANY):
        return False
    if resource.name.endswith(EVERY):
        return need.name.startswith(resource.name.removesuffix(EVERY))
    return need.name == resource.name


def has_source(policy: Policy, address: Address) -> bool:
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
