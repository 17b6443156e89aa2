"""Parse, verify and run the systemd unit and the container file of the examples.

No container engine is needed: the tests run the container's command as its user and send its
stop signal.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from escrowmq.cli.main import EXITS
from escrowmq.model.errors import RequestRefused, StoreCorrupt, StoreUnusable
from tests.unit.repository import ROOT

UNIT = ROOT / "examples/deploy/escrowmq.service"
CONTAINER = ROOT / "examples/deploy/Containerfile"
#: User id in the container file. The unit's user has a different id on each machine.
UID = 10_001
WAIT_S = 60
#: The user's only capability: it may read every file, because Python may be in a home directory.
READS = "-all,+dac_read_search"
AS_USER = (
    *("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--no-new-privs"),
    *(f"--bounding-set={READS}", f"--inh-caps={READS}", f"--ambient-caps={READS}"),
)
ANY_PORT = ("--port", "0", "--name-port", "0", "--grpc-port", "-1")


def unit() -> dict[str, dict[str, list[str]]]:
    """Return the unit's sections with their keys and values; a key may be repeated."""
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return found


def instructions() -> dict[str, list[str]]:
    """Return the container file's instructions, with continued lines joined."""
    text = CONTAINER.read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found.setdefault(name, []).append(rest.strip())
    return found


def exec_form(text: str) -> list[str]:
    assert re.fullmatch(r"\[.*\]", text), "the shell form would swallow signals"
    return re.findall(r'"([^"]*)"', text)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """systemd reports no problem if the unit's program exists."""
    program = shutil.which("systemd-analyze")
    text = UNIT.read_text(encoding="utf-8")
    if program is None:
        # Without systemd, the tests below still check the unit's keys.
        assert "ExecStart=" in text
        return
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/opt/escrowmq/bin/escrowmq", sys.executable), encoding="utf-8")
    done = subprocess.run(
        [program, "verify", str(copy)], capture_output=True, text=True, check=False
    )
    about_it = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, about_it) == (0, []), done.stderr


def test_the_unit_stops_it_in_order_and_restarts_only_what_may_succeed() -> None:
    service = unit()["Service"]
    assert service["KillMode"] == ["mixed"]
    # systemd sends SIGTERM by default, and `up` handles it.
    assert "KillSignal" not in service
    refused = {EXITS[kind] for kind in (RequestRefused, StoreCorrupt, StoreUnusable)}
    assert set(map(int, service["RestartPreventExitStatus"][0].split())) == refused
    assert service["NoNewPrivileges"] == ["yes"]
    assert service["User"] != ["root"]
    data = shlex.split(service["ExecStart"][0])[3]
    assert data == f"/var/lib/{service['StateDirectory'][0]}"


def as_user(command: list[str], data: Path, home: Path) -> subprocess.Popen[str]:
    """Run the command as an unprivileged user, with the service's umask and no terminal."""
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(data, UID, UID)
    return subprocess.Popen(
        [*AS_USER, *command] if is_root else command,
        umask=0o027,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a directory that another user can reach, because pytest's own is private."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="escrowmq-deploy-") as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101 - the service's user must reach it
        data = Path(folder) / "data"
        data.mkdir(mode=0o750)
        yield data


@contextmanager
def running(command: list[str], data: Path) -> Iterator[subprocess.Popen[str]]:
    process = as_user(command, data, data)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if " ready name=" in line:
                break
        else:
            assert process.stderr is not None
            pytest.fail(process.stderr.read())
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT_S)


def up_command(arguments: list[str], data: Path) -> list[str]:
    """Return the command with a stand-in for the pipeline, any free ports and this data."""
    replaced = [
        str(data) if word.startswith(("/var/lib/", "/data")) else word for word in arguments
    ]
    return [sys.executable, "-m", "tests.unit.cli.up_stand_in", *replaced, *ANY_PORT]


def check_private(data: Path) -> None:
    """Check that the user owns every file, and that others cannot access any."""
    owner = UID if os.geteuid() == 0 else os.geteuid()
    for path in data.rglob("*"):
        found = path.lstat()
        assert found.st_uid == owner, path
        assert not stat.S_IMODE(found.st_mode) & stat.S_IRWXO, path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_units_command_runs_as_its_user_and_ends_by_signals(
    place: Path, number: signal.Signals
) -> None:
    program, command, *arguments = shlex.split(unit()["Service"]["ExecStart"][0])
    assert (Path(program).name, command) == ("escrowmq", "up")
    # The operator provides the settings file.
    config = place.parent / "escrowmq.toml"
    config.write_text("[store]\nretention_ms = 259200000\n", encoding="utf-8")
    config.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(config, UID, UID)
    arguments[arguments.index("--config") + 1] = str(config)
    with running(up_command(arguments, place), place) as process:
        process.send_signal(number)
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
    check_private(place)


def test_the_containers_command_runs_without_root_and_ends_by_its_signal(place: Path) -> None:
    given = instructions()
    assert given["USER"] == ["escrowmq"]
    assert f"--uid {UID} " in given["RUN"][0]
    assert exec_form(given["ENTRYPOINT"][0]) == ["escrowmq"]
    command, *arguments = exec_form(given["CMD"][0])
    assert command == "up"
    arguments = ["0" if word == "9880" else word for word in arguments]
    advertised = ["--advertise-host", "127.0.0.1"]
    with running(up_command([*arguments, *advertised], place), place) as process:
        process.send_signal(signal.Signals[given["STOPSIGNAL"][0]])
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
    check_private(place)


def test_the_container_without_an_address_to_tell_says_so(place: Path) -> None:
    _, *arguments = exec_form(instructions()["CMD"][0])
    words = [str(place) if word == "/data" else word for word in arguments]
    command = [sys.executable, "-m", "escrowmq.cli.main", "serve", *words, *ANY_PORT]
    process = as_user(command, place, place)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == EXITS[RequestRefused]
    assert "host_illegal" in errors
    assert "broker.advertise_host" in errors


def test_a_data_directory_of_another_user_is_refused_in_one_line(place: Path) -> None:
    if os.geteuid() != 0:
        place.chmod(0o500)
    command = [sys.executable, "-m", "escrowmq.cli.main", "serve", "--data-dir"]
    # The parent directory belongs to root, or the directory itself is read-only.
    target = place.parent / "other" if os.geteuid() == 0 else place
    process = as_user([*command, str(target), *ANY_PORT], place, place)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == EXITS[StoreUnusable]
    assert errors.count("\n") == 1
    assert "Traceback" not in errors


def test_ports_and_probes_of_the_container_are_those_of_its_command() -> None:
    given = instructions()
    exposed = set(given["EXPOSE"][0].split())
    command = exec_form(given["CMD"][0])
    assert command[command.index("--http-port") + 1] in exposed
    assert {"9876", "10911"} <= exposed
    assert "9880/healthz" in given["HEALTHCHECK"][0]
    assert given["VOLUME"] == ["/data"]
    assert command[command.index("--data-dir") + 1] == "/data"
