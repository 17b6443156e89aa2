"""``escrowmq up``: run the broker and the pipeline, each in its own process, until stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from escrowmq.cli.config import load
from escrowmq.cli.data_directory import refuse_foreign_directory
from escrowmq.cli.options import FileOption, SetOption
from escrowmq.cli.output import LineOutput, LineOutputOption, print_json_line
from escrowmq.cli.process_events import process_event
from escrowmq.cli.serve import (
    AdvertiseOption,
    BrokerNameOption,
    ClusterOption,
    DataOption,
    HostOption,
    HttpPortOption,
    InsecureOption,
    LogFormatOption,
    LogLevelOption,
    NamePortOption,
    ParentOption,
    PortOption,
    broker_flags,
    log_flags,
)
from escrowmq.pipeline.config import PipelineConfig, is_local, places_of
from escrowmq.pipeline.spark.version import require_pipeline_spark

if TYPE_CHECKING:
    from escrowmq.cli.starving import Watch
    from escrowmq.cli.supervising import Supervisor

NAME_WIDTH = 9
READY = "ready"
#: By port setting: the name of its address in the broker's ready line.
PORTS = {"name_port": "name", "port": "broker", "http_port": "http"}

#: Niceness of a pipeline that starved for CPU, and how long it keeps that niceness.
STARVED_NICENESS = 5
STARVED_S = 3_600.0


def up(
    *,
    data: DataOption,
    host: HostOption = None,
    name_port: NamePortOption = None,
    port: PortOption = None,
    http_port: HttpPortOption = None,
    advertise_host: AdvertiseOption = None,
    broker_name: BrokerNameOption = None,
    cluster: ClusterOption = None,
    insecure: InsecureOption = False,
    log_format: LogFormatOption = None,
    output: LineOutputOption = LineOutput.TABLE,
    log_level: LogLevelOption = None,
    file: FileOption = None,
    set_: SetOption = None,
    parent: ParentOption = None,
) -> None:
    """Run a broker and its pipeline until SIGTERM or Ctrl-C: all that there is.

    Each runs in its own process, which is restarted when it dies.
    """
    if parent is not None:
        from escrowmq.pipeline.spark.parent import end_with_parent

        end_with_parent(parent)
    flags = broker_flags(host, name_port, port, http_port, advertise_host, broker_name, cluster)
    flags += [*log_flags(log_format, log_level), *(set_ or ())]
    # The children read the config, too; reading it here reports an error at once, and only once.
    config = load(file=file, environ=os.environ, flags=flags).section(PipelineConfig)
    require_pipeline_spark()
    refuse_foreign_directory(data)
    places = places_of(config, data)
    common = ["--data-dir", str(data)]
    common += ["--config", str(file)] if file else []
    for flag in flags:
        common += ["--set", flag]
    say = partial(say_event, output)
    say("up", f"data={data} master={config.master} lake={places.lake}")
    for_broker = ["--insecure"] if insecure else []
    raise typer.Exit(Up(common, for_broker, say, is_watched=may_starve(config)).run())


def may_starve(config: PipelineConfig) -> bool:
    """Return whether the pipeline's priority is so low that it may starve for CPU."""
    return is_local(config.master) and config.niceness > STARVED_NICENESS


def say_event(output: LineOutput, name: str, text: str) -> None:
    """Print one event as one line."""
    if output is LineOutput.JSON:
        print_json_line(process_event(name, text))
    else:
        typer.echo(f"{name:{NAME_WIDTH}} {text}")


class Up:
    """Supervises a broker, and a pipeline that gets the broker's address."""

    def __init__(
        self,
        common: Sequence[str],
        for_broker: Sequence[str],
        say: Callable[[str, str], None],
        *,
        is_watched: bool,
    ) -> None:
        from escrowmq.cli.supervising import Child, Supervisor

        self._say = say
        self._common = common
        self._for_broker = for_broker
        #: The broker's last addresses, by their names in its ready line.
        self._places: dict[str, str] = {}
        #: The broker address that the pipeline was started with.
        self._told = ""
        self._broker = Child(
            name="broker", command=self._broker_command, on_line=self._on_broker, is_vital=True
        )
        self._pipeline = Child(
            name="pipeline",
            command=self._pipeline_command,
            on_line=self._on_pipeline,
            on_look=self._look_at_pipeline if is_watched else None,
        )
        self._watch: Watch | None = None
        #: Until when the pipeline runs at ``STARVED_NICENESS``; 0 for the configured niceness.
        self._starved_until_s = 0.0
        self._supervisor: Supervisor = Supervisor((self._broker, self._pipeline), say)

    def run(self) -> int:
        """Run until the end; return the exit code."""
        return self._supervisor.run()

    def _broker_command(self) -> list[str]:
        command = [*_ours("serve"), *self._common, *self._for_broker]
        # After a restart, reuse the previous ports: clients and the pipeline know them. If another
        # process has taken one, every second attempt uses the configured ports again.
        if self._broker.refusals % 2 == 0:
            for setting, place in PORTS.items():
                if place in self._places:
                    port = self._places[place].rpartition(":")[2]
                    command += ["--set", f"broker.{setting}={port}"]
        return command

    def _on_broker(self, line: str) -> bool:
        word, _, facts = line.partition(" ")
        if word != READY:
            return False
        self._say("broker", line)
        self._places = dict(fact.split("=", 1) for fact in facts.split())
        if self._told not in ("", self._places["broker"]):
            self._supervisor.restart(self._pipeline)
        return True

    def _pipeline_command(self) -> list[str] | None:
        if not self._places:
            return None
        self._told = self._places["broker"]
        command = [*_ours("pipeline"), *self._common, "--brokers", self._told]
        if self._starved_until_s:
            command += ["--set", f"pipeline.niceness={STARVED_NICENESS}"]
        return command

    def _on_pipeline(self, line: str) -> bool:
        self._say("pipeline", line)
        return line.startswith(f"{READY} ")

    def _look_at_pipeline(self, pid: int) -> None:
        from escrowmq.cli.starving import Watch

        now_s = time.monotonic()
        if self._starved_until_s:
            if now_s >= self._starved_until_s:
                self._starved_until_s = 0.0
                self._say("pipeline", "steps back again")
                self._supervisor.restart(self._pipeline)
            return
        if self._watch is None or self._watch.pid != pid:
            self._watch = Watch(pid)
        share = self._watch.starved(now_s)
        if share is not None:
            self._starved_until_s = now_s + STARVED_S
            self._say(
                "pipeline",
                f"starved, waited={share.waited_s:.0f}s ran={share.ran_s:.1f}s; "
                f"niceness={STARVED_NICENESS} for {STARVED_S:g} s",
            )
            # A starving process gets no CPU time for an orderly exit.
            self._supervisor.restart(self._pipeline, signal.SIGKILL)


def _ours(command: str) -> list[str]:
    """Return the command line of one of our commands as a child of this process."""
    program = [sys.executable, "-m", "escrowmq.cli.main"]
    return [*program, command, "--parent", str(os.getpid())]
