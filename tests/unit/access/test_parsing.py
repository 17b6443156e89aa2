"""Texts of policies are read as RocketMQ's tools write them, and errors say what would be right."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from escrowmq.access.needs import WHOLE, Need
from escrowmq.access.parsing import (
    checked_policy,
    parse_actions,
    parse_address,
    parse_effect,
    parse_kind,
    parse_need,
    parse_policy,
    parse_resource,
    parse_role,
    parse_roles,
    parse_sources,
    policy_texts,
)
from escrowmq.model.errors import RequestRefused
from escrowmq.model.users import (
    SOURCES_MAX,
    Action,
    Effect,
    Policy,
    Resource,
    ResourceKind,
    Role,
    UserKind,
)
from tests.unit.access.test_deciding import POLICIES


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("Topic:orders", ResourceKind.TOPIC, "orders"),
        ("topic:order-*", ResourceKind.TOPIC, "order-*"),
        ("GROUP:*", ResourceKind.GROUP, "*"),
        ("Cluster", ResourceKind.CLUSTER, "*"),
        ("Cluster:DefaultCluster", ResourceKind.CLUSTER, "DefaultCluster"),
        ("Pipeline", ResourceKind.PIPELINE, "*"),
        ("Ledger:shop", ResourceKind.LEDGER, "shop"),
        ("*", ResourceKind.ANY, "*"),
        ("Any", ResourceKind.ANY, "*"),
        # Everything after the first colon is the name.
        ("Ledger:a:b", ResourceKind.LEDGER, "a:b"),
        ("Topic:%RETRY%shop", ResourceKind.TOPIC, "%RETRY%shop"),
    ],
)
def test_a_resource_is_a_kind_and_a_name(text: str, kind: ResourceKind, name: str) -> None:
    assert parse_resource(text) == Resource(kind, name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "Topic",
        "Topic:",
        "Queue:orders",
        "Topic:*orders",
        "Topic:or*ers",
        "Topic:orders**",
        "Topic:a\nb",
        "Topic:\ud800",
        f"Topic:{'x' * 256}",
    ],
)
def test_a_resource_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_resource(text)
    assert refused.value.code == "policy_malformed"


def test_actions_are_a_list_in_any_order_and_case() -> None:
    assert parse_actions("sub, PUB ,Pub") == (Action.PUB, Action.SUB)
    for text in ("All", "all", "*", "Pub,ALL"):
        assert parse_actions(text) == tuple(Action)


@pytest.mark.parametrize("text", ["", ",", "Publish", "Pub;Sub"])
def test_an_unknown_action_is_refused_with_all_that_are_known(text: str) -> None:
    with pytest.raises(RequestRefused, match="Pub, Sub, Create") as refused:
        parse_actions(text)
    assert refused.value.code == "policy_malformed"


def test_sources_get_their_usual_form() -> None:
    assert parse_sources("") == ()
    assert parse_sources("FD00::/8, 10.1.2.3,10.1.2.3/32") == ("10.1.2.3/32", "fd00::/8")


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1/8",  # an address in a network, not a network
        "10.0.0",
        "10.0.0.0/33",
        "localhost",
        "192.168.0.*",
        ",".join(f"10.0.{number}.1" for number in range(SOURCES_MAX + 1)),
    ],
)
def test_a_source_that_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_sources(text)
    assert refused.value.code == "policy_malformed"


def test_effects_roles_and_kinds_are_words() -> None:
    assert parse_roles("admin, viewer,ADMIN") == (Role.VIEWER, Role.ADMIN)
    assert parse_roles("") == ()
    assert parse_kind("Super") is UserKind.SUPER
    assert parse_effect("DENY") is Effect.DENY
    assert parse_role("Operator") is Role.OPERATOR
    for read in (parse_effect, parse_role, parse_roles, parse_kind):
        with pytest.raises(RequestRefused, match="must be one of"):
            read("root")


@given(POLICIES)
def test_texts_of_a_policy_are_read_back(policy: Policy) -> None:
    expected = checked_policy(policy)
    assert parse_policy(*policy_texts(policy)) == expected
    assert msgspec.convert(msgspec.to_builtins(expected), Policy) == expected


def test_a_need_is_one_action_on_one_resource_or_on_all_of_a_kind() -> None:
    assert parse_need("pub", "Topic:orders") == Need(Action.PUB, ResourceKind.TOPIC, "orders")
    assert parse_need("List", "Topic:*") == Need(Action.LIST, ResourceKind.TOPIC, WHOLE)
    assert parse_need("Get", "Cluster") == Need(Action.GET, ResourceKind.CLUSTER, WHOLE)
    for action, resource in [
        ("All", "Topic:orders"),
        ("Pub,Sub", "Topic:orders"),
        ("Pub", "Topic:order*"),
        ("Pub", "*"),
    ]:
        with pytest.raises(RequestRefused) as refused:
            parse_need(action, resource)
        assert refused.value.code == "policy_malformed"


def test_a_need_reads_as_a_policy_is_written() -> None:
    assert str(parse_need("Pub", "Topic:orders")) == "Pub on Topic:orders"
    assert str(parse_need("List", "Topic:*")) == "List on Topic"


def test_an_address_is_of_either_family_or_unknown() -> None:
    assert str(parse_address("10.1.2.3")) == "10.1.2.3"
    assert str(parse_address("fd00::0:1")) == "fd00::1"
    assert parse_address("") is None
    with pytest.raises(RequestRefused, match="write an address"):
        parse_address("10.1.2.3:9876")
