"""The policies that each role stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.users import Action, Policy, Resource, ResourceKind, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

EVERYTHING = Resource(ResourceKind.ANY)

_VIEWER = (Policy(EVERYTHING, (Action.GET, Action.LIST)),)
_OPERATOR = (
    *_VIEWER,
    Policy(EVERYTHING, (Action.SETTLE, Action.AUDIT)),
    # Pause and resume groups, move their offsets.
    Policy(Resource(ResourceKind.GROUP), (Action.UPDATE,)),
)
_ADMIN = (Policy(EVERYTHING, tuple(Action)),)

POLICIES_OF: Mapping[Role, tuple[Policy, ...]] = {
    Role.VIEWER: _VIEWER,
    Role.OPERATOR: _OPERATOR,
    Role.ADMIN: _ADMIN,
}
"""A role's policies count as if they were the user's, so a policy that denies limits a role too."""
