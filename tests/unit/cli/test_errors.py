"""An error is one line that says what to do, and its kind sets the exit code."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from escrowmq.cli.main import COMMANDS, app_for, main, refuse_other_pythons
from escrowmq.model.errors import RequestRefused
from escrowmq.store.disk.lock import DirectoryLock
from escrowmq.testing import InProcessBroker

ESCROWMQ = (sys.executable, "-m", "escrowmq.cli.main")


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as running:
        yield running


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        yield bound.getsockname()[1]


def failed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[object, str]:
    """Run a failing command, and return its exit code and its one error line."""
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments)])
    told = capsys.readouterr()
    assert told.err.count("\n") == 1, told.err
    assert "Traceback" not in told.err
    return left.value.code, told.err


def test_a_port_that_is_taken(
    tmp_path: Path, taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = failed(
        capsys,
        "serve",
        "--data-dir",
        tmp_path,
        "--port",
        str(taken_port),
        "--name-port",
        "0",
        "--grpc-port",
        "-1",
    )
    assert (code, "choose another host or port" in line) == (2, True)
    assert f"port={taken_port}" in line


def test_a_data_directory_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DirectoryLock(tmp_path):
        code, line = failed(capsys, "serve", "--data-dir", tmp_path, "--port", "0")
    assert (code, "another process serves this data directory: stop it" in line) == (5, True)


def test_a_broker_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failed(capsys, "txn", "list", "--broker", "127.0.0.1:1")
    assert (code, "is it running, and is this its address?" in line) == (3, True)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("topic show nothing", 2, "topic_unknown: escrowmq topic list shows all"),
        ("message tail --topic nothing", 2, "topic_unknown: escrowmq topic list shows all"),
        ("message get nonsense", 2, "message_id"),
        ("txn show nothing", 2, "transaction_unknown"),
        ("txn commit 99999 --reason x", 2, "transaction_unknown"),
        ("txn list --states odd", 2, "state_unknown: name some of prepared"),
        ("group show nobody", 2, "group_unknown: `escrowmq group list` shows all groups"),
        ("status --nonsense", 2, "No such option: --nonsense"),
        ("txn show", 2, "Missing argument 'TRANSACTION'; escrowmq txn show --help tells more"),
    ],
)
def test_a_name_that_the_broker_does_not_know_is_an_error(
    broker: InProcessBroker,
    capsys: pytest.CaptureFixture[str],
    words: str,
    code: int,
    text: str,
) -> None:
    left, line = failed(capsys, *words.split(), "--broker", broker.address)
    assert left == code, line
    assert text in line


def test_an_unknown_command_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failed(capsys, "nonsense")
    assert (code, "No such command 'nonsense'" in line) == (2, True)


@pytest.mark.parametrize("found", [(3, 10), (3, 14), (2, 7)])
def test_another_python_is_refused(found: tuple[int, ...]) -> None:
    with pytest.raises(RequestRefused, match=r"python_unsupported: use Python 3.11 to 3.13"):
        refuse_other_pythons(found)
    refuse_other_pythons()


def test_an_error_of_the_system_is_one_line_too(tmp_path: Path) -> None:
    """A file size limit of 256 bytes stands in for a full disk."""
    with InProcessBroker(data=tmp_path / "data"):
        pass
    limit = (256, 256)
    done = subprocess.run(
        [*ESCROWMQ, "backup", str(tmp_path / "b"), "--data-dir", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("\n") == 1


def test_saying_no_changes_nothing(tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path) as broker:
        main_words = ["topic", "create", "kept", "--broker", broker.address]
        with pytest.raises(SystemExit):
            main(main_words)
        done = subprocess.run(
            [*ESCROWMQ, "topic", "delete", "kept", "--broker", broker.address],
            input="n\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout.strip()) == (1, "")
        assert done.stderr.endswith("[y/N]:escrowmq: nothing was done\n")


# Ctrl-C.


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*ESCROWMQ, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("words", ["txn watch", "message tail -f --topic watched"])
def test_ctrl_c_ends_what_goes_on_for_ever(broker: InProcessBroker, words: str) -> None:
    with pytest.raises(SystemExit):
        main(["message", "send", "x", "--topic", "watched", "--broker", broker.address])
    with running(*words.split(), "--broker", broker.address) as process:
        assert process.stdout is not None
        # The first line shows that the command is running.
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")


def test_ctrl_c_ends_waiting_for_an_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with running("status", "--broker", f"127.0.0.1:{port}") as process:
            peer, _ = silent.accept()
            # The command has sent its request and waits for the answer.
            assert peer.recv(1)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
            peer.close()
    assert (process.returncode, errors) == (130, "")


def test_ctrl_c_before_anything_runs_is_quiet_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("escrowmq.cli.main.app_for", interrupted)
    with pytest.raises(SystemExit) as left:
        main(["status"])
    assert (left.value.code, capsys.readouterr().err) == (130, "")


# The list of commands.


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_says_of_each_command_what_it_says_of_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert " ".join(COMMANDS[name].about.split()) in told


def completed(words: str) -> list[str]:
    environ = {
        "_ESCROWMQ_COMPLETE": "complete_bash",
        "COMP_WORDS": f"escrowmq {words}",
        "COMP_CWORD": str(len(words.split(" "))),
    }
    done = subprocess.run(ESCROWMQ, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_shells_are_told_what_may_come_next() -> None:
    assert "txn" in completed("")
    assert completed("do") == ["doctor"]
    assert completed("txn ex") == ["explain"]
    assert "--limit" in completed("txn list --l")


def test_one_command_is_loaded_not_all() -> None:
    program = (
        "import sys; from escrowmq.cli.main import app_for; app_for(['status'], {});"
        "print([name for name in sys.modules if name.startswith('escrowmq.cli.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "escrowmq.cli.admin.status" in done.stdout
    assert "commands" not in done.stdout
    assert app_for(["txn"], {}) is not None


def test_asking_a_broker_needs_no_numbers_and_no_loop(broker: InProcessBroker) -> None:
    """A command that only asks a broker does not import slow modules."""
    heavy = ("numpy", "pyarrow", "pandas", "pyspark", "sqlite3", "asyncio", "rich.console")
    program = (
        "import sys; from escrowmq.cli.main import main\n"
        f"try: main(['status', '--broker', {broker.address!r}])\n"
        "except SystemExit as stopped: assert stopped.code == 0\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
