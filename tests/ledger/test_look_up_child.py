"""The look-up process: each request gets one answer in time, whatever its database does."""

from __future__ import annotations

import itertools
import os
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from escrowmq.client.database.databases import opener_of, writing
from escrowmq.client.ledger.marks import write_marks
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.lineage import Epoch, Lineage, Sight
from escrowmq.protocol.look_up.frames import encode_call
from escrowmq.protocol.look_up.messages import Configure, LookUpAnswer, Probe
from tests.ledger.look_up_peer import COMMAND, look_up_peer, request, started
from tests.ledger.shops import GROUP, Shop, eventually, new_id

MIB = 1024 * 1024
COMMITTED, ROLLED_BACK, UNKNOWN = LedgerOutcome


def add(shop: Shop, outcome: str = "committed") -> str:
    key = new_id()
    shop.run(f"INSERT INTO escrowmq_ledger VALUES ('{key}', '{GROUP}', '{outcome}', 1)")
    return key


def unknown(answer: LookUpAnswer) -> str:
    """Return the reason why nothing is known about any row."""
    assert set(answer.outcomes) == {UNKNOWN}
    (reason,) = set(answer.reasons)
    return reason


def test_rows_decide_and_what_is_absent_past_its_deadline_is_fenced(
    shop: Shop, tmp_path: Path
) -> None:
    uuid, ids = shop.ledger().uuid(), [add(shop), add(shop, "rolled_back"), new_id(), new_id()]
    # The last one's sender still has time.
    asked = request(uuid, ids, allowed_ms=[1_000, 1_000, 1_000, 60_000])
    with look_up_peer(tmp_path, {"shop": shop.url}) as peer:
        # The first probe begins by itself.
        found = peer.look_up(asked)
    assert found.outcomes == [COMMITTED, ROLLED_BACK, ROLLED_BACK, UNKNOWN]
    assert found.reasons == ["", "", "", "absent"]
    assert (found.number, found.error, found.error_text) == (1, "", "")
    assert shop.outcomes() == dict(
        zip(ids, ["committed", "rolled_back", "rolled_back"], strict=False)
    )


def test_a_probe_tells_which_ledger_is_where(shop: Shop, tmp_path: Path) -> None:
    urls = {"shop": shop.url, "away": f"sqlite:///{tmp_path / 'away.db'}"}
    with look_up_peer(tmp_path, urls) as peer:
        known = peer.known()
    there, away = known.ledgers
    assert (known.number, known.faults) == (7, {shop.ledger().uuid(): ""})
    assert (there.report.name, there.report.is_reachable) == ("shop", True)
    assert there.report.succeeded_ago_ms is not None
    assert known.unnamed == {"away": "ledger_unreachable"}
    assert (away.report.is_reachable, away.report.error) == (False, "ledger_unreachable")
    assert away.report.failed_ago_ms is not None


def test_the_process_stays_small(file_shop: Shop, postgres_shop: Shop, tmp_path: Path) -> None:
    urls = {"file": file_shop.url, "server": postgres_shop.url}
    with look_up_peer(tmp_path, urls) as peer:
        for shop in (file_shop, postgres_shop):
            uuid, ids = shop.ledger().uuid(), [new_id() for _ in range(4_000)]
            assert set(peer.look_up(request(uuid, ids)).outcomes) == {ROLLED_BACK}
            assert peer.resident_bytes() < 60 * MIB


def test_a_ledger_that_no_database_has_named_is_unknown(file_shop: Shop, tmp_path: Path) -> None:
    with look_up_peer(tmp_path, {"shop": file_shop.url}) as peer:
        found = peer.look_up(request("other", [new_id()]))
    assert (unknown(found), found.error) == ("ledger_unnamed", "ledger_unnamed")
    assert file_shop.outcomes() == {}


def test_another_ledger_in_the_same_database_is_unknown_and_never_fenced(
    file_shop: Shop, tmp_path: Path
) -> None:
    uuid = file_shop.ledger().uuid()
    with look_up_peer(tmp_path, {"shop": file_shop.url}) as peer:
        assert peer.known().faults == {uuid: ""}
        file_shop.run("UPDATE escrowmq_ledger_id SET ledger_uuid = 'other'")
        found = peer.look_up(request(uuid, [new_id()]))
    assert (unknown(found), found.error) == ("other_ledger", "other_ledger")
    assert file_shop.outcomes() == {}


def test_a_standby_is_not_asked(postgres_shop: Shop, standby_url: str, tmp_path: Path) -> None:
    uuid = postgres_shop.ledger().uuid()
    with look_up_peer(tmp_path, {"standby": standby_url}) as peer:
        assert peer.known().faults == {uuid: "standby"}
        assert unknown(peer.look_up(request(uuid, [new_id()]))) == "standby"


def test_a_copy_and_its_original_are_both_left_alone(file_shop: Shop, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    shutil.copy(file_shop.path, copy)
    uuid = file_shop.ledger().uuid()
    with look_up_peer(tmp_path, {"shop": file_shop.url, "copy": f"sqlite:///{copy}"}) as peer:
        assert {one.fault for one in peer.known().ledgers} == {"ledger_twice"}
        assert unknown(peer.look_up(request(uuid, [new_id()]))) == "ledger_twice"
    assert file_shop.outcomes() == {}


def test_a_row_that_another_history_may_have_swept_is_not_fenced(
    file_shop: Shop, tmp_path: Path
) -> None:
    """The histories differ from half offset 5 on; the sweep was in the other one."""
    root, first = Epoch("root", 0, 0), Epoch("first", 64, 0)
    ours = Lineage("store", (root, first, Epoch("ours", 1_000, 5)))
    theirs = Lineage("store", (root, first, Epoch("theirs", 1_000, 5)))
    with opener_of(file_shop.url)() as connection, writing(connection):
        write_marks(connection, [Sight(theirs, 2_000, 9)])
    uuid, ids = file_shop.ledger().uuid(), [new_id(), new_id()]
    asked = request(uuid, ids, sight=Sight(ours, 3_000, 9), half_offsets=[4, 5])
    with look_up_peer(tmp_path, {"shop": file_shop.url}) as peer:
        found = peer.look_up(asked)
    assert found.outcomes == [UNKNOWN, ROLLED_BACK]
    assert found.reasons == ["maybe_swept", ""]
    assert file_shop.outcomes() == {ids[1]: "rolled_back"}


def test_a_database_that_went_away_is_unknown_and_shown_as_unreachable(
    file_shop: Shop, tmp_path: Path
) -> None:
    uuid = file_shop.ledger().uuid()
    path = Path(file_shop.path)
    with look_up_peer(tmp_path, {"shop": file_shop.url}) as peer:
        assert peer.known().faults == {uuid: ""}
        path.rename(path.with_suffix(".away"))
        found = peer.look_up(request(uuid, [new_id()]))
        path.with_suffix(".away").rename(path)
        (one,) = peer.known().ledgers
    assert (unknown(found), found.error) == ("ledger_unreachable", "ledger_unreachable")
    # The probe reaches it, but a look-up failed a moment ago.
    assert (one.fault, one.report.is_reachable) == ("", False)
    assert one.report.error == "ledger_unreachable"


def test_a_locked_database_is_unknown(file_shop: Shop, tmp_path: Path) -> None:
    uuid, key = file_shop.ledger().uuid(), new_id()
    with look_up_peer(tmp_path, {"shop": file_shop.url}) as peer:
        with closing(sqlite3.connect(file_shop.path, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            found = peer.look_up(request(uuid, [key]))
        assert (unknown(found), found.error) == ("locked", "")
        assert peer.look_up(request(uuid, [key])).outcomes == [ROLLED_BACK]


def test_a_slow_database_delays_no_other(
    postgres_shop: Shop, slow_url: str, file_shop: Shop, tmp_path: Path
) -> None:
    slow, quick = postgres_shop.ledger().uuid(), file_shop.ledger().uuid()
    key = add(file_shop)
    with look_up_peer(tmp_path, {"slow": slow_url, "quick": file_shop.url}) as peer:
        peer.send(
            request(slow, [new_id()], number=1, wait_ms=1_000),
            request(slow, [new_id()], number=2, wait_ms=60_000),
            request(quick, [key], number=3),
        )
        first, second, third = peer.answer(), peer.answer(), peer.answer()
    assert (first.number, first.outcomes) == (3, [COMMITTED])
    assert (second.number, unknown(second)) == (1, "out_of_time")
    # The ledger rests after its failure, so the request behind it does not wait.
    assert (third.number, unknown(third)) == (2, "out_of_time")
    assert third.error == "out_of_time"


def test_a_server_that_dies_in_the_middle_is_unknown(
    postgres_shop: Shop, slow_url: str, tmp_path: Path
) -> None:
    uuid = postgres_shop.ledger().uuid()
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    with look_up_peer(tmp_path, {"shop": slow_url}) as peer:
        peer.send(request(uuid, [new_id()]))
        eventually(lambda: postgres_shop.run(sleeping) == [(1,)])
        postgres_shop.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        )
        found = peer.answer()
    assert unknown(found) == "ledger_unreachable"
    assert found.error_text == "the connection is lost"


class _Gate:
    """A TCP port in front of a server's socket file. A closed gate accepts and passes nothing."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.is_open = threading.Event()
        self.is_open.set()
        #: Counts connections that wait at the closed gate.
        self.held = threading.Semaphore(0)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.is_open.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        if not self.is_open.is_set():
            self.held.release()
            self.is_open.wait()
        server = socket.socket(socket.AF_UNIX)
        with client, server:
            server.connect(self._target)
            pairs = {client: server, server: client}
            while True:
                readable, _, _ = select.select(list(pairs), [], [])
                for one in readable:
                    chunk = one.recv(65_536)
                    if not chunk:
                        return
                    pairs[one].sendall(chunk)


@contextmanager
def gate(shop: Shop) -> Iterator[tuple[_Gate, str]]:
    """Yield a gate in front of the shop's server, and the URL through it."""
    assert "?host=" in shop.url
    folder = shop.url.partition("?host=")[2]
    with closing(_Gate(f"{folder}/.s.PGSQL.5432")) as made:
        # The driver alone would wait for minutes.
        yield made, f"postgresql://postgres:@127.0.0.1:{made.port}/postgres?connect_timeout=600"


def test_a_driver_that_hangs_is_abandoned_until_it_returns(
    postgres_shop: Shop, tmp_path: Path
) -> None:
    uuid, key = postgres_shop.ledger().uuid(), add(postgres_shop)
    with (
        gate(postgres_shop) as (server, url),
        look_up_peer(tmp_path, {"shop": url}) as peer,
    ):
        assert peer.known().faults == {uuid: ""}
        server.is_open.clear()
        peer.send(request(uuid, [key], wait_ms=200))
        assert server.held.acquire(timeout=10)
        assert unknown(peer.answer()) == "out_of_time"
        assert unknown(peer.look_up(request(uuid, [key], number=2))) == "ledger_slow"
        server.is_open.set()
        numbers = itertools.count(3)

        def is_back() -> bool:
            found = peer.look_up(request(uuid, [key], number=next(numbers)))
            return unknown(found) != "ledger_slow"

        # The thread has returned. The ledger rests, because the thread was late.
        eventually(is_back)
        assert unknown(peer.look_up(request(uuid, [key]))) == "out_of_time"


# The life of the process.


def test_it_ends_with_its_input(file_shop: Shop, tmp_path: Path) -> None:
    with look_up_peer(tmp_path, {"shop": file_shop.url}) as peer:
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        assert peer.process.wait(timeout=30) == 0


def test_it_ends_with_its_input_while_a_database_hangs(
    postgres_shop: Shop, slow_url: str, tmp_path: Path
) -> None:
    uuid = postgres_shop.ledger().uuid()
    with look_up_peer(tmp_path, {"shop": slow_url}) as peer:
        peer.send(request(uuid, [new_id()]))
        sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        eventually(lambda: postgres_shop.run(sleeping) == [(1,)])
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        assert peer.process.wait(timeout=30) == 0


PARENT = """
import subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
print(process.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_when_the_broker_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        is_over, _, _ = select.select([child], [], [], 30)
        os.close(child)
    assert is_over


def test_ctrl_c_is_for_the_broker(file_shop: Shop, tmp_path: Path) -> None:
    with look_up_peer(tmp_path, {"shop": file_shop.url}) as peer:
        peer.process.send_signal(signal.SIGINT)
        assert peer.known().faults == {file_shop.ledger().uuid(): ""}
        peer.process.send_signal(signal.SIGTERM)
        assert peer.process.wait(timeout=30) == -signal.SIGTERM


@pytest.mark.parametrize(
    "sent",
    [
        b"garbage that has no frame",
        encode_call(Probe(number=1)),
        encode_call(Configure(ledgers={}, version=2)),
        encode_call(Configure(ledgers={})) * 2,
        encode_call(Configure(ledgers={"shop": "ftp://open-sesame"})),
    ],
)
def test_a_broker_that_breaks_the_protocol_ends_it(sent: bytes, tmp_path: Path) -> None:
    with started(tmp_path / "log") as peer:
        peer.send_bytes(sent)
        assert peer.process.wait(timeout=30) == 2
        assert '"event":"look_up_refused"' in peer.log()
        assert "sesame" not in peer.log()


def test_no_secret_of_a_url_leaves_the_process(
    file_shop: Shop, postgres_shop: Shop, deaf: str, tmp_path: Path
) -> None:
    """Not in its arguments, its environment, its log or its answers."""
    refusing = postgres_shop.url.replace("//postgres:@", "//nobody:open-sesame@")
    urls = {
        "refusing": refusing,
        "deaf": f"postgresql://shop:open-sesame@{deaf}/orders?sslpassword=open-sesame",
        "odd": "postgresql://shop:open@sesame@host/orders",
        "file": f"{file_shop.url}?password=open-sesame",
    }
    with look_up_peer(tmp_path, urls) as peer:
        said = [repr(peer.known()) for _ in range(2)]
        said.append(repr(peer.look_up(request(file_shop.ledger().uuid(), [new_id()]))))
        Path(file_shop.path).unlink()
        said.append(repr(peer.look_up(request(file_shop.ledger().uuid(), [new_id()]))))
        shown = Path(f"/proc/{peer.process.pid}")
        said += [(shown / name).read_text(encoding="utf-8") for name in ("cmdline", "environ")]
        said.append(peer.log())
    assert "ledger_silent" in said[-1]
    assert [text for text in said if "sesame" in text] == []


def test_each_request_gets_one_answer(file_shop: Shop, tmp_path: Path) -> None:
    uuid = file_shop.ledger().uuid()
    with look_up_peer(tmp_path, {"shop": file_shop.url}) as peer:
        peer.send(*(request(uuid, [new_id()], number=number) for number in range(60)))
        answers = [peer.answer() for _ in range(60)]
    assert [answer.number for answer in answers] == list(range(60))
    assert {answer.outcomes[0] for answer in answers} == {ROLLED_BACK}


def test_a_quick_ledger_is_never_taken_for_a_slow_one(file_shop: Shop, tmp_path: Path) -> None:
    """The next request may arrive before the thread of the last one has ended."""
    uuid, key = file_shop.ledger().uuid(), add(file_shop)
    with look_up_peer(tmp_path, {"shop": file_shop.url}) as peer:
        found = [peer.look_up(request(uuid, [key])).outcomes for _ in range(300)]
    assert found == [[COMMITTED]] * 300


def test_more_requests_than_the_limit_end_it(
    postgres_shop: Shop, slow_url: str, tmp_path: Path
) -> None:
    uuid = postgres_shop.ledger().uuid()
    with look_up_peer(tmp_path, {"shop": slow_url}) as peer:
        peer.send(*(request(uuid, [new_id()], number=number) for number in range(65)))
        assert peer.process.wait(timeout=30) == 2
