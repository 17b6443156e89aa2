"""Services of a server for its operator: alert notices and scheduled backups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from escrowmq.broker.native.status import StatusParts, status
from escrowmq.broker.periodic.background import PeriodicTasks
from escrowmq.broker.periodic.backup_schedule import BackupConfig
from escrowmq.broker.periodic.scheduled_backups import ScheduledBackups
from escrowmq.broker.watch.alert_config import AlertsConfig
from escrowmq.broker.watch.alerting import Alerting

BACKUP_S = 1.0
"""The longest delay before a due backup begins."""


@dataclass(kw_only=True, eq=False)
class OperatorServices:
    """Alert notices and backups, each off unless configured. Use it from one event loop only."""

    alerts: AlertsConfig
    backup: BackupConfig
    backup_command: Sequence[str]
    #: Name of the broker.
    name: str
    _alerting: Alerting | None = field(default=None, init=False)
    _backups: ScheduledBackups | None = field(default=None, init=False)

    async def start(self, broker: StatusParts, background: PeriodicTasks, address: str) -> None:
        """Start to watch the broker, which this machine reaches at the address."""
        if self.backup.is_on and self.backup_command:
            backups = ScheduledBackups(
                self.backup,
                self.backup_command,
                broker=self.name,
                now_ms=broker.clock.now_ms,
                seed=broker.store.seed,
            )
            await backups.find_last()
            self._backups = broker.vitals.backups = backups
            background.every(BACKUP_S, "make_backups", lambda: backups.look(address))
        if self.alerts.is_on:
            alerting = Alerting(self.alerts)
            self._alerting = broker.vitals.alerting = alerting
            alerting.start()

            async def look() -> None:
                alerting.look(status(broker))

            background.every(self.alerts.interval_ms / 1_000, "look_for_alerts", look)

    async def stop(self) -> None:
        """Send no more notices, and stop a running backup."""
        if self._alerting is not None:
            self._alerting.stop()
        if self._backups is not None:
            await self._backups.stop()
