"""``escrowmq cert make``: its files, whom they serve, and that it replaces none."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest

from escrowmq import AsyncProducer, Tls
from escrowmq.cli.main import main
from tests.unit.broker.wire import serving


def cert_make(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["cert", "make", *map(str, words)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


async def test_broker_and_client_use_what_it_made(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    assert await asyncio.to_thread(cert_make, folder, "--client", "orders") == 0
    fields = {
        "mode": "required",
        "cert_file": str(folder / "server.pem"),
        "key_file": str(folder / "server-key.pem"),
        "ca_file": str(folder / "ca.pem"),
    }
    tls = Tls(
        ca_file=folder / "ca.pem",
        cert_file=folder / "orders.pem",
        key_file=folder / "orders-key.pem",
    )
    async with (
        serving(tmp_path / "data", tls=fields) as server,
        AsyncProducer(server.name_address, "pay", tls=tls) as producer,
    ):
        await producer.send("orders", b"1")
        names = {name for one in server._connections for name in one.certificate_names}
        assert names == {"CN:orders"}


def test_only_the_owner_reads_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    assert cert_make(folder, "--client", "a") == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    made = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    names = ("ca", "ca-key", "server", "server-key", "a", "a-key")
    assert made == {f"{name}.pem": 0o600 for name in names}


def test_clients_are_added_and_no_file_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cert_make(tmp_path, "--host", "192.0.2.7", "--host", "mq.example.org") == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    assert cert_make(tmp_path, "--client", "late", "-o", "json") == 0
    (made,) = json.loads(capsys.readouterr().out)
    assert made["name"] == "late"
    for words in (
        ("--client", "late"),
        ("--host", "192.0.2.8"),
        ("--client", "x", "--client", "late"),
    ):
        assert cert_make(tmp_path, *words) == 2
        assert "file_exists" in capsys.readouterr().err
    assert not (tmp_path / "x.pem").exists()
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a b", "ca", "server", "x" * 65, "é"])
def test_a_name_that_is_no_file_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cert_make(tmp_path / "pki", "--client", name) == 2
    assert "bad_option" in capsys.readouterr().err
    assert not (tmp_path / "pki").exists()
