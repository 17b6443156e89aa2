"""The wheel contains the product and its types, and the deployment examples match it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.unit.repository import PACKAGE, ROOT, SOURCE

DEPLOY = ROOT / "examples" / "deploy"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build sdist and wheel with the locked build tools, so that no network is needed."""
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def wheel_names(built: Path) -> set[str]:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        return set(wheel.namelist())


def metadata(built: Path) -> Message:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
        return message_from_bytes(wheel.read(name))


def test_the_wheel_holds_the_package_with_its_types_and_licence_and_nothing_else(
    built: Path,
) -> None:
    ours = {
        path.relative_to(SOURCE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = wheel_names(built)
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == ours | {"pyspark_escrowmq.py"}
    assert "escrowmq/py.typed" in packed
    about = {name.partition(".dist-info/")[2] for name in names - packed}
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


def test_the_sdist_holds_what_is_needed_to_build_and_test(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = {"LICENSE", "Makefile", "README.md", "pyproject.toml", "src/escrowmq/py.typed"}
    assert needed <= names
    assert "tests/golden/v1/format" in names
    tops = {name.partition("/")[0] for name in names}
    assert not {name for name in tops if name.startswith(".")} - {".gitignore"}


def test_the_metadata_of_the_package_are_true(built: Path) -> None:
    told = metadata(built)
    assert told["License-Expression"] == "Apache-2.0"
    assert set(told.get_all("Provides-Extra", [])) == {"dev", "postgres", "spark", "sql"}
    assert "Typing :: Typed" in told.get_all("Classifier", [])
    needed = [need for need in told.get_all("Requires-Dist", []) if "extra ==" not in need]
    heavy = re.compile(r"pyspark|sqlalchemy|pandas|pytest", re.IGNORECASE)
    assert [need for need in needed if heavy.match(need)] == []
    # The project has no known address, so the metadata names none.
    assert told.get_all("Project-URL") is None


@pytest.mark.parametrize("name", ["escrowmq.service", "Containerfile"])
def test_an_example_of_deploying_calls_the_command_as_it_is(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    if name == "Containerfile":
        words = re.findall(r'"([^"]+)"', re.findall(r"^CMD \[(.*)\]$", text, re.MULTILINE)[-1])
    else:
        words = shlex.split(re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)[0])[1:]
    command, flags = words[0], {word for word in words if word.startswith("--")}
    done = subprocess.run(
        [sys.executable, "-m", "escrowmq.cli.main", command, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"COLUMNS": "200"},
    )
    assert flags <= set(re.findall(r"--[a-z-]+", done.stdout))
