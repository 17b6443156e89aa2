from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from escrowmq.cli.main import REMEDIES, describe, main
from escrowmq.model.errors import EscrowError, RequestRefused, Unavailable

HEAVY = ("numpy", "pyarrow", "pandas", "pyspark", "sqlite3", "asyncio")


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    return stopped.value.code


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"escrowmq {version('escrowmq')}\n"


def test_the_settings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("config", "show", "--set", "store.durability=os") == 0
    assert "store.durability " in capsys.readouterr().out


def test_the_settings_are_shown_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("config", "show", "-o", "json") == 0
    assert capsys.readouterr().out.startswith("[\n")


def test_an_error_is_one_line_with_code_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("config", "show", "--set", "store.durability=no") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        """escrowmq: bad_config: must be "fsync" or "os": key='store.durability', value='no', """
        "origin='flag'; repeating it unchanged will not help\n"
    )


def test_an_error_stays_on_one_line() -> None:
    assert "\n" not in describe(RequestRefused("bad_config", "two\nlines", value="three\nmore"))


def test_the_remedy_is_that_of_the_nearest_class() -> None:
    class Busy(Unavailable):
        pass

    assert describe(Busy("busy")).endswith(REMEDIES[Unavailable])


def test_an_error_of_no_known_class_has_no_remedy() -> None:
    assert describe(EscrowError("odd")) == "escrowmq: odd"


def test_every_class_of_error_has_a_remedy() -> None:
    assert set(EscrowError.__subclasses__()) - {RequestRefused} <= REMEDIES.keys()


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("nonsense") == 2
    assert "No such command" in capsys.readouterr().err


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", ["['--help']", "['config', 'show']"])
def test_simple_commands_import_nothing_heavy(arguments: str) -> None:
    program = (
        "import sys\n"
        "from escrowmq.cli.main import main\n"
        f"try: main({arguments})\n"
        "except SystemExit as stopped: assert stopped.code == 0\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = run("-c", program)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_python_without_assertions_is_refused() -> None:
    done = run("-O", "-m", "escrowmq.cli.main", "--version")
    assert done.returncode == 2
    assert done.stderr.startswith("escrowmq: asserts_disabled: run Python without -O")
