"""``escrowmq backup`` and ``escrowmq restore``: a copy of the data, and data from a copy."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from escrowmq.cli.asking import DEFAULT_BROKER, BrokerOption, DryRunOption, asking, at
from escrowmq.cli.output import Output, OutputOption, show_facts
from escrowmq.model.errors import RequestRefused, StoreCorrupt, StoreUnusable

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.store.backup import Manifest
    from escrowmq.store.disk import File

#: Beside the new data directory, until all of it is there.
UNFINISHED = ".restoring"


def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty.")],
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    data: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Of a broker that is stopped."),
    ] = None,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Copy a broker's data while it runs.

    Run it on the broker's machine, as its user.  All that was acknowledged before it began is in
    the backup.  Exit code 5: there is none, or what was read is damaged.
    """
    from escrowmq.store.backup import refuse_unless_empty
    from escrowmq.store.disk import OsDisk

    refuse_unless_empty(OsDisk(directory, read_only=True))
    if data is not None:
        _of_stopped(data, directory, output, dry_run=dry_run)
        return
    with asking(broker) as calls:

        def copy_meta() -> tuple[Path, Path]:
            from escrowmq.protocol.own import OwnCode

            told = calls.call(OwnCode.COPY_META).header
            return Path(told.data_dir), Path(told.path)

        data, copy = copy_meta()
        if not copy.is_file():
            raise RequestRefused(
                "broker_elsewhere", "run this on its machine, as its user", path=str(copy)
            )
        _back_up(data, directory, lambda: copy_meta()[1], output, dry_run=dry_run)


def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The backup.")],
    *,
    data: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="To be made; new or empty.")
    ],
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Make a data directory from a backup.

    Exit code 5: the backup is damaged or incomplete, or the directory holds something.
    """
    from escrowmq.store import backup as backups
    from escrowmq.store.disk import OsDisk

    source = OsDisk(directory, read_only=True)
    backups.refuse_unless_empty(OsDisk(data, read_only=True))
    if dry_run:
        _show(backups.verify(source), output, "would restore", data)
        return
    # All of it or nothing: whoever is interrupted leaves no data directory that looks whole.
    unfinished = data.absolute().with_name(data.name + UNFINISHED)
    if unfinished.exists():
        raise StoreUnusable(
            "target_not_empty", "a restore was cut short; remove this", path=str(unfinished)
        )
    try:
        manifest = backups.restore(source, OsDisk(unfinished))
        unfinished.rename(data)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    OsDisk(data.absolute().parent).flush_directory("")
    _show(manifest, output, "restored", data)


def _of_stopped(data: Path, directory: Path, output: Output, *, dry_run: bool) -> None:
    from escrowmq.store.backup import META, STORE
    from escrowmq.store.lock import DirectoryLock

    if not (data / STORE).is_dir():
        raise StoreUnusable("store_missing", "there is no store in this directory", path=str(data))
    with DirectoryLock(data):

        def copy_meta() -> Path:
            from escrowmq.store.meta import Meta

            # Opened as the broker does: what a crash left half written is undone first.
            with closing(Meta(data / META)) as meta:
                return meta.copy()

        _back_up(data, directory, copy_meta, output, dry_run=dry_run)


def _back_up(
    data: Path, directory: Path, copy_meta: Callable[[], Path], output: Output, *, dry_run: bool
) -> None:
    from importlib.metadata import version

    from escrowmq.store import backup as backups
    from escrowmq.store import inspect
    from escrowmq.store.disk import OsDisk

    source = OsDisk(data / backups.STORE, read_only=True)
    if dry_run:
        with closing(backups.pin(source)) as pinned:
            size = pinned.log_end - pinned.log_start
        typer.echo(f"would copy {size:,} bytes of log from {data} to {directory}")
        return

    def meta() -> File:
        copy = copy_meta()
        return OsDisk(copy.parent, read_only=True).open(copy.name)

    manifest = backups.take(
        source,
        OsDisk(directory),
        meta,
        now_ms=time.time_ns() // 1_000_000,
        release=version("escrowmq"),
    )
    # As a restore would find it: better now than then.
    report = inspect.check(OsDisk(directory / backups.STORE, read_only=True))
    if report.is_damaged:
        (directory / backups.MANIFEST).unlink()
        raise StoreCorrupt(
            "store_damaged", "run escrowmq store check on the data directory", path=str(data)
        )
    _show(manifest, output, "backed up", directory)


def _show(manifest: Manifest, output: Output, done: str, place: Path) -> None:
    facts: dict[str, Any] = {
        done.replace(" ", "_") if output is not Output.TABLE else done: os.fspath(place),
        "made": at(manifest.made_at_ms),
        "release": manifest.release,
        "log": f"from {manifest.log_start} up to {manifest.log_end}",
        "files": len(manifest.files),
        "bytes": manifest.size,
    }
    show_facts(facts, output)
