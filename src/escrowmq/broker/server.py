"""A running broker: data directory, sockets and periodic work.

The server binds its sockets first, because stored messages contain the broker's address. It accepts
clients only after the store has recovered.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

from escrowmq.broker.access.secret_box import SecretKeeper
from escrowmq.broker.access.serving import AccessServing
from escrowmq.broker.broker import Broker
from escrowmq.broker.checks.look_up_process import LookUpProcess
from escrowmq.broker.config import (
    OFF,
    AccessConfig,
    BrokerConfig,
    Identity,
    TlsConfig,
    TopicsConfig,
    WriterConfig,
)
from escrowmq.broker.grpc.serving import GrpcServing
from escrowmq.broker.native.status import StartFindings, Vitals
from escrowmq.broker.net.connection import ClientConnection
from escrowmq.broker.net.doors import Doors, hang_up
from escrowmq.broker.net.http import HttpConnections
from escrowmq.broker.net.http_admission import HttpAdmission
from escrowmq.broker.net.limits import ConnectionLimits
from escrowmq.broker.net.listening import (
    ACCEPT_TURNS,
    address_to_tell,
    bound_socket,
    local_address,
    open_files_max,
)
from escrowmq.broker.net.opening import Openings
from escrowmq.broker.net.tls import ServerTls, id_key
from escrowmq.broker.pages.server_pages import server_pages
from escrowmq.broker.periodic.background import PeriodicTasks
from escrowmq.broker.periodic.backup_schedule import BackupConfig
from escrowmq.broker.state.catalog_opening import open_catalog
from escrowmq.broker.state.groups import Groups
from escrowmq.broker.state.topics import Topics
from escrowmq.broker.watch.alert_config import AlertsConfig
from escrowmq.broker.watch.watch import OperatorServices
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.broker.write.writer import Writer
from escrowmq.model.clock import Clock, read
from escrowmq.model.errors import Unavailable
from escrowmq.model.limits_config import LimitsConfig
from escrowmq.protocol.message.ids import format_address, pack_host
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.disk.lock import DirectoryLock
from escrowmq.store.meta.meta import Meta
from escrowmq.store.recovery.recovery import start_store
from escrowmq.transaction.policy import CheckPolicy

STORE = "store"
META = "meta.db"
SWEEP_S = 10.0
OFFSETS_S = 5.0
#: Precision of the end of long pulls and of delayed messages.
TICK_S = 0.05
RETAIN_S = 10.0
EXPIRE_S = 60.0
#: Precision of the timeouts of stalled connections.
STALLED_S = 1.0
#: Pause between two looks at the disk; short, because other programs may fill it, too.
SPACE_S = 0.2
#: The longest delay before a wrong clock is noticed.
CLOCK_S = 1.0
#: The longest delay before a due check is noticed, unless the broker rests after a long round.
CHECK_S = 0.25
#: How often the broker looks whether to probe the ledgers.
PROBE_S = 1.0
#: How often the broker looks for a new certificate.
TLS_S = 2.0
#: The longest time for which requests of a user may wait that are not allowed any more.
ACCESS_S = 0.5
#: How long peers may take to read the last answers when the broker stops.
HANG_UP_S = 1.0
#: Open files that are reserved for the store and for connections beyond the limit.
FILES_RESERVED = 1_024


class Server:
    """Owns all parts of a broker: ``start`` it, wait for ``failed`` or a signal, ``stop`` it."""

    def __init__(
        self,
        data: Path,
        clock: Clock,
        *,
        broker: BrokerConfig,
        store: StoreConfig,
        policy: CheckPolicy,
        topics: TopicsConfig,
        writer: WriterConfig,
        limits: LimitsConfig | None = None,
        alerts: AlertsConfig | None = None,
        backup: BackupConfig | None = None,
        backup_command: Sequence[str] = (),
        ledgers: Mapping[str, str] | None = None,
        look_up_command: Sequence[str] = (),
        tls: TlsConfig | None = None,
        secrets: SecretKeeper | None = None,
        access: AccessConfig | None = None,
    ) -> None:
        self._data = data
        self._clock = clock
        self._config = broker
        self._store_config = store
        self._policy = policy
        self._topics_config = topics
        self._writer_config = writer
        self._limits_config = limits or LimitsConfig()
        self._secrets = secrets or SecretKeeper()
        self._access = AccessServing(access or AccessConfig(), data, self._secrets, clock)
        self._watch = OperatorServices(
            alerts=alerts or AlertsConfig(),
            backup=backup or BackupConfig(),
            backup_command=backup_command,
            name=broker.name,
        )
        #: None if the broker looks no ledger up: none is configured, or the broker never checks.
        self._look_ups: LookUpProcess | None = None
        if ledgers and policy.checked_by in ("auto", "broker"):
            self._look_ups = LookUpProcess(look_up_command, ledgers)
        self._connections: set[ClientConnection] = set()
        #: None until ``stop`` closes the connections, and set when the last one has closed.
        self._all_gone: asyncio.Event | None = None
        #: Limits that all connections share, and how often each of them was reached.
        self.limits = ConnectionLimits(broker)
        self._connections_max = broker.connections_max
        self.tls = ServerTls(tls or TlsConfig(), data)
        openings = Openings(self.tls, self.limits)
        #: None if gRPC is off.
        self._grpc = None if broker.grpc_port == OFF else GrpcServing(broker, openings)
        self._background = PeriodicTasks(lambda: self.broker.clock.now_ms())  # noqa: PLW0108 - not yet
        admission = HttpAdmission(self._access.is_on, lambda: self._access.gate)
        pages = HttpConnections(server_pages(self, lambda: self._broker, broker), admission)
        make = partial(ClientConnection, self.limits, self, self._access)
        self._doors = Doors(openings, make, pages, self._has_room)
        self._lock: DirectoryLock | None = None
        self._meta: Meta | None = None
        self._writer: Writer | None = None
        self._broker: Broker | None = None
        self.name_address = self.broker_address = ""
        #: Empty if HTTP is off.
        self.http_address = ""

    @property
    def broker(self) -> Broker:
        """The broker, once started."""
        assert self._broker is not None
        return self._broker

    @property
    def grpc_address(self) -> str:
        """Where gRPC clients connect; empty if gRPC is off."""
        return "" if self._grpc is None else self._grpc.address

    @property
    def failed(self) -> asyncio.Future[BaseException]:
        """Done once the store has failed: the process must stop."""
        assert self._writer is not None
        return self._writer.failed

    async def start(self) -> None:
        """Recover the store, then accept clients."""
        config = self._config
        advertised = address_to_tell(config)
        self._connections_max = min(config.connections_max, open_files_max() - FILES_RESERVED)
        self._lock = DirectoryLock(self._data)
        sockets: list[socket.socket] = []
        try:
            sockets.append(bound_socket(config.host, config.name_port))
            sockets.append(bound_socket(config.host, config.port))
            name_port, port = (one.getsockname()[1] for one in sockets)
            self.name_address = format_address(advertised, name_port)
            self.broker_address = format_address(advertised, port)
            if self._grpc is not None:
                self._grpc.bind(advertised)
            await asyncio.to_thread(self.tls.load, advertised, read(self._clock).wall_ms)
            if config.http_port != OFF:
                http_port = await self._doors.open_http(config.host, config.http_port)
                self.http_address = format_address(advertised, http_port)
            self._broker = await self._recover(pack_host(advertised, port))
            if self._grpc is not None:
                self._grpc.start(self.broker.serve_grpc)
            await self._doors.open_remoting(sockets)
        except BaseException:
            for bound in sockets:
                bound.close()
            await self.stop()
            raise
        for every_s, name, work in (
            (SWEEP_S, "forget_silent_clients", self._sweep),
            (OFFSETS_S, "write_offsets", self._flush_offsets),
            (TICK_S, "end_long_pulls", self._end_pulls),
            (TICK_S, "release_delayed_messages", self.broker.releasing.release_due),
            (RETAIN_S, "delete_old_messages", self._retain),
            (EXPIRE_S, "expire_unused_names", self._expire),
            (STALLED_S, "end_stalled_connections", self._end_stalled),
            (SPACE_S, "look_at_disk", self._look_at_space),
            (CLOCK_S, "look_at_clock", self._look_at_clock),
            (CHECK_S, "check_transactions", self.broker.rounds.tick),
            (TLS_S, "look_at_certificate", self.tls.look),
            (ACCESS_S, "look_at_users", self._access.sweep),
        ):
            self._background.every(every_s, name, work)
        if self._look_ups is not None:
            await self._look_ups.start()
            passes = self.broker.look_up_with(self._look_ups)
            self._background.every(PROBE_S, "probe_ledgers", passes.tick)
        await self._watch.start(self.broker, self._background, local_address(sockets[1]))

    async def _recover(self, store_host: bytes) -> Broker:
        # In another thread, because recovery may take long and HTTP probes need answers meanwhile.
        began, reading = perf_counter(), read(self._clock)
        store, found = await asyncio.to_thread(
            start_store,
            OsDisk(self._data / STORE),
            self._store_config,
            self._policy,
            store_host,
            reading,
        )
        recovery_s = perf_counter() - began
        store.core.limits = self._limits_config
        clock = BrokerClock(self._clock, store, reading, found)
        self._writer = Writer(store, clock, self._writer_config)
        self._writer.failed.add_done_callback(lambda _: self._background.stop())
        topics = Topics(store.catalog, self._topics_config)
        meta, catalog_found = await asyncio.to_thread(
            open_catalog, store, self._data / META, topics.system, clock.now_ms()
        )
        self._meta = meta
        vitals = Vitals(
            background=self._background,
            name_address=self.name_address,
            http_address=self.http_address,
            connections=self._connection_count,
            limits=self.limits,
            tls=self.tls,
            found=StartFindings(recovery_s, found, catalog_found),
        )
        identity = Identity(
            name=self._config.name,
            cluster=self._config.cluster,
            address=self.broker_address,
            store_host=store_host,
        )
        broker = Broker(
            store=store,
            writer=self._writer,
            meta=meta,
            clock=clock,
            topics=topics,
            groups=Groups(store.catalog, self._topics_config),
            identity=identity,
            vitals=vitals,
            key=await asyncio.to_thread(id_key, self._data),
            secrets=self._secrets,
            gate=self._access.open_gate(store.catalog),
        )
        meta.clamp_offsets(broker.queues.bounds())
        await clock.start(self._writer)
        await self._access.mark(self._writer)
        return broker

    async def stop(self) -> None:
        """Accept no more clients, answer open requests, and close the store."""
        self._background.stop()
        await self._watch.stop()
        await self._doors.close_soon()
        if self._grpc is not None:
            self._grpc.close_soon()
        if self._broker is not None:
            self._broker.drain()
            await self._broker.rounds.close()
        if self._look_ups is not None:
            await self._look_ups.stop()
        if self._broker is not None:
            self._broker.checking.close()
            self._broker.awaiting.close()
        if self._broker is not None and self._broker.store.failure is None:
            with self._offsets_may_wait():
                # Before the last checkpoint, which records how current meta.db is.
                await self._broker.meta_writing.write()
        if self._writer is not None:
            await self._writer.close()
        await self._hang_up()
        await self._access.close()
        if self._broker is not None:
            with self._offsets_may_wait():
                await self._broker.meta_writing.close()
        elif self._meta is not None:
            self._meta.close_file()
        if self._lock is not None:
            self._lock.close()

    async def _hang_up(self) -> None:
        """Close all connections after their last answers; cut peers that do not read these."""
        self._all_gone = asyncio.Event()
        if self._grpc is not None:
            await self._grpc.close()
        for _ in range(ACCEPT_TURNS + 1):
            # Connections that were accepted before the doors closed arrive some turns later.
            self._doors.cut_opening()
            await asyncio.sleep(0)
        await hang_up(self._connections, self._all_gone, HANG_UP_S)

    def _connection_count(self) -> int:
        grpc = 0 if self._grpc is None else self._grpc.connections
        return len(self._connections) + self._doors.opening_count + grpc

    def _has_room(self) -> bool:
        return len(self._connections) + self._doors.opening_count < self._connections_max

    # Called by connections.

    def opened(self, connection: ClientConnection) -> bool:
        """Register a new connection; return False if it exceeds the limit."""
        self._connections.add(connection)
        if self._all_gone is not None:
            # It was accepted just before the server stopped.
            connection.close()
        return len(self._connections) + self._doors.opening_count <= self._connections_max

    def handle(self, connection: ClientConnection, frame: RemotingFrame) -> None:
        """Pass a frame to the broker."""
        self.broker.handle(connection, frame)

    def closed(self, connection: ClientConnection) -> None:
        """Forget a closed connection."""
        self._connections.discard(connection)
        if self._all_gone is not None and not self._connections:
            self._all_gone.set()
        self.broker.drop(connection)

    # Periodic work.

    async def _end_pulls(self) -> None:
        self.broker.end_polls()

    async def _retain(self) -> None:
        """Delete old messages."""
        await self.broker.clock.look()
        await self.broker.retaining.run()

    async def _expire(self) -> None:
        """Expire unused names, and check how near the limits are."""
        await self.broker.expiring.run()
        self.broker.capacities.look()

    async def _sweep(self) -> None:
        """Forget silent clients and close silent connections."""
        self.broker.forget_silent_clients()
        self.broker.locks.expire()
        oldest = asyncio.get_running_loop().time() - self._config.idle_ms_max / 1_000
        for connection in list(self._connections):
            connection.end_if_silent(oldest)

    async def _end_stalled(self) -> None:
        """Cut connections that do not finish a frame or do not read their answers."""
        now = asyncio.get_running_loop().time()
        for connection in (*self.limits.waiting, *self.limits.unread):
            connection.end_if_stalled(now)

    async def _look_at_clock(self) -> None:
        await self.broker.clock.look()

    async def _look_at_space(self) -> None:
        self.broker.writer.look_at_space()
        await self.broker.retaining.keep_reserve()

    async def _flush_offsets(self) -> None:
        with self._offsets_may_wait():
            await self.broker.meta_writing.write()

    @contextmanager
    def _offsets_may_wait(self) -> Iterator[None]:
        """Note a failed write of offsets: a later one writes them, or messages come again."""
        try:
            yield
        except Unavailable as error:
            now = asyncio.get_running_loop().time()
            self.limits.note("offsets_not_written", now, why=str(error))
