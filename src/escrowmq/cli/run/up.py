"""``escrowmq up``: run the broker and the pipeline, each in its own process, until stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import typer

from escrowmq.broker.config import AccessConfig, TlsConfig
from escrowmq.cli.data.data_directory import refuse_foreign_directory
from escrowmq.cli.options import LineOutput, grouped
from escrowmq.cli.output import print_json_line
from escrowmq.cli.run.process_events import process_event
from escrowmq.cli.run.process_options import (
    BrokerOptions,
    trust_served_certificate,
    use_local_admin,
)
from escrowmq.pipeline.config import PipelineConfig, is_local, places_of
from escrowmq.pipeline.spark.version import require_pipeline_spark
from escrowmq.supervise.starving import StarvationWatch
from escrowmq.supervise.supervising import Child, Supervisor

NAME_WIDTH = 9
READY = "ready"
#: By port setting: the name of its address in the broker's ready line.
PORTS = {"name_port": "name", "port": "broker", "grpc_port": "grpc", "http_port": "http"}

#: Niceness of a pipeline that starved for CPU, and how long it keeps that niceness.
STARVED_NICENESS = 5
STARVED_S = 3_600.0


@grouped
def up(given: BrokerOptions) -> None:
    """Run a broker and its pipeline until SIGTERM or Ctrl-C.

    Each runs in its own process, which is restarted when it dies.
    """
    given.end_with_parent()
    # The children read the config, too; reading it here reports an error at once, and only once.
    loaded = given.load(given.flags)
    config = loaded.section(PipelineConfig)
    trust_served_certificate(loaded.section(TlsConfig), given.data)
    use_local_admin(loaded.section(AccessConfig), given.data)
    require_pipeline_spark()
    refuse_foreign_directory(given.data)
    places = places_of(config, given.data)
    common = ["--data-dir", str(given.data)]
    common += ["--config", str(given.file)] if given.file else []
    for flag in given.flags:
        common += ["--set", flag]
    say = partial(say_event, given.output)
    say("up", f"data={given.data} master={config.master} lake={places.lake}")
    for_broker = ["--insecure"] if given.insecure else []
    raise typer.Exit(UpSupervisor(common, for_broker, say, is_watched=may_starve(config)).run())


def may_starve(config: PipelineConfig) -> bool:
    """Return whether the pipeline's priority is so low that it may starve for CPU."""
    return is_local(config.master) and config.niceness > STARVED_NICENESS


def say_event(output: LineOutput, name: str, text: str) -> None:
    """Print one event as one line."""
    if output is LineOutput.JSON:
        print_json_line(process_event(name, text))
    else:
        typer.echo(f"{name:{NAME_WIDTH}} {text}")


class UpSupervisor:
    """Supervises a broker, and a pipeline that gets the broker's address."""

    def __init__(
        self,
        common: Sequence[str],
        for_broker: Sequence[str],
        say: Callable[[str, str], None],
        *,
        is_watched: bool,
    ) -> None:
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
        self._watch: StarvationWatch | None = None
        #: Until when the pipeline runs at ``STARVED_NICENESS``; 0 for the configured niceness.
        self._starved_until_s = 0.0
        self._supervisor: Supervisor = Supervisor((self._broker, self._pipeline), say)

    def run(self) -> int:
        """Run the processes until a signal or a failure; return the exit code."""
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
        now_s = time.monotonic()
        if self._starved_until_s:
            if now_s >= self._starved_until_s:
                self._starved_until_s = 0.0
                self._say("pipeline", "has its configured niceness again")
                self._supervisor.restart(self._pipeline)
            return
        if self._watch is None or self._watch.pid != pid:
            self._watch = StarvationWatch(pid)
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
    return [sys.executable, "-m", "escrowmq.cli.main", command, "--parent", str(os.getpid())]
