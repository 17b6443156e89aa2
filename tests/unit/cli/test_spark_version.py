"""The pipeline's commands refuse a Spark release that the pipeline was not tested with."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from escrowmq.cli.main import main
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.spark.start_cache import quick_session
from escrowmq.pipeline.spark.version import require_pipeline_spark

COMMANDS = [
    ("up", "--data-dir", "data"),
    ("pipeline", "--once", "--data-dir", "data"),
    ("audit", "--data-dir", "data"),
    ("demo",),
    ("lake", "query", "SELECT 1", "--data-dir", "data"),
    (
        *("lake", "replay", "--data-dir", "data", "--topic", "a", "--into", "b"),
        *("--from", "2026-11-16T12:00:00Z", "--to", "2026-11-16T13:00:00Z"),
    ),
]

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a Spark package with this ``version.py`` ahead of the installed one."""

    def install(version: str) -> None:
        package = tmp_path / "first" / "pyspark"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise AssertionError('not to be imported')\n")
        (package / "version.py").write_text(version)
        monkeypatch.delitem(sys.modules, "pyspark", raising=False)
        monkeypatch.syspath_prepend(package.parent)

    monkeypatch.chdir(tmp_path)
    return install


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_command_refuses_an_older_spark_before_it_writes_anything(
    command: tuple[str, ...],
    install: Install,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install("__version__: str = '4.2.1'\n")
    with pytest.raises(SystemExit) as stopped:
        main(command)
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert told.startswith("escrowmq: spark_unsupported: ")
    assert 'pip install "escrowmq[spark]"' in told
    assert "found='4.2.1'" in told
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4", "4.2.1", "3.5.0"])
def test_older_releases_are_refused(version: str, install: Install, tmp_path: Path) -> None:
    install(f'__version__ = "{version}"\n')
    with pytest.raises(RequestRefused) as refused:
        require_pipeline_spark()
    assert (refused.value.code, refused.value.fields) == ("spark_unsupported", {"found": version})
    with pytest.raises(RequestRefused):
        quick_session(PipelineConfig(), cache=tmp_path, scratch=tmp_path)


@pytest.mark.parametrize(
    "version",
    [
        "__version__: str = '4.3.0'\n",
        '__version__ = "4.10.0.dev1"\n',
        '__version__ = "5.0.0"\n',
        # A custom build without a version is accepted.
        "",
    ],
)
def test_newer_releases_are_taken(version: str, install: Install) -> None:
    install(version)
    require_pipeline_spark()


def test_the_spark_of_the_extra_is_taken() -> None:
    require_pipeline_spark()


def test_a_spark_in_a_zip_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("pyspark/__init__.py", "")
        file.writestr("pyspark/version.py", '__version__ = "4.1.4"\n')
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(packed)
    with pytest.raises(RequestRefused, match="spark_unsupported"):
        require_pipeline_spark()


def test_a_folder_of_that_name_is_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyspark").mkdir()
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(RequestRefused, match="spark_missing"):
        require_pipeline_spark()
