"""Deny wins, nothing is allowed by default, and the order of policies has no meaning."""

from __future__ import annotations

from ipaddress import ip_address

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.access.deciding import Grant, Why, decide, grants_of
from escrowmq.access.matching import Address, matches
from escrowmq.access.needs import Need
from escrowmq.access.parsing import parse_address
from escrowmq.model.users import (
    Action,
    Effect,
    Policy,
    Resource,
    ResourceKind,
    Role,
    UserKind,
)
from tests.unit.access.users import allow, deny, need, user

HERE = ip_address("10.1.2.3")

NAMES = st.sampled_from(["orders", "orders-eu", "order", "audit", "o"])
NEEDS = st.builds(
    Need,
    st.sampled_from(Action),
    st.sampled_from([kind for kind in ResourceKind if kind is not ResourceKind.ANY]),
    st.one_of(NAMES, st.just("")),
)
SOURCES = ["10.0.0.0/8", "10.1.2.3/32", "192.168.0.0/16", "fd00::/8", "::1/128"]
ADDRESSES: st.SearchStrategy[Address] = st.sampled_from(
    [None, *map(ip_address, ("10.1.2.3", "192.168.9.9", "fd00::7", "::1", "::ffff:10.9.9.9"))]
)
PATTERNS = st.one_of(NAMES, NAMES.map(lambda name: f"{name}*"), st.just("*"))
POLICIES = st.builds(
    Policy,
    st.builds(Resource, st.sampled_from(ResourceKind), PATTERNS),
    st.sets(st.sampled_from(Action), min_size=1).map(lambda found: tuple(sorted(found))),
    st.lists(st.sampled_from(SOURCES), max_size=2, unique=True).map(tuple),
    st.sampled_from(Effect),
)
LISTS = st.lists(POLICIES, max_size=6)
ROLES = st.lists(st.sampled_from(Role), max_size=2, unique=True).map(tuple)


def is_allowed(*policies: Policy, asks: Need, address: Address = HERE) -> bool:
    return decide(user(*policies), asks, address).is_allowed


@given(LISTS, ROLES, NEEDS, ADDRESSES)
def test_deny_wins_then_allow_and_nothing_is_allowed_by_default(
    policies: list[Policy], roles: tuple[Role, ...], asks: Need, address: Address
) -> None:
    one = user(*policies, roles=roles)
    matching = [
        grant.policy.effect for grant in grants_of(one) if matches(grant.policy, asks, address)
    ]
    found = decide(one, asks, address)
    assert found.is_allowed == (Effect.ALLOW in matching and Effect.DENY not in matching)
    if found.grant is None:
        assert (matching, found.why) == ([], Why.NOTHING_ALLOWS)
    else:
        assert found.grant in list(grants_of(one))
        assert matches(found.grant.policy, asks, address)
        assert (found.grant.policy.effect is Effect.ALLOW) == found.is_allowed


@given(LISTS, NEEDS, ADDRESSES, st.randoms(use_true_random=False))
def test_the_order_of_policies_never_matters(
    policies: list[Policy], asks: Need, address: Address, random: object
) -> None:
    shuffled = list(policies)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    before, after = decide(user(*policies), asks, address), decide(user(*shuffled), asks, address)
    assert (before.is_allowed, before.why) == (after.is_allowed, after.why)


@given(LISTS, POLICIES, NEEDS, ADDRESSES)
def test_a_policy_more_only_adds_what_its_effect_says(
    policies: list[Policy], more: Policy, asks: Need, address: Address
) -> None:
    before = decide(user(*policies), asks, address).is_allowed
    after = decide(user(*policies, more), asks, address).is_allowed
    assert after in {before, more.effect is Effect.ALLOW}


@given(LISTS, NEEDS, ADDRESSES)
def test_an_unknown_address_is_allowed_no_more_than_any_other(
    policies: list[Policy], asks: Need, address: Address
) -> None:
    if is_allowed(*policies, asks=asks, address=None):
        assert is_allowed(*policies, asks=asks, address=address)


@given(LISTS, ROLES, NEEDS, ADDRESSES)
def test_a_disabled_user_may_do_nothing_and_a_super_user_everything(
    policies: list[Policy], roles: tuple[Role, ...], asks: Need, address: Address
) -> None:
    for kind in UserKind:
        disabled = user(*policies, roles=roles, kind=kind, is_enabled=False)
        found = decide(disabled, asks, address)
        assert (found.is_allowed, found.why) == (False, Why.USER_DISABLED)
    found = decide(user(*policies, roles=roles, kind=UserKind.SUPER), asks, address)
    assert (found.is_allowed, found.why, found.grant) == (True, Why.SUPER_USER, None)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("Topic:orders", ["orders"], ["order", "orders-eu", "Orders", ""]),
        ("Topic:order*", ["order", "orders", "orders-eu"], ["orde", "Order", ""]),
        # Only a policy for all matches a need that is about all.
        ("Topic:*", ["orders", ""], []),
        ("*", ["orders", ""], []),
        ("Any:order*", ["orders"], ["audit", ""]),
        ("Group:*", [], ["orders", ""]),
        # No other character has a meaning.
        ("Topic:o.?ers", ["o.?ers"], ["orders"]),
    ],
)
def test_names_match_literally_or_by_their_beginning(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    policy = allow(pattern)
    for name in [*matching, *others]:
        asks = Need(Action.PUB, ResourceKind.TOPIC, name)
        assert is_allowed(policy, asks=asks) == (name in matching), name


@pytest.mark.parametrize(
    ("sources", "address", "matching"),
    [
        ("", "10.1.2.3", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("192.168.0.0/16,10.1.0.0/16", "10.1.2.3", True),
        ("fd00::/8", "fd12:3456::1", True),
        ("fd00::/8", "fe80::1", False),
        ("::1", "::1", True),
        # A family does not match the other one.
        ("0.0.0.0/0", "::1", False),
        ("::/0", "10.1.2.3", False),
        # A socket for both families tells IPv4 clients so.
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("::/0", "::ffff:10.1.2.3", False),
        ("fe80::/10", "fe80::1%eth0", True),
    ],
)
def test_sources_are_addresses_and_networks_of_both_families(
    sources: str, address: str, *, matching: bool
) -> None:
    asks, known = need("Pub", "Topic:orders"), parse_address(address)
    assert is_allowed(allow("*", sources=sources), asks=asks, address=known) == matching
    refused = not is_allowed(allow("*"), deny("*", sources=sources), asks=asks, address=known)
    assert refused == matching


def test_a_limit_that_cannot_be_checked_is_no_way_around_it() -> None:
    asks = need("Pub", "Topic:orders")
    assert not is_allowed(allow("*", sources="10.0.0.0/8"), asks=asks, address=None)
    assert not is_allowed(allow("*"), deny("*", sources="10.0.0.0/8"), asks=asks, address=None)
    damaged = msgspec.structs.replace(allow("*"), sources=("10.x",))
    assert not is_allowed(damaged, asks=asks)
    refusing = msgspec.structs.replace(damaged, effect=Effect.DENY)
    assert not is_allowed(allow("*"), refusing, asks=asks)


def test_a_decision_names_its_policy_and_the_role_that_it_is_of() -> None:
    refusing = deny("Topic:payroll*", "Get")
    one = user(refusing, roles=(Role.VIEWER,))
    assert decide(one, need("Get", "Topic:payroll-eu"), HERE).grant == Grant(refusing)
    grant = decide(one, need("Get", "Topic:orders"), HERE).grant
    assert grant is not None
    assert grant.role == Role.VIEWER


@pytest.mark.parametrize(
    ("role", "allowed", "refused"),
    [
        (
            Role.VIEWER,
            ["Get Topic:orders", "List Topic:*", "Get Cluster", "List Ledger:*"],
            ["Pub Topic:orders", "Sub Group:shop", "Settle Ledger:shop", "Audit Cluster"],
        ),
        (
            Role.OPERATOR,
            ["Get Topic:orders", "Settle Ledger:shop", "Audit Cluster", "Update Group:shop"],
            ["Pub Topic:orders", "Update Topic:orders", "Delete Group:shop", "Create Topic:new"],
        ),
        (Role.ADMIN, ["Pub Topic:orders", "Delete Group:shop", "Update Cluster"], []),
    ],
)
def test_a_role_allows_what_its_name_says(
    role: Role, allowed: list[str], refused: list[str]
) -> None:
    one = user(roles=(role,))
    for text in [*allowed, *refused]:
        action, _, resource = text.partition(" ")
        assert decide(one, need(action, resource), HERE).is_allowed == (text in allowed), text


def test_a_policy_that_denies_limits_an_admin_too() -> None:
    one = user(deny("Topic:payroll"), roles=(Role.ADMIN,))
    assert decide(one, need("Get", "Topic:payroll"), HERE).why is Why.DENIED
    assert decide(one, need("Get", "Topic:orders"), HERE).is_allowed
