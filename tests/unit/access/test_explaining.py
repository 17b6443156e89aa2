"""An explanation names the policy that decides, and for each other one what differs."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given

from escrowmq.access.deciding import Why, decide, grants_of
from escrowmq.access.explaining import explain
from escrowmq.access.matching import Address, Bearing
from escrowmq.access.needs import Need
from escrowmq.model.users import Policy, Role, UserKind
from tests.unit.access.test_deciding import ADDRESSES, LISTS, NEEDS, ROLES
from tests.unit.access.users import allow, deny, need, user

HERE = ip_address("10.1.2.3")


@given(LISTS, ROLES, NEEDS, ADDRESSES)
def test_an_explanation_is_the_decision_and_every_policy(
    policies: list[Policy], roles: tuple[Role, ...], asks: Need, address: Address
) -> None:
    one = user(*policies, roles=roles)
    told = explain(one, asks, address)
    assert told.decision == decide(one, asks, address)
    assert [one.grant for one in told.considered] == list(grants_of(one))
    deciding = [one.grant for one in told.considered if one.bearing is Bearing.MATCHES]
    assert told.decision.grant in deciding if deciding else told.decision.grant is None


def test_each_policy_tells_the_first_part_that_differs() -> None:
    one = user(
        allow("Group:*"),
        allow("Topic:orders", "Sub"),
        allow("Topic:orders", "Pub", "192.168.0.0/16"),
        allow("Topic:order*", "Pub"),
        deny("Topic:orders", "Pub", "10.0.0.0/8"),
    )
    told = explain(one, need("Pub", "Topic:orders"), HERE)
    assert [one.bearing for one in told.considered] == [
        Bearing.OTHER_RESOURCE,
        Bearing.OTHER_ACTION,
        Bearing.OTHER_SOURCE,
        Bearing.MATCHES,
        Bearing.MATCHES,
    ]
    assert told.decision.why is Why.DENIED


@pytest.mark.parametrize(
    ("one", "why", "advice"),
    [
        (user(allow("*")), Why.ALLOWED, "none denies it"),
        (user(allow("*"), deny("*")), Why.DENIED, "wins over all that allow"),
        (user(), Why.NOTHING_ALLOWS, "escrowmq acl grant"),
        (user(kind=UserKind.SUPER), Why.SUPER_USER, "no policy limits it"),
        (user(is_enabled=False), Why.USER_DISABLED, "escrowmq user enable"),
    ],
)
def test_an_explanation_says_what_would_have_to_change(one: object, why: Why, advice: str) -> None:
    told = explain(one, need("Pub", "Topic:orders"), HERE)  # type: ignore[arg-type]
    assert told.decision.why is why
    assert advice in told.decision.why.advice
