"""A backup has sealed secrets only, a restore prints every user, and a file replaces them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.access.secret_box import ENV_KEY, SecretBox
from escrowmq.cli.access.users_file import UserInFile
from escrowmq.cli.main import main
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.repair.catalog_on_disk import read_catalog
from escrowmq.store.repair.inspect import check
from escrowmq.testing import InProcessBroker

Run = Callable[..., Any]
KEY = "5e" * 32
BOX = SecretBox(bytes.fromhex(KEY))


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_KEY, KEY)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path, code: int = 0) -> Any:  # noqa: ANN401 - any shape
        with pytest.raises(SystemExit) as left:
            main([*map(str, arguments), "-o", "json"])
        told = capsys.readouterr()
        assert left.value.code == code, told
        return json.loads(told.out) if code == 0 else {"error": told.err}

    return run


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker(data=tmp_path / "data") as running:
        yield running


def secrets_in(data: Path) -> dict[str, str]:
    users = read_catalog(OsDisk(data / "store", read_only=True)).users
    return {name: BOX.unseal(kept.user.secrets[0], name).reveal() for name, kept in users.items()}


def with_users(run: Run, broker: InProcessBroker) -> dict[str, str]:
    """Create two users; return their secrets."""
    at = ("-b", broker.broker_address)
    made = {
        "ann": run("user", "create", "ann", "--super", *at)["secret"],
        "shop": run("user", "create", "shop", "--role", "viewer", *at)["secret"],
    }
    run("acl", "grant", "shop", "Pub", "Topic:orders", *at)
    return made


def written(path: Path, *users: dict[str, Any], mode: int = 0o600) -> Path:
    path.write_text(json.dumps(users))
    path.chmod(mode)
    return path


def test_a_backup_has_no_secret_and_no_key(
    run: Run,
    broker: InProcessBroker,
    tmp_path: Path,
) -> None:
    secrets = with_users(run, broker)
    backup = tmp_path / "backup"
    assert run("backup", backup, "-b", broker.broker_address)["users"] is None
    files = [path.read_bytes() for path in backup.rglob("*") if path.is_file()]
    assert any(b"ann" in data for data in files)
    for hidden in (*(one.encode() for one in secrets.values()), bytes.fromhex(KEY), KEY.encode()):
        assert not any(hidden in data for data in files)


def test_a_restore_brings_users_back_and_prints_each(
    run: Run,
    broker: InProcessBroker,
    tmp_path: Path,
) -> None:
    secrets = with_users(run, broker)
    backup, data = tmp_path / "backup", tmp_path / "restored"
    run("backup", backup, "-b", broker.broker_address)
    planned = run("restore", backup, "--data-dir", data, "--dry-run")["users"]
    assert not data.exists()
    restored = run("restore", backup, "--data-dir", data)["users"]
    assert restored == planned == run("user", "list", "-b", broker.broker_address)
    assert [(one["user"], one["kind"], one["roles"]) for one in restored] == [
        ("ann", "super", []),
        ("shop", "normal", ["viewer"]),
    ]
    assert secrets_in(data) == secrets
    with InProcessBroker(data=data) as again:
        assert run("user", "list", "-b", again.broker_address) == restored


def test_users_of_a_file_replace_those_of_the_backup(
    run: Run,
    broker: InProcessBroker,
    tmp_path: Path,
) -> None:
    with_users(run, broker)
    at = ("-b", broker.broker_address)
    backup, data = tmp_path / "backup", tmp_path / "restored"
    run("backup", backup, *at)
    # What the list prints is a file, once each user has a secret.
    _, shop = run("user", "list", *at)
    file = written(
        tmp_path / "users",
        {**shop, "secret": "a-new-secret"},
        {"user": "till", "secret": "another-one"},
    )
    words = ("restore", backup, "--data-dir", data, "--users-from", file)
    planned = run(*words, "--dry-run")["users"]
    restored = run(*words)["users"]
    assert restored == planned
    assert restored == [shop, {**restored[1], "user": "till", "policies": [], "roles": []}]
    assert secrets_in(data) == {"shop": "a-new-secret", "till": "another-one"}
    assert not check(OsDisk(data / "store", read_only=True)).is_damaged
    with InProcessBroker(data=data) as again:
        assert run("user", "list", "-b", again.broker_address) == restored
    for path in data.rglob("*"):
        assert path.is_dir() or b"a-new-secret" not in path.read_bytes()


def test_an_empty_file_brings_no_user_back(
    run: Run,
    broker: InProcessBroker,
    tmp_path: Path,
) -> None:
    with_users(run, broker)
    backup, data = tmp_path / "backup", tmp_path / "restored"
    run("backup", backup, "-b", broker.broker_address)
    file = written(tmp_path / "users")
    assert run("restore", backup, "--data-dir", data, "--users-from", file)["users"] == []
    assert secrets_in(data) == {}


@pytest.mark.parametrize(
    ("users", "mode", "code"),
    [
        ([{"user": "a", "secret": "long-enough"}], 0o644, "users_file_unsafe"),
        ([{"user": "a"}], 0o600, "users_file_malformed"),
        ([{"user": "a", "secret": "long-enough", "role": "x"}], 0o600, "users_file_malformed"),
        ([{"user": "a", "secret": ["very-secret"]}], 0o600, "users_file_malformed"),
        ([{"user": "a", "secret": "long-enough"}] * 2, 0o600, "users_file_malformed"),
        ([{"user": "a", "secret": "short"}], 0o600, "secret_malformed"),
        ([{"user": "a b", "secret": "long-enough"}], 0o600, "bad_user"),
        (
            [
                {
                    "user": "a",
                    "secret": "very-secret",
                    "policies": [{"resource": "x", "actions": []}],
                }
            ],
            0o600,
            "policy_malformed",
        ),
        (
            [
                {"user": "a", "secret": "very-secret", "access_key": "k"},
                {"user": "b", "secret": "very-secret", "access_key": "k"},
            ],
            0o600,
            "access_key_taken",
        ),
    ],
)
def test_a_file_that_means_nothing_restores_nothing(
    run: Run,
    broker: InProcessBroker,
    tmp_path: Path,
    *,
    users: list[dict[str, Any]],
    mode: int,
    code: str,
) -> None:
    backup, data = tmp_path / "backup", tmp_path / "restored"
    run("backup", backup, "-b", broker.broker_address)
    file = written(tmp_path / "users", *users, mode=mode)
    told = run("restore", backup, "--data-dir", data, "--users-from", file, code=2)["error"]
    assert code in told
    assert "very-secret" not in told
    assert not data.exists()
    assert not data.with_name("restored.restoring").exists()


def test_without_a_key_a_backup_is_restored_and_a_file_is_refused(
    run: Run,
    broker: InProcessBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secrets = with_users(run, broker)
    backup = tmp_path / "backup"
    run("backup", backup, "-b", broker.broker_address)
    monkeypatch.delenv(ENV_KEY)
    file = written(tmp_path / "users", {"user": "a", "secret": "long-enough"})
    words = ("restore", backup, "--data-dir", tmp_path / "refused", "--users-from", file)
    assert "access_key_missing" in run(*words, code=2)["error"]
    key_file = tmp_path / "access.key"
    key_file.write_text(KEY)
    key_file.chmod(0o600)
    settings = tmp_path / "escrowmq.toml"
    settings.write_text(f'[access]\nkey_file = "{key_file}"\n')
    assert len(run(*words, "--config", settings)["users"]) == 1
    assert len(run("restore", backup, "--data-dir", tmp_path / "restored")["users"]) == 2
    assert secrets_in(tmp_path / "restored") == secrets


def test_a_user_of_a_file_has_no_repr_of_its_secret() -> None:
    assert "very-secret" not in repr(UserInFile(user="a", secret="very-secret"))
