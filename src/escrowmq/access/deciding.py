"""Decides whether a user may do something.

A disabled user may do nothing, a super user everything. For every other user a policy that denies
wins over all that allow, and what no policy allows is not allowed. The order of policies has no
meaning.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from escrowmq.access.matching import matches
from escrowmq.access.roles import POLICIES_OF
from escrowmq.model.users import Effect, Policy, User, UserKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.access.matching import Address
    from escrowmq.access.needs import Need


class Why(StrEnum):
    """The reason of a decision."""

    ALLOWED = "allowed"
    SUPER_USER = "super_user"
    USER_DISABLED = "user_disabled"
    DENIED = "denied"
    NOTHING_ALLOWS = "nothing_allows"

    @property
    def advice(self) -> str:
        """What would have to change for another decision."""
        return _ADVICE[self]


_ADVICE = {
    Why.ALLOWED: "a policy allows it, and none denies it",
    Why.SUPER_USER: "a super user may do everything; no policy limits it",
    Why.USER_DISABLED: "the user is disabled: `escrowmq user enable` lets it in again",
    Why.DENIED: "a policy denies it, which wins over all that allow",
    Why.NOTHING_ALLOWS: "no policy allows it: `escrowmq acl grant` adds one",
}


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
