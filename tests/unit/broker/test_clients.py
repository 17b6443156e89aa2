"""Online clients: added by heartbeats, removed by goodbyes, closed connections, or silence."""

from __future__ import annotations

import pytest

from escrowmq.broker.state.clients import (
    SILENT_MS_MAX,
    Client,
    ClientLimits,
    Clients,
    ConsumerStatement,
    Subscription,
)
from escrowmq.model.errors import RequestRefused

T0 = 1_700_000_000_000


def client(name: str, connection: str = "", heard_at_ms: int = T0) -> Client[str]:
    return Client(
        client_id=name,
        connection=connection or f"socket of {name}",
        heard_at_ms=heard_at_ms,
        host=f"host of {connection or name}".encode(),
    )


def consuming(
    group: str = "shop", *topics: str, version: int = 1, tags: str = "*"
) -> ConsumerStatement:
    subscriptions = tuple(
        Subscription(topic=topic, expression=tags, version=version)
        for topic in topics or ("orders",)
    )
    return ConsumerStatement(group=group, subscriptions=subscriptions)


def ids(members: list[Client[str]]) -> list[str]:
    return [member.client_id for member in members]


def members(clients: Clients[str], group: str = "shop") -> list[str]:
    found = clients.consumers(group)
    return [] if found is None else list(found.members)


# Consumers


def test_the_first_heartbeat_changes_a_group_and_the_next_does_not() -> None:
    clients = Clients[str]()
    assert clients.hear(client("a"), (), [consuming()]) == {"shop"}
    assert clients.hear(client("a"), (), [consuming()]) == set()
    assert clients.hear(client("b"), (), [consuming()]) == {"shop"}
    assert members(clients) == ["a", "b"]


def test_a_client_that_comes_back_on_another_connection_changes_its_group() -> None:
    clients = Clients[str]()
    clients.hear(client("a", "old"), (), [consuming()])
    assert clients.hear(client("a", "new"), (), [consuming()]) == {"shop"}
    assert clients.drop("old") == set()
    assert members(clients) == ["a"]
    assert clients.drop("new") == {"shop"}
    assert members(clients) == []


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        (consuming("shop", "orders", version=2), False),
        (consuming("shop", "orders", version=2, tags="paid"), True),
        (consuming("shop", "orders", version=1, tags="paid"), False),
        (consuming("shop", "orders", "carts"), True),
        (consuming("shop", "carts"), True),
    ],
)
def test_a_group_changes_with_what_it_consumes(said: ConsumerStatement, *, changes: bool) -> None:
    clients = Clients[str]()
    clients.hear(client("a"), (), [consuming()])
    assert (clients.hear(client("a"), (), [said]) == {"shop"}) is changes
    group = clients.consumers("shop")
    assert group is not None
    assert group.subscriptions.keys() == {one.topic for one in said.subscriptions}


def test_an_older_subscription_does_not_replace_a_newer_one() -> None:
    clients = Clients[str]()
    clients.hear(client("a"), (), [consuming(version=2, tags="paid")])
    clients.hear(client("b"), (), [consuming(version=1, tags="*")])
    group = clients.consumers("shop")
    assert group is not None
    assert group.subscriptions["orders"].expression == "paid"


def test_a_goodbye_names_its_groups() -> None:
    clients = Clients[str]()
    clients.hear(client("a"), ["pay"], [consuming(), consuming("audit")])
    assert clients.leave("a", "pay", "") == set()
    assert clients.producers("pay") == []
    assert clients.leave("a", "", "shop") == {"shop"}
    assert clients.leave("a", "", "shop") == set()
    assert clients.leave("stranger", "pay", "shop") == set()
    assert clients.consumer_groups() == ["audit"]


def test_a_closed_connection_takes_all_its_clients_along() -> None:
    clients = Clients[str]()
    clients.hear(client("a", "one"), ["pay"], [consuming()])
    clients.hear(client("b", "one"), ["pay"], [consuming("audit")])
    clients.hear(client("c", "two"), ["pay"], [consuming()])
    assert clients.drop("one") == {"shop", "audit"}
    assert clients.drop("one") == set()
    assert ids(clients.producers("pay")) == ["c"]
    assert members(clients) == ["c"]


def test_the_silent_are_forgotten() -> None:
    clients = Clients[str]()
    clients.hear(client("a", heard_at_ms=T0), ["pay"], [consuming()])
    clients.hear(client("b", heard_at_ms=T0 + 1), ["pay"], [consuming()])
    assert clients.expire(T0 + SILENT_MS_MAX) == set()
    assert clients.expire(T0 + SILENT_MS_MAX + 1) == {"shop"}
    assert members(clients) == ["b"]
    assert ids(clients.producers("pay")) == ["b"]


# Producers


def test_the_sender_is_asked_first_and_the_others_take_turns() -> None:
    clients = Clients[str]()
    for name in "abc":
        clients.hear(client(name), ["pay"], ())
    rounds = [ids(list(clients.askable("pay", b"host of b"))) for _ in range(3)]
    assert rounds == [["b", "a", "c"], ["b", "c", "a"], ["b", "a", "c"]]
    assert ids(list(clients.askable("pay", b"host of gone")))[0] in "abc"
    assert list(clients.askable("unknown", b"host of a")) == []


def test_a_lone_sender_is_asked() -> None:
    clients = Clients[str]()
    clients.hear(client("a"), ["pay"], ())
    assert ids(list(clients.askable("pay", b"host of a"))) == ["a"]
    assert clients.producer_groups() == ["pay"]


def test_a_host_is_known_by_its_latest_connection() -> None:
    clients = Clients[str]()
    clients.hear(client("a", "old"), ["pay"], ())
    clients.hear(client("b"), ["pay"], ())
    moved = Client(client_id="a", connection="new", host=b"host of old")
    clients.hear(moved, ["pay"], ())
    clients.drop("old")
    assert next(clients.askable("pay", b"host of old")) is moved
    assert clients.producer_count("pay") == 2
    clients.drop("new")
    assert ids(list(clients.askable("pay", b"host of old"))) == ["b"]
    # A producer of another group now sends from the same host.
    clients.hear(moved, ["audit"], ())
    assert ids(list(clients.askable("pay", b"host of old"))) == ["b"]


# Limits


def test_a_client_beyond_the_limit_is_refused_and_the_others_stay() -> None:
    clients = Clients[str](ClientLimits(groups_max=1, clients_max=3, subscriptions_max=2))
    clients.hear(client("a"), ["pay"], [consuming()])
    for groups, said, code in (
        (["other"], [], "too_many_groups"),
        ([], [consuming("other")], "too_many_groups"),
        ([], [consuming("shop", "x", "y", "z")], "too_many_subscriptions"),
    ):
        with pytest.raises(RequestRefused, match=code):
            clients.hear(client("a"), groups, said)
    clients.hear(client("b"), ["pay"], ())
    with pytest.raises(RequestRefused, match="too_many_clients"):
        clients.hear(client("c"), ["pay"], ())
    clients.leave("a", "pay", "")
    clients.hear(client("c"), ["pay"], ())
    assert ids(clients.producers("pay")) == ["b", "c"]
