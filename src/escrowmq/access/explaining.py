"""Explains a decision: what each policy of a user has to do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from escrowmq.access.deciding import AccessDecision, Grant, decide, grants_of
from escrowmq.access.matching import Bearing, bearing

if TYPE_CHECKING:
    from escrowmq.access.matching import Address
    from escrowmq.access.needs import Need
    from escrowmq.model.users import User


class Considered(msgspec.Struct, frozen=True):
    """A policy, and what it has to do with the need."""

    grant: Grant
    bearing: Bearing


class Explanation(msgspec.Struct, frozen=True):
    """A decision, and every policy that was considered."""

    decision: AccessDecision
    considered: tuple[Considered, ...]


def explain(user: User, need: Need, address: Address) -> Explanation:
    """Decide, and tell what each policy has to do with it."""
    considered = tuple(
        Considered(grant, bearing(grant.policy, need, address)) for grant in grants_of(user)
    )
    return Explanation(decide(user, need, address), considered)
