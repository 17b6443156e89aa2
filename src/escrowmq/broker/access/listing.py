"""Rows about users and policies, for tools. No row holds a secret, sealed or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from escrowmq.access.explaining import Considered, Explanation, explain
from escrowmq.access.parsing import parse_address, parse_need, policy_texts
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.user_headers import ConsideredRow, UserRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from escrowmq.protocol.native.user_headers import AclExplainHeader
    from escrowmq.transaction.memory.catalog import KeptUser


def user_row(kept: KeptUser) -> UserRow:
    """Return the row of a user."""
    user = kept.user
    return UserRow(
        user=user.name,
        kind=user.kind.value,
        is_enabled=user.is_enabled,
        access_key=user.access_key,
        roles=",".join(user.roles),
        certificate_names="\n".join(user.certificate_names),
        policies=msgspec.json.encode([policy_texts(policy) for policy in user.policies]).decode(),
        secrets=len(user.secrets),
        user_version=kept.version,
    )


def explained(users: Mapping[str, KeptUser], asked: AclExplainHeader) -> Explanation:
    """Explain the decision that a request asks about."""
    kept = users.get(asked.user)
    if kept is None:
        raise RequestRefused(
            "user_unknown", "`escrowmq user list` shows all users", user=asked.user
        )
    need = parse_need(asked.action, asked.resource)
    return explain(kept.user, need, parse_address(asked.address))


def considered_rows(told: Explanation) -> list[ConsideredRow]:
    """Return the rows of an explanation, one for each policy."""
    return [_considered(told, one) for one in told.considered]


def _considered(told: Explanation, one: Considered) -> ConsideredRow:
    resource, actions, sources, effect = policy_texts(one.grant.policy)
    return ConsideredRow(
        resource=resource,
        actions=actions,
        sources=sources,
        effect=effect,
        role=one.grant.role,
        bearing=one.bearing.value,
        is_deciding=one.grant == told.decision.grant,
    )
