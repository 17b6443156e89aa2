"""A broker, directories and databases to run every command on, and the arguments of each run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from escrowmq.broker.access.secret_box import ENV_KEY
from escrowmq.cli.main import main
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import MESSAGES
from escrowmq.protocol.native.headers import HoldManyHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SentInRow, SentRow
from escrowmq.testing import InProcessBroker
from tests.unit.client.dead_letters import GROUP, TOPIC, give_up
from tests.unit.pipeline.lake_rows import MIDNIGHT_MS, message, rows_of

ASKED = "--broker {broker} "
BINARY = b"\xff\xfe"

#: Arguments of each run, by command. If a command can ask a broker, its first run does.
RUNS: Mapping[str, tuple[str, ...]] = {
    "acl explain": (
        ASKED + "kept-user Pub Topic:orders --address 10.0.0.1",
        "kept-user Pub Topic:orders --data-dir {stopped}",
    ),
    "acl grant": (
        ASKED + "kept-user Sub Topic:orders --dry-run",
        ASKED + "kept-user Sub Topic:more --source 10.0.0.0/8 --deny",
    ),
    "acl list": (ASKED, ASKED + "kept-user", "--data-dir {stopped}"),
    "acl revoke": (
        ASKED + "kept-user Pub Topic:orders --dry-run",
        ASKED + "kept-user --role viewer",
    ),
    "backup": (
        ASKED + "{folder}/backup-1",
        ASKED + "{folder}/backup-2 --dry-run",
        "{folder}/backup-3 --data-dir {stopped}",
    ),
    "bench": ("",),
    "cert make": ("{folder}/pki --client orders",),
    "clock confirm": ("--broker {doubted} --yes", ASKED + "--dry-run"),
    "clock show": (ASKED,),
    "config import": ("{rocketmq_file}", "{rocketmq_file} --write {folder}/escrowmq.toml"),
    "config show": ("--set store.durability=os",),
    "dlq list": (ASKED,),
    "dlq redrive": (ASKED + "{letters_of} --limit 1", ASKED + "{letters_of} --dry-run"),
    "dlq show": (ASKED + "{letters_of}",),
    "doctor": (ASKED + "--data-dir {stopped}",),
    "group list": (ASKED,),
    "group pause": (
        ASKED + "{letters_of} --dry-run",
        ASKED + "{letters_of} --reason upgrade",
    ),
    "group reset-offset": (
        ASKED + "readers --topic orders --to earliest",
        ASKED + "readers --topic orders --to 2026-01-31T12:00 --dry-run",
    ),
    "group resume": (ASKED + "{letters_of} --dry-run", ASKED + "{letters_of}"),
    "group show": (ASKED + "{letters_of}",),
    "lake compact": ("--lake {lake}", "--lake {lake} --dry-run"),
    "lake tables": ("--lake {lake}",),
    "lake vacuum": ("--lake {lake} --keep-days 3000",),
    "ledger migrate": ("{ledger}", "sqlite:///{folder}/new.db --create"),
    "ledger show": ("{ledger}",),
    "ledger sql": ("sqlite",),
    "message get": (ASKED + "{message_id}", ASKED + "{binary_id}", ASKED + "kept-1"),
    "message query": (ASKED + "--topic orders --key k1",),
    "message send": (ASKED + "x --topic sent", ASKED + "x --topic sent --dry-run"),
    "message tail": (ASKED + "--topic orders",),
    "restore": (
        "{backup} --data-dir {folder}/restored",
        "{backup} --data-dir {folder}/planned --dry-run",
        "{backup} --data-dir {folder}/replaced --users-from {users_file}",
    ),
    "status": (ASKED,),
    "store check": ("{stopped}", "{damaged}"),
    "store migrate": ("{stopped} --to mapped", "{stopped} --to table"),
    "store repair": ("{damaged} --dry-run", "{damaged} --yes", "{stopped}"),
    "topic create": (ASKED + "made --queues 2", ASKED + "made --dry-run"),
    "topic delete": (ASKED + "gone --yes", ASKED + "gone-too --dry-run"),
    "topic list": (ASKED + "--all",),
    "topic show": (ASKED + "orders",),
    "txn commit": (ASKED + "end-1 --reason why", ASKED + "kept-1 --reason why --dry-run"),
    "txn commit --filter": (
        "id=end-3 " + ASKED + "--reason why --yes",
        "group=pay " + ASKED + "--reason why --dry-run --limit 1",
    ),
    "txn explain": (ASKED + "kept-1",),
    "txn list": (ASKED, ASKED + "--limit 1", ASKED + "--no-messages"),
    "txn resume": (ASKED + "kept-1 --dry-run",),
    "txn rollback": (ASKED + "end-2 --reason why", ASKED + "kept-2 --reason why --dry-run"),
    "txn rollback --filter": (
        "id=end-4,topic=orders " + ASKED + "--reason why --yes",
        "group=pay " + ASKED + "--reason why --dry-run",
    ),
    "txn show": (ASKED + "kept-1",),
    "user create": (
        ASKED + "new-user --role viewer --role operator --certificate CN=new",
        ASKED + "other-user --super --dry-run",
        "new-user --data-dir {stopped}",
    ),
    "user delete": (ASKED + "gone-user --dry-run", ASKED + "gone-user --yes"),
    "user disable": (ASKED + "kept-user --dry-run", ASKED + "kept-user"),
    "user enable": (ASKED + "kept-user",),
    "user list": (ASKED, "--data-dir {stopped}"),
    "user rotate": (ASKED + "kept-user", ASKED + "kept-user --retire"),
    "user show": (ASKED + "kept-user",),
}


@dataclass
class World:
    """Every broker, directory and database that a command can use."""

    broker: InProcessBroker
    facts: dict[str, object]

    @classmethod
    @contextmanager
    def made(cls, folder: Path) -> Iterator[Self]:
        """Yield a world in this folder."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ENV_KEY, "5e" * 32)
            with cls._made(folder) as world:
                yield world

    @classmethod
    @contextmanager
    def _made(cls, folder: Path) -> Iterator[Self]:
        stopped, damaged, backup = folder / "stopped", folder / "damaged", folder / "backup"
        with InProcessBroker(data=stopped) as short:
            call("message", "send", "kept", "--topic", "orders", "-b", short.address)
            make_user("kept-user", short.address)
        shutil.copytree(stopped, damaged)
        damage(damaged)
        call("backup", backup, "--data-dir", stopped)
        lake = Lake(folder / "lake")
        lake.append(MESSAGES, rows_of(MESSAGES, message("T", 1, MIDNIGHT_MS)), lambda _: ())
        rocketmq_file = folder / "broker.conf"
        rocketmq_file.write_text("brokerName=a\nbrokerId=0\nbrokername=b\nlistenPort=-1\n")
        users_file = folder / "users.json"
        users_file.write_text('[{"user": "ann", "secret": "secret-of-ann", "kind": "super"}]')
        users_file.chmod(0o600)
        ledger = f"sqlite:///{folder / 'shop.db'}"
        SqlLedger(ledger).create()
        with (
            doubted_broker() as doubted,
            InProcessBroker(data=folder / "data") as broker,
            NativeCalls(broker.address) as calls,
        ):
            binary_id, message_id = sent(calls)
            hold(calls, "kept-1", "kept-2", "end-1", "end-2", "end-3", "end-4")
            for topic in (TOPIC, "gone", "gone-too"):
                call("topic", "create", topic, "--queues", "1", "-b", broker.address)
            give_up(broker, calls, "a", "b")
            for user in ("kept-user", "gone-user"):
                make_user(user, broker.address)
            facts = {
                "backup": backup,
                "binary_id": binary_id,
                "broker": broker.address,
                "damaged": damaged,
                "doubted": doubted.address,
                "folder": folder,
                "lake": lake.uri,
                "ledger": ledger,
                "letters_of": GROUP,
                "message_id": message_id,
                "rocketmq_file": rocketmq_file,
                "stopped": stopped,
                "users_file": users_file,
            }
            yield cls(broker, facts)

    def filled(self, words: str, arguments: str, **other: object) -> list[str]:
        """Return the words of a run, with this world's addresses and paths filled in."""
        return [*words.split(), *arguments.format(**{**self.facts, **other}).split()]


def make_user(name: str, address: str) -> None:
    call("user", "create", name, "--role", "viewer", "-b", address)
    call("acl", "grant", name, "Pub", "Topic:orders", "-b", address)


def call(*arguments: str | Path) -> None:
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments)])
    assert left.value.code == 0


@contextmanager
def doubted_broker() -> Iterator[InProcessBroker]:
    """Yield a broker whose wall clock is one day ahead of its store time."""
    with InProcessBroker() as broker:
        broker.clock.synchronized = False
        broker.clock.jump(seconds=86_400)
        broker.advance()
        yield broker


def damage(data: Path) -> None:
    """Flip byte 40 of the only log segment."""
    (segment,) = (data / "store" / "commitlog").iterdir()
    content = bytearray(segment.read_bytes())
    content[40] ^= 0xFF
    segment.write_bytes(content)


def sent(calls: NativeCalls) -> tuple[str, str]:
    """Send a message with a binary body and one with a text body, and return their unique keys."""
    rows = [
        SentRow(
            topic="orders",
            queue_id=-1,
            body=body,
            properties=f"UNIQ_KEY\x01{key}\x02KEYS\x01k1 k2\x02",
            flag=0,
            sys_flag=0,
            born_at_ms=1,
        )
        for key, body in (("BINARY", BINARY), ("PLAIN", b"plain"))
    ]
    calls.call(NativeCode.SEND_MANY, rows=rows)
    return "BINARY", "PLAIN"


def hold(calls: NativeCalls, *transaction_ids: str) -> None:
    rows = [
        SentInRow(
            transaction_id=one,
            topic="orders",
            queue_id=-1,
            body=b"one",
            properties="",
            flag=0,
            sys_flag=0,
            born_at_ms=0,
        )
        for one in transaction_ids
    ]
    calls.call(NativeCode.HOLD_MANY, HoldManyHeader(producer_group="pay"), rows)
