"""The process behind ``escrowmq serve``, from its settings until it stops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from escrowmq.broker.access.secret_box import SecretKeeper
from escrowmq.broker.config import AccessConfig, BrokerConfig, TlsConfig, TopicsConfig, WriterConfig
from escrowmq.broker.periodic.backup_schedule import BackupConfig
from escrowmq.broker.server import Server
from escrowmq.broker.watch.alert_config import AlertsConfig
from escrowmq.cli.data.data_directory import refuse_inside_store
from escrowmq.cli.options import LineOutput
from escrowmq.cli.output import print_json_line
from escrowmq.cli.run.look_up_command import ledger_urls, look_up_command
from escrowmq.cli.shapes.tool_shapes import ServeEventShape
from escrowmq.model.clock import SystemClock
from escrowmq.model.errors import RequestRefused
from escrowmq.model.limits_config import LimitsConfig
from escrowmq.store.config import StoreConfig
from escrowmq.transaction.policy import CheckPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.cli.config import Config

#: By ``transaction.checked_by``: why nothing checks transactions while no pipeline runs.
_WAITS = {
    "pipeline": "transaction.checked_by leaves the checks to a pipeline",
    "off": "transaction.checked_by turns the checks off",
}
#: Net new objects before the garbage collector looks for cycles; Python 3.11's default is 700.
COLLECT_AFTER = 5_000


def run(
    data: Path,
    config: Config,
    *,
    insecure: bool,
    is_alone: bool = True,
    output: LineOutput = LineOutput.TABLE,
) -> BaseException | None:
    """Serve until a signal arrives; return why the store failed, or None if it did not."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(data, config, output, insecure=insecure, is_alone=is_alone))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop, or None for Python's own event loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _spare_the_collector() -> None:
    """Collect garbage less often, and skip objects that live as long as the process.

    A request makes a few dozen objects and no cycle. A still higher threshold would let the cycles
    that do occur (a connection and its transport) pile up.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


async def _serve(
    data: Path, config: Config, output: LineOutput, *, insecure: bool, is_alone: bool
) -> BaseException | None:
    server = make_server(data, config, insecure=insecure)
    await server.start()
    _spare_the_collector()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    _say_ready(server, output, is_alone=is_alone)
    stop = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((stop, server.failed), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    failure = server.failed.result() if server.failed.done() else None
    await server.stop()
    return failure


def _say_ready(server: Server, output: LineOutput, *, is_alone: bool) -> None:
    if output is LineOutput.JSON:
        ready = ServeEventShape(
            event="ready",
            at_ms=SystemClock().now_ms(),
            name=server.name_address,
            broker=server.broker_address,
            grpc=server.grpc_address or None,
            http=server.http_address or None,
            pid=os.getpid(),
            has_pipeline=not is_alone,
        )
        print_json_line(ready)
        return
    places = {
        "name": server.name_address,
        "broker": server.broker_address,
        "grpc": server.grpc_address,
        "http": server.http_address,
    }
    told = " ".join(f"{name}={address}" for name, address in places.items() if address)
    typer.echo(f"ready {told} pid={os.getpid()}")
    waits = _WAITS.get(server.broker.leadership.policy.checked_by)
    if is_alone and waits:
        typer.echo(f"undecided transactions wait: {waits}")


def make_server(data: Path, config: Config, *, insecure: bool) -> Server:
    """Make a server; refuse to let other machines in unprotected, unless ``insecure`` is set."""
    broker = config.section(BrokerConfig)
    access, tls = config.section(AccessConfig), config.section(TlsConfig)
    is_protected = access.mode == "on" and tls.mode == "required"
    if not (insecure or is_protected or is_loopback(broker.host)):
        raise RequestRefused(
            "host_insecure",
            "every machine that reaches this address could use the broker: set access.mode to on"
            " and tls.mode to required, listen on 127.0.0.1, or pass --insecure",
            host=broker.host,
        )
    backup = config.section(BackupConfig)
    if backup.is_on:
        refuse_inside_store(data, Path(backup.directory))
    return Server(
        data,
        SystemClock(),
        broker=broker,
        store=config.section(StoreConfig),
        policy=config.section(CheckPolicy),
        topics=config.section(TopicsConfig),
        writer=config.section(WriterConfig),
        limits=config.section(LimitsConfig),
        alerts=config.section(AlertsConfig),
        backup=backup,
        backup_command=(sys.executable, "-m", "escrowmq.cli.data.backup_job"),
        ledgers=ledger_urls(config),
        look_up_command=look_up_command(config),
        tls=tls,
        secrets=SecretKeeper(access.key_file),
        access=replace(access, requires_tls=access.requires_tls and not insecure),
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach it; False for any name except localhost."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
