"""Explains a decision: what each policy of a user has to do with it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from escrowmq.access.deciding import (
    AccessDecision,
    Address,
    Grant,
    Why,
    decide,
    grants_of,
    has_resource,
    has_source,
)

if TYPE_CHECKING:
    from escrowmq.access.needs import Need
    from escrowmq.model.users import User


class Bearing(StrEnum):
    """What a policy has to do with a need; if not ``MATCHES``, the first part that differs."""

    MATCHES = "matches"
    OTHER_RESOURCE = "other_resource"
    OTHER_ACTION = "other_action"
    OTHER_SOURCE = "other_source"


class Considered(msgspec.Struct, frozen=True):
    """A policy, and what it has to do with the need."""

    grant: Grant
    bearing: Bearing


class Explanation(msgspec.Struct, frozen=True):
    """A decision, and every policy that was considered."""

    decision: AccessDecision
    considered: tuple[Considered, ...]

    @property
    def advice(self) -> str:
        """What would have to change for another decision."""
        return _ADVICE[self.decision.why]


_ADVICE = {
    Why.ALLOWED: "a policy allows it, and none denies it",
    Why.SUPER_USER: "a super user may do everything; no policy limits it",
    Why.USER_DISABLED: "the user is disabled: `escrowmq user enable` lets it in again",
    Why.DENIED: "a policy denies it, which wins over all that allow",
    Why.NOTHING_ALLOWS: "no policy allows it: `escrowmq acl grant` adds one",
}


def explain(user: User, need: Need, address: Address) -> Explanation:
    """Decide, and tell what each policy has to do with it."""
    considered = tuple(
        Considered(grant, _bearing(grant, need, address)) for grant in grants_of(user)
    )
    return Explanation(decide(user, need, address), considered)


def _bearing(grant: Grant, need: Need, address: Address) -> Bearing:
    policy = grant.policy
    if not has_resource(policy.resource, need):
        return Bearing.OTHER_RESOURCE
    if need.action not in policy.actions:
        return Bearing.OTHER_ACTION
    return Bearing.MATCHES if has_source(policy, address) else Bearing.OTHER_SOURCE
