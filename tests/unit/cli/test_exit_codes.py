"""Every command that asks a broker uses the exit codes of docs/reference/cli.md."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from escrowmq.cli.main import EXITS, main, wants_json
from escrowmq.protocol.remoting.frames import FrameSplitter, encode_response
from escrowmq.testing import InProcessBroker
from tests.unit.cli.schema_world import RUNS
from tests.unit.repository import ROOT

#: Placeholders that do not exist: each run fails before it uses them.
NOWHERE = dict.fromkeys(
    (
        *("backup", "binary_id", "damaged", "folder", "lake", "ledger"),
        *("letters_of", "message_id", "stopped"),
    ),
    "/nowhere",
)
#: Each command that asks a broker, with the arguments of such a run.
ASKING = {
    words: runs[0].replace("{doubted}", "{broker}")
    for words, runs in RUNS.items()
    if "--broker" in runs[0]
} | {"txn watch": "--broker {broker}"}
#: The doctor's exit code when it has checked everything and found a problem.
DOCTOR = 1

HTTP = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
SSH = b"SSH-2.0-OpenSSH_9.6\r\n"


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """Yield the address of a server that sends these bytes; with None, it answers as RocketMQ."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                talk(peer)

    def talk(peer: socket.socket) -> None:
        splitter = FrameSplitter()
        while data := peer.recv(65_536):
            if answer is not None:
                peer.sendall(answer)
                return
            for frame in splitter.feed(data):
                peer.sendall(encode_response(frame, 3, remark="request type not supported"))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # close() alone does not wake a thread that is blocked in accept().
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def ended(capsys: pytest.CaptureFixture[str], words: str, broker: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as left:
        main([*words.split(), *ASKING[words].format(**NOWHERE, broker=broker).split()])
    told = capsys.readouterr()
    return left.value.code, told.err + told.out


@pytest.fixture(scope="module", params=[HTTP, SSH], ids=["http", "ssh"])
def foreign(request: pytest.FixtureRequest) -> Iterator[str]:
    with listening(request.param) as address:
        yield address


@pytest.fixture(scope="module")
def apache() -> Iterator[str]:
    with listening(None) as address:
        yield address


@pytest.mark.parametrize("words", ASKING)
def test_a_port_of_another_program_is_6(
    words: str, foreign: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = ended(capsys, words, foreign)
    assert (code, "peer_not_broker" in told) == (DOCTOR if words == "doctor" else 6, True), told


@pytest.mark.parametrize("words", ASKING)
def test_a_port_without_a_listener_is_3(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = ended(capsys, words, "127.0.0.1:1")
    expected = DOCTOR if words == "doctor" else 3
    assert (code, "broker_unreachable" in told) == (expected, True), told


def test_a_port_that_stays_silent_is_3_as_a_broker_that_hangs_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.cli.asking.ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        code, told = ended(capsys, "status", address)
    assert (code, "another program uses this address" in told) == (3, True), told


@pytest.mark.parametrize("words", ASKING)
def test_an_address_that_is_none_is_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = ended(capsys, words, "nonsense")
    assert (code, "address_illegal" in told) == (DOCTOR if words == "doctor" else 2, True), told


@pytest.mark.parametrize("words", ["status", "txn list", "dlq list", "backup", "topic create"])
def test_a_broker_that_does_not_know_our_requests_is_6(
    words: str, apache: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = ended(capsys, words, apache)
    assert (code, "request_unsupported" in told) == (6, True), told
    assert "is not EscrowMQ's" in told
    assert "use mqadmin" in told


def test_the_http_port_of_a_broker_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.unit.cli.test_serve import started

    with started(tmp_path / "data", "--http-port", "0") as (_, ready):
        code, told = ended(capsys, "status", ready[2])
    assert (code, "peer_not_broker" in told) == (6, True), told


@pytest.mark.parametrize(
    "arguments",
    [
        "store check {folder}/none",
        "store repair {folder}/none",
        "store migrate {folder}/none --to mapped",
        "backup {folder}/new --data-dir {folder}/none",
        "restore {folder}/none --data-dir {folder}/new",
        "serve --data-dir {folder}/file",
    ],
)
def test_a_directory_that_cannot_be_used_is_5(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as left:
        main(arguments.format(folder=tmp_path).split())
    assert left.value.code == 5, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("config show --set store.odd=1", 2),
        ("bench odd", 2),
        ("ledger sql odd", 2),
        ("ledger show odd", 2),
        ("ledger show postgresql://nobody@127.0.0.1:1/none", 3),
        ("lake tables", 2),
        ("pipeline --brokers odd --data-dir {folder}/new", 2),
    ],
)
def test_other_commands_end_as_the_page_says(
    arguments: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments.format(folder=tmp_path).split())
    assert left.value.code == code, capsys.readouterr().err


def test_the_page_lists_every_exit_code() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    for code in {0, 1, 7, 8, 130, 141, 143, *EXITS.values()}:
        assert f"\n| {code} | " in page, code


def test_a_reader_that_goes_away_ends_a_command_quietly() -> None:
    command = f"{sys.executable} -m escrowmq.cli.main config show; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; ({command}) | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "141\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("status -o json", True),
        ("status --output json", True),
        ("status --output=json", True),
        ("status -ojson", True),
        ("status -o csv", False),
        ("status -o json -o table", False),
        ("message send -- -o json", False),
        ("", False),
    ],
)
def test_the_last_option_says_how_errors_are_printed(words: str, expected: bool) -> None:  # noqa: FBT001
    assert wants_json(words.split()) is expected


def test_a_message_that_asks_for_the_wrong_thing_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    with InProcessBroker() as broker:
        code, told = ended(capsys, "group show", broker.address)
    assert (code, "group_unknown" in told) == (2, True)
