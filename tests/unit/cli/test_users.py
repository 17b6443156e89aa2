"""``escrowmq user`` and ``escrowmq acl``, at a running broker and in a stopped one's directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from escrowmq.access.parsing import parse_policy
from escrowmq.broker.access.secret_box import ENV_KEY, SecretBox
from escrowmq.cli.access.acl_commands import granted, revoked
from escrowmq.cli.main import main
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.format import VERSION, read
from escrowmq.store.repair.catalog_on_disk import read_catalog
from escrowmq.store.repair.inspect import check
from escrowmq.testing import InProcessBroker

KEY = "5e" * 32
BOX = SecretBox(bytes.fromhex(KEY))


@dataclass
class Command:
    """Runs commands on the users of one place."""

    place: list[str]
    data: Path
    capsys: pytest.CaptureFixture[str]

    def text(self, *words: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main([*words, *self.place])
        told = self.capsys.readouterr()
        assert left.value.code == code, told
        return told.out if code == 0 else told.err

    def json(self, *words: str) -> Any:  # noqa: ANN401 - any shape
        return json.loads(self.text(*words, "-o", "json"))


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_KEY, KEY)


@pytest.fixture(params=["broker", "directory"])
def run(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    data = tmp_path / "data"
    with InProcessBroker(data=data) as broker:
        if request.param == "directory":
            broker.stop()
            yield Command(["--data-dir", str(data)], data, capsys)
        else:
            yield Command(["-b", broker.broker_address], data, capsys)


def test_a_user_is_created_shown_and_deleted(run: Command) -> None:
    assert run.text("user", "list") == "no users\n"
    made = run.json(
        *("user", "create", "shop", "--role", "viewer", "--access-key", "AK1"),
        *("--certificate", "CN=shop,O=Example", "--certificate", "CN=till"),
    )
    assert made == {
        "user": "shop",
        "is_changed": True,
        "access_key": "AK1",
        "secret": made["secret"],
        "is_dry_run": False,
    }
    assert len(made["secret"]) == 43
    assert run.json("user", "list") == [run.json("user", "show", "shop")]
    assert run.json("user", "show", "shop") == {
        "user": "shop",
        "kind": "normal",
        "is_enabled": True,
        "access_key": "AK1",
        "roles": ["viewer"],
        "certificate_names": ["CN=shop,O=Example", "CN=till"],
        "policies": [],
        "secrets": 1,
    }
    assert made["secret"] not in run.text("user", "show", "shop")
    assert "user_exists" in run.text("user", "create", "shop", code=2)
    assert "would be deleted" in run.text("user", "delete", "shop", "--dry-run")
    assert "is deleted" in run.text("user", "delete", "shop", "--yes")
    assert "user_unknown" in run.text("user", "show", "shop", code=2)
    assert "user_unknown" in run.text("user", "delete", "shop", "--yes", code=2)


def test_a_person_is_asked_before_a_user_is_deleted(run: Command) -> None:
    run.text("user", "create", "shop")
    with pytest.raises(SystemExit):
        main(["user", "delete", "shop", *run.place])
    assert "Delete user shop?" in run.capsys.readouterr().err
    assert len(run.json("user", "list")) == 1


def test_a_user_is_disabled_and_enabled(run: Command) -> None:
    run.text("user", "create", "shop", "--super")
    assert "would be disabled" in run.text("user", "disable", "shop", "--dry-run")
    assert run.json("user", "show", "shop")["is_enabled"]
    assert run.text("user", "disable", "shop") == "user shop is disabled\n"
    shown = run.json("user", "show", "shop")
    assert (shown["is_enabled"], shown["kind"]) == (False, "super")
    assert run.text("user", "disable", "shop") == "user shop is disabled already\n"
    assert "may NOT Pub" in run.text("acl", "explain", "shop", "Pub", "Topic:a")
    assert run.json("user", "enable", "shop")["is_changed"]
    assert run.json("user", "show", "shop")["is_enabled"]


def test_secrets_are_rotated_and_retired(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("the-first-secret\n")
    file.chmod(0o600)
    first = run.json("user", "create", "shop", "--secret-file", str(file))["secret"]
    assert first == "the-first-secret"
    run.json("acl", "grant", "shop", "Pub", "Topic:a")
    second = run.json("user", "rotate", "shop")
    assert second["secret"] not in (None, first)
    shown = run.json("user", "show", "shop")
    assert (shown["secrets"], len(shown["policies"])) == (2, 1)
    assert run.json("user", "rotate", "shop", "--retire", "--dry-run")["is_changed"]
    retired = run.json("user", "rotate", "shop", "--retire")
    assert (retired["is_changed"], retired["secret"]) == (True, None)
    assert run.json("user", "show", "shop")["secrets"] == 1
    assert not run.json("user", "rotate", "shop", "--retire", "--dry-run")["is_changed"]
    assert not run.json("user", "rotate", "shop", "--retire")["is_changed"]
    file.chmod(0o644)
    told = run.text("user", "rotate", "shop", "--secret-file", str(file), code=2)
    assert "secret_file_unsafe" in told
    assert "first-secret" not in told


def test_policies_are_granted_listed_and_revoked(run: Command) -> None:
    run.text("user", "create", "shop", "--role", "viewer")
    run.text("acl", "grant", "shop", "pub", "topic:order-*", "--source", "10.0.0.0/8")
    run.text("acl", "grant", "shop", "Sub", "Topic:order-*", "--source", "10.0.0.0/8")
    run.text("acl", "grant", "shop", "All", "Topic:order-secret", "--deny")
    assert run.text("acl", "grant", "shop", "All", "Topic:order-secret", "--deny") == (
        "user shop is granted it already\n"
    )
    listed = run.json("acl", "list", "shop")
    told = [(one["role"], one["effect"], one["actions"][:2], one["resource"]) for one in listed]
    assert told == [
        (None, "allow", ["Pub", "Sub"], "Topic:order-*"),
        (None, "deny", ["Pub", "Sub"], "Topic:order-secret"),
        ("viewer", "allow", ["Get", "List"], "*"),
    ]
    assert run.json("acl", "list") == listed
    run.text("acl", "revoke", "shop", "Sub", "Topic:order-*", "--dry-run")
    run.text("acl", "revoke", "shop", "Sub", "Topic:order-*")
    run.text("acl", "revoke", "shop", "All", "Topic:order-secret", "--deny")
    run.text("acl", "revoke", "shop", "--role", "viewer")
    (left,) = run.json("acl", "list", "shop")
    assert (left["actions"], left["sources"]) == (["Pub"], ["10.0.0.0/8"])
    told_error = run.text("acl", "revoke", "shop", "Pub", "Topic:other", code=2)
    assert "policy_unknown" in told_error
    run.text("acl", "grant", "shop", "--role", "operator", "--role", "viewer")
    assert run.json("user", "show", "shop")["roles"] == ["viewer", "operator"]
    assert "already" in run.text("acl", "grant", "shop", "--role", "viewer", "--dry-run")


def test_a_decision_is_explained(run: Command) -> None:
    run.text("user", "create", "shop", "--role", "viewer")
    run.text("acl", "grant", "shop", "Pub", "Topic:order-*", "--source", "10.0.0.0/8")
    run.text("acl", "grant", "shop", "All", "Topic:order-secret", "--deny")
    words = ("acl", "explain", "shop", "Pub", "Topic:order-eu", "--address", "10.1.2.3")
    told = run.json(*words)
    assert (told["is_allowed"], told["why"], told["address"]) == (True, "allowed", "10.1.2.3")
    assert [(one["bearing"], one["is_deciding"]) for one in told["policies"]] == [
        ("matches", True),
        ("other_resource", False),
        ("other_action", False),
    ]
    text = run.text(*words)
    assert text.startswith("shop may Pub on Topic:order-eu from 10.1.2.3: a policy allows it")
    refused = run.text("acl", "explain", "shop", "Get", "Topic:order-secret")
    assert "may NOT Get on Topic:order-secret: a policy denies it" in refused
    allowed = run.text("acl", "explain", "shop", "Get", "Topic:a").splitlines()
    (deciding,) = (line for line in allowed if line.startswith("decides"))
    assert deciding.endswith("viewer")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("user create ../up", "bad_user"),
        ("user create shop --role root", "policy_malformed"),
        ("acl grant kept Pub", "policy_malformed"),
        ("acl grant kept", "bad_option"),
        ("acl grant kept Pub Topic:a --role viewer", "bad_option"),
        ("acl grant kept Pub Topic:a --source 10.0.0.1/8", "policy_malformed"),
        ("acl grant nobody Pub Topic:a", "user_unknown"),
        ("acl explain kept Pub,Sub Topic:a", "policy_malformed"),
        ("acl explain kept Write Topic:a", "policy_malformed"),
        ("acl explain nobody Pub Topic:a", "user_unknown"),
        ("acl explain kept Pub Topic:a --address here", "policy_malformed"),
        ("acl list nobody", "user_unknown"),
        ("user rotate nobody", "user_unknown"),
    ],
)
def test_what_means_nothing_is_refused(run: Command, words: str, code: str) -> None:
    run.text("user", "create", "kept")
    before = run.json("user", "list")
    assert code in run.text(*words.split(), code=2)
    assert run.json("user", "list") == before


def test_users_of_a_directory_are_those_that_the_broker_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with InProcessBroker(data=data) as broker:
        at_broker = Command(["-b", broker.broker_address], data, capsys)
        at_broker.text("user", "create", "ann", "--super")
        in_directory = Command(["--data-dir", str(data)], data, capsys)
        # A directory that a broker serves is read, and not changed.
        assert in_directory.json("user", "list") == at_broker.json("user", "list")
        assert "data_directory_locked" in in_directory.text("user", "create", "bob", code=5)
        broker.stop()
        secret = in_directory.json("user", "create", "bob")["secret"]
        in_directory.text("user", "disable", "ann")
        kept = read_catalog(OsDisk(data / "store", read_only=True)).users["bob"].user
        assert BOX.unseal(kept.secrets[0], "bob").reveal() == secret
        assert not check(OsDisk(data / "store", read_only=True)).is_damaged
        listed = in_directory.json("user", "list")
        broker.start()
        at_broker = Command(["-b", broker.broker_address], data, capsys)
        assert at_broker.json("user", "list") == listed
        assert [one["is_enabled"] for one in listed] == [False, True]
    assert read(OsDisk(data / "store")).version == VERSION


def test_a_directory_without_a_store_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Command(["--data-dir", str(tmp_path)], tmp_path, capsys)
    for words in (("user", "list"), ("user", "create", "ann")):
        assert "store_missing" in run.text(*words, code=5)
    assert list(tmp_path.iterdir()) == []


def test_a_policy_more_joins_the_one_that_differs_in_its_actions_alone() -> None:
    pub, sub = parse_policy("Topic:a", "Pub"), parse_policy("Topic:a", "Sub")
    both = parse_policy("Topic:a", "Pub,Sub")
    apart = parse_policy("Topic:a", "Pub", "10.0.0.0/8")
    denied = parse_policy("Topic:a", "Pub", effect="deny")
    assert granted([pub], sub) == [both]
    assert granted([apart, pub, denied], sub) == [apart, both, denied]
    assert granted([denied], pub) == [denied, pub]
    # A revocation holds wherever a client comes from.
    assert revoked([apart, both, denied], pub) == [sub, denied]
    assert revoked([apart, both, denied], denied) == [apart, both]
