"""Users: how they are created, changed and removed, and who wins if two change one at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from escrowmq.access.parsing import parse_policy
from escrowmq.model.limits_config import LimitsConfig
from escrowmq.model.users import POLICIES_MAX, Role, SealedSecret, User, UserKind
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import Cataloged, Command, Decision, Prepare
from escrowmq.transaction.memory.catalog import Catalog
from escrowmq.transaction.records import NamedOrigin
from escrowmq.transaction.user_commands import NEW, MarkAccess, RemoveUser
from escrowmq.transaction.user_records import AccessWasOn, UserPut, UserRemoved
from tests.unit.transaction.users import SEALED, put, user

REMOVE = RemoveUser(name="shop", by="admin")


def code(decision: Decision) -> str:
    assert decision.refused is not None
    return decision.refused.code


def version(engine: MemoryEngine, name: str = "shop") -> int:
    return engine.core.catalog.users[name].version


def test_a_user_is_created_changed_and_removed() -> None:
    engine = MemoryEngine()
    assert engine.submit(put(user())).records == (UserPut(user(), 1, "admin"),)
    created = version(engine)
    changed = user(roles=(Role.VIEWER,), is_enabled=False)
    assert engine.submit(put(changed, created)).records == (UserPut(changed, 2, "admin"),)
    assert version(engine) > created
    assert engine.core.catalog.users["shop"].user == changed
    assert engine.restart().core.catalog.saved() == engine.core.catalog.saved()
    assert engine.submit(REMOVE).records == (UserRemoved("shop", "admin"),)
    assert engine.core.catalog.users == {}
    assert engine.core.catalog.access_keys == {}
    assert engine.restart().core.catalog.users == {}


def test_of_two_changes_at_once_the_second_is_refused() -> None:
    engine = MemoryEngine()
    engine.submit(put(user()))
    seen = version(engine)
    engine.submit(put(user(roles=(Role.VIEWER,)), seen))
    refused = engine.submit(put(user(roles=(Role.ADMIN,)), seen))
    assert code(refused) == "user_changed"
    assert engine.core.catalog.users["shop"].user.roles == (Role.VIEWER,)


def test_a_user_is_created_once_and_only_an_existing_one_is_changed() -> None:
    engine = MemoryEngine()
    assert code(engine.submit(put(user(), 7))) == "user_unknown"
    assert code(engine.submit(REMOVE)) == "user_unknown"
    engine.submit(put(user()))
    assert code(engine.submit(put(user(is_enabled=False)))) == "user_exists"
    seen = version(engine)
    engine.submit(REMOVE)
    # A user that was removed and made again is another one, after a restart too.
    for again in (engine.restart(), engine):
        again.submit(put(user()))
        assert version(again) > seen
        assert code(again.submit(put(user(is_enabled=False), seen))) == "user_changed"
        assert code(again.submit(put(user(is_enabled=False), NEW))) == "user_exists"


def test_a_change_to_the_same_is_not_written() -> None:
    engine = MemoryEngine()
    engine.submit(put(user()))
    frames = len(engine.frames)
    again = engine.submit(put(user(), version(engine)))
    assert again.reply == Cataloged(is_changed=False)
    assert len(engine.frames) == frames


def test_an_access_key_belongs_to_one_user() -> None:
    engine = MemoryEngine()
    engine.submit(put(user("shop", access_key="AK1")))
    assert code(engine.submit(put(user("till", access_key="AK1")))) == "access_key_taken"
    # The name of a user is nobody's access key unless it is given.
    engine.submit(put(user("till", access_key="shop")))
    assert engine.core.catalog.access_keys == {"AK1": "shop", "shop": "till"}
    engine.submit(put(user("shop", access_key="AK2"), version(engine)))
    engine.submit(put(user("third", access_key="AK1")))
    assert engine.core.catalog.access_keys == {"AK2": "shop", "shop": "till", "AK1": "third"}
    assert engine.restart().core.catalog.access_keys == engine.core.catalog.access_keys


def test_a_certificate_stands_for_one_user() -> None:
    engine = MemoryEngine()
    engine.submit(put(user("shop", certificate_names=("CN=a", "CN=b"))))
    both = user("till", certificate_names=("CN=c", "CN=b"))
    assert code(engine.submit(put(both))) == "certificate_name_taken"
    changed = user("shop", certificate_names=("CN=a", "CN=d"))
    engine.submit(put(changed, version(engine)))
    assert engine.submit(put(both)).refused is None
    expected = {"CN=a": "shop", "CN=d": "shop", "CN=b": "till", "CN=c": "till"}
    for found in (engine, engine.restart()):
        assert found.core.catalog.certificates == expected
    engine.submit(REMOVE)
    assert engine.core.catalog.certificates == {"CN=b": "till", "CN=c": "till"}


def test_users_and_their_policies_have_limits() -> None:
    engine = MemoryEngine()
    engine.core.limits = LimitsConfig(users_max=2)
    engine.submit(put(user("one")))
    engine.submit(put(user("two")))
    assert code(engine.submit(put(user("three")))) == "users_limit"
    many = tuple(parse_policy(f"Topic:t{number}", "Pub") for number in range(POLICIES_MAX + 1))
    seen = version(engine, "one")
    assert code(engine.submit(put(user("one", policies=many), seen))) == "policies_limit"
    assert engine.submit(put(user("one", policies=many[:-1]), seen)).refused is None
    networks = ",".join(f"10.{number}.0.0/16" for number in range(32))
    wide = tuple(
        parse_policy(f"Topic:{number}{'x' * 250}", "All", networks)
        for number in range(POLICIES_MAX)
    )
    seen = version(engine, "one")
    assert code(engine.submit(put(user("one", policies=wide), seen))) == "user_too_large"


@pytest.mark.parametrize(
    "broken",
    [
        user(""),
        user("x" * 256),
        user("a\nb"),
        user("a b"),
        user("../ann"),
        user("-ann"),
        user("ann,bob"),
        user(access_key=""),
        user(secrets=()),
        user(secrets=(SEALED,) * 3),
        user(secrets=(SealedSecret("", bytes(12), bytes(16)),)),
        user(certificate_names=tuple(f"CN={number}" for number in range(17))),
    ],
)
def test_a_user_beyond_the_limits_of_its_fields_is_refused(broken: User) -> None:
    engine = MemoryEngine()
    assert code(engine.submit(put(broken))) == "bad_user"
    assert engine.frames == []


def test_access_control_leaves_a_mark_that_no_command_removes() -> None:
    engine = MemoryEngine()
    assert engine.submit(MarkAccess()).records == (AccessWasOn(),)
    assert engine.submit(MarkAccess()).reply == Cataloged(is_changed=False)
    engine.submit(put(user()))
    engine.submit(REMOVE)
    for found in (engine, engine.restart()):
        assert found.core.catalog.was_access_on


def test_a_checkpoint_holds_users_and_the_mark() -> None:
    engine = MemoryEngine()
    engine.submit(put(user("shop", access_key="AK1", kind=UserKind.SUPER)))
    engine.submit(put(user("till")))
    engine.submit(MarkAccess())
    saved = engine.core.catalog.saved()
    as_json = msgspec.json.decode(msgspec.json.encode(saved), type=type(saved))
    loaded = Catalog()
    loaded.apply(UserPut(user("gone"), 7), 1)
    loaded.load(as_json)
    assert loaded.saved() == saved
    assert loaded.access_keys == {"AK1": "shop", "till": "till"}


def test_a_replay_on_a_later_state_leaves_access_keys_where_they_are() -> None:
    both: dict[str, Any] = {"access_key": "AK1", "certificate_names": ("CN=a",)}
    engine = MemoryEngine()
    commands: list[Command] = [put(user("shop", **both)), REMOVE, put(user("till", **both))]
    for command in commands:
        engine.submit(command)
    expected = engine.core.catalog.saved()
    for frame in engine.frames:
        for record in frame.records:
            engine.core.apply(record, frame.where)
    assert engine.core.catalog.saved() == expected
    assert engine.core.catalog.access_keys == {"AK1": "till"}
    assert engine.core.catalog.certificates == {"CN=a": "till"}


def test_an_older_record_changes_nothing() -> None:
    engine = MemoryEngine()
    engine.submit(put(user()))
    engine.submit(put(user(is_enabled=False), version(engine)))
    before = engine.core.catalog.saved()
    engine.core.catalog.apply(UserPut(user(roles=(Role.ADMIN,)), 1), 0)
    assert engine.core.catalog.saved() == before


def test_a_half_message_keeps_the_user_that_sent_it() -> None:
    engine = MemoryEngine()
    for name in ("", "shop", "till", "shop"):
        engine.submit(Prepare(group="pay", transaction_id="", messages=(message(),), user=name))
    origins = engine.core.names.origins
    assert [(one.group, one.user) for one in origins] == [
        ("pay", ""),
        ("pay", "shop"),
        ("pay", "till"),
    ]
    rows = [engine.core.row(row).origin for row in range(4)]
    assert [origins[number].user for number in rows] == ["", "shop", "till", "shop"]
    assert list(engine.restart().core.names.origins) == list(origins)


def test_an_origin_of_an_earlier_release_has_no_user() -> None:
    data = msgspec.msgpack.encode([2, 7, "pay", "", 0])
    assert msgspec.msgpack.decode(data, type=NamedOrigin) == NamedOrigin(7, "pay", "", 0, "")
