"""Time a new user's first steps one by one, without downloads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.figures.common import report

ROOT = Path(__file__).resolve().parents[2]
#: Kept between runs, so that a second run downloads nothing.
WHEELS = ROOT / "build" / "first-hour"
PROGRAM = Path(__file__).with_name("first_message.py")
_MB = 1_000_000
_PINNED = re.compile(r"^([\w.-]+(?:\[[\w,-]+\])?==[^\s\\]+)((?:\s*;[^\\]*)?)")
_STOP_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to install EscrowMQ and to start a broker."""

    name: str
    extra: str
    #: The longest it may take, without downloads.
    bar_s: float
    command: str
    #: Pattern of the output line that says that everything is ready.
    ready: str


PLAIN = Way(name="without_spark", extra="", bar_s=30.0, command="serve", ready=r"name=(\S+)")
SPARK = Way(name="with_spark", extra="spark", bar_s=90.0, command="up", ready=r"^pipeline +ready")


def measure(way: Way, folder: Path) -> None:
    """Report how long this way takes, and how much it downloads."""
    folder = folder.resolve()
    wheels = download(way)
    steps: dict[str, float] = {}
    clone = folder / "escrowmq"
    with timed(steps, "clone"):
        # Without hard links, because a user's clone writes its files too.
        run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(clone)], folder)
    environ = offline(wheels, folder)
    bin_folder = folder / "venv" / "bin"
    with timed(steps, "environment"):
        run([sys.executable, "-m", "venv", str(folder / "venv")], folder)
    with timed(steps, "install"):
        given = f"{clone}[{way.extra}]" if way.extra else str(clone)
        run([str(bin_folder / "pip"), "install", "--quiet", given], folder, environ)
    with broker(way, bin_folder, folder, environ, steps) as name_server, timed(steps, "message"):
        words = [str(bin_folder / "python"), str(PROGRAM), name_server]
        state = run(words, folder, environ).strip()
        assert state == "committed", state
    total_s = sum(steps.values())
    shown = {name: round(taken_s, 2) for name, taken_s in steps.items()}
    report(f"first_message_{way.name}", total_s, "s", bar=way.bar_s, steps=shown)
    packages = sum(file.stat().st_size for file in wheels.iterdir())
    repository = sum(file.stat().st_size for file in clone.glob(".git/objects/pack/*"))
    report(
        f"downloaded_{way.name}",
        (packages + repository) / _MB,
        "MB",
        packages_mb=round(packages / _MB, 1),
        repository_mb=round(repository / _MB, 1),
        files=len(list(wheels.iterdir())),
    )


@contextmanager
def timed(steps: dict[str, float], name: str) -> Iterator[None]:
    """Record how long a step takes."""
    since_s = time.perf_counter()
    yield
    steps[name] = time.perf_counter() - since_s


def run(words: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None) -> str:
    """Run a command to its end; return its output."""
    return subprocess.run(  # noqa: S603 -- our own commands
        words, cwd=folder, env=environ, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def offline(wheels: Path, folder: Path) -> dict[str, str]:
    """Environment in which pip finds packages only in `wheels`, and caches are empty."""
    return os.environ | {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def download(way: Way) -> Path:
    """Download the packages of this way in their locked versions."""
    wheels = WHEELS / way.name
    wheels.mkdir(parents=True, exist_ok=True)
    constraints = WHEELS / "constraints.txt"
    lock = (ROOT / "requirements" / "spark.txt").read_text(encoding="utf-8")
    constraints.write_text("\n".join(pinned(lock)) + "\n", encoding="utf-8")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    words += ["--dest", str(wheels), "--constraint", str(constraints), *wanted(way.extra)]
    run(words, ROOT)
    return wheels


def pinned(lock: str) -> list[str]:
    """Versions in a lock file, without their hashes."""
    found = [_PINNED.match(line) for line in lock.splitlines()]
    return [f"{one[1]}{one[2].rstrip()}" for one in found if one is not None]


def wanted(extra: str) -> list[str]:
    """Packages that pip needs to install a clone: dependencies and build requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names: list[str] = [*project["project"]["dependencies"], "hatchling"]
    if extra:
        names += [*project["project"]["optional-dependencies"][extra], "setuptools", "wheel"]
    return names


@contextmanager
def broker(
    way: Way, bin_folder: Path, folder: Path, environ: Mapping[str, str], steps: dict[str, float]
) -> Iterator[str]:
    """Start a broker, wait until it is ready, and give the address of its name server."""
    words = [str(bin_folder / "escrowmq"), way.command, "--data-dir", str(folder / "data")]
    words += ["--port", "0", "--name-port", "0", "--grpc-port", "-1", "--http-port", "0"]
    with timed(steps, "broker"):
        process = subprocess.Popen(  # noqa: S603 -- our own command
            words, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        name_server = await_ready(process.stdout, way.ready)
    try:
        yield name_server
    finally:
        process.terminate()
        process.communicate(timeout=_STOP_S)


def await_ready(lines: IO[str], ready: str) -> str:
    """Read until everything is ready; return the address of the name server."""
    name_server = ""
    for line in lines:
        if found := re.search(r"name=(\S+)", line):
            name_server = found[1]
        if name_server and re.search(ready, line):
            return name_server
    raise RuntimeError("the broker ended before it was ready")
