"""Each peer is built once, into ``build/interop``, under a name derived from its sources.

An interrupted build leaves no directory with the final name, so an existing one is complete. A
missing tool raises an error that names it; nothing here is ever skipped.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.errors import BuildFailed, ToolMissing

HERE = Path(__file__).parent
PEERS = HERE / "peers"
CACHE = HERE.parents[1] / "build" / "interop"
BUILD_TIMEOUT_S = 900
FINGERPRINT_CHARS = 16

JAVA_4 = "4.9.8"
JAVA_5 = "5.5.0"
WHEEL = "rocketmq==0.4.4"
PYTHON5 = "rocketmq-python-client==5.1.2"
JAVA_GRPC = "5.2.0"


def java_peer(version: str) -> Path:
    """Return a directory with ``classes`` and ``lib``."""
    source = PEERS / "java"
    return _built(
        f"java-{version}",
        source,
        version,
        lambda place: _maven(
            source, place, version, "dependency:copy-dependencies", "compiler:compile"
        ),
    )


def apache(version: str) -> Path:
    """Return a directory with the ``lib`` of a name server and a broker."""
    source = PEERS / "apache"
    return _built(
        f"apache-{version}",
        source,
        version,
        lambda place: _maven(source, place, version, "dependency:copy-dependencies"),
    )


def apache_proxy(version: str) -> Path:
    """Return a directory with the ``lib`` of a name server, and of a broker with its gRPC proxy."""
    source = PEERS / "apache_proxy"
    return _built(
        f"apache-proxy-{version}",
        source,
        version,
        lambda place: _maven(source, place, version, "dependency:copy-dependencies"),
    )


def go_peer() -> Path:
    """Return a directory with the program ``driver``."""
    return _go_program("go", "the Go peer")


def h2spec() -> Path:
    """Return a directory with the program ``driver``, which runs h2spec."""
    return _go_program("h2spec", "h2spec")


def _go_program(name: str, what: str) -> Path:
    source = PEERS / name
    return _built(
        name,
        source,
        "",
        lambda place: _run("go", ["build", "-o", str(place / "driver"), "."], source, what),
    )


def wheel_peer() -> Path:
    """Return a virtual environment with the wheel and nothing else."""
    return _built(
        "wheel",
        PEERS / "cpp_wheel",
        WHEEL,
        lambda place: _make_environment(place, ["--no-deps", WHEEL], "the wheel's environment"),
    )


def python5_peer() -> Path:
    """Return a virtual environment with RocketMQ's own 5.x Python client."""
    return _built(
        "python5",
        PEERS / "python5",
        PYTHON5,
        lambda place: _make_environment(place, [PYTHON5], "the 5.x Python client's environment"),
    )


def java5_peer() -> Path:
    """Return a directory with ``classes`` and ``lib`` of RocketMQ's own 5.x Java client."""
    source = PEERS / "java5"
    goals = ("dependency:copy-dependencies", "compiler:compile")
    return _built(
        "java5", source, JAVA_GRPC, lambda place: _maven(source, place, JAVA_GRPC, *goals)
    )


def go5_peer() -> Path:
    """Return a directory with the program ``driver`` around RocketMQ's own 5.x Go client."""
    return _go_program("go5", "the 5.x Go peer")


def node5_peer() -> Path:
    """Return a directory with ``driver.js`` and the packages that it needs."""
    source = PEERS / "node5"
    return _built("node5", source, "", lambda place: _npm(source, place))


def node() -> str:
    return _tool("node", "the 5.x Node.js peer")


def java() -> str:
    return _tool("java", "a Java peer")


def _make_environment(place: Path, packages: list[str], what: str) -> None:
    python = sys.executable
    # A copied Python would look for its library in the old place after the directory is renamed.
    _run(python, ["-m", "venv", "--symlinks", str(place)], place, what)
    # Isolated from this process's path, where pip would find packages and not install them.
    pip = ["-I", "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *packages]
    _run(str(place / "bin" / "python"), pip, place, what)


def _npm(source: Path, place: Path) -> None:
    shutil.copytree(source, place, dirs_exist_ok=True)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    _run("npm", ["ci", *options], place, "the 5.x Node.js peer")


def _maven(source: Path, place: Path, version: str, *goals: str) -> None:
    options = ["-B", "-q", f"-Drocketmq.version={version}", f"-Dpeer.build={place}"]
    _run("mvn", [*options, *goals], source, f"RocketMQ {version}")


def _run(tool: str, arguments: list[str], directory: Path, what: str) -> None:
    done = subprocess.run(
        [_tool(tool, what), *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise BuildFailed(what, done.stdout)


def _tool(name: str, needed_for: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(name, needed_for)
    return found


def _built(name: str, source: Path, extra: str, build: Callable[[Path], None]) -> Path:
    place = CACHE / f"{name}-{_fingerprint(source, extra)}"
    with _lock(name):
        if not place.exists():
            unfinished = Path(tempfile.mkdtemp(prefix=f"{name}-", suffix=".part", dir=CACHE))
            try:
                build(unfinished)
                _remove_older(name)
                unfinished.rename(place)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return place


def _remove_older(name: str) -> None:
    """Remove builds of older versions of the sources."""
    for old in CACHE.glob(f"{name}-{'[0-9a-f]' * FINGERPRINT_CHARS}"):
        shutil.rmtree(old)


def _fingerprint(source: Path, extra: str) -> str:
    digest = hashlib.sha256(extra.encode())
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        if "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(source)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:FINGERPRINT_CHARS]


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Let only one of two concurrent runs build a peer."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
