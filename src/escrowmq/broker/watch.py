"""Services of a server for its operator: alert notices and scheduled backups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from escrowmq.broker.alerting import Alerting
from escrowmq.broker.scheduled_backups import ScheduledBackups

if TYPE_CHECKING:
    from escrowmq.broker.alert_config import AlertsConfig
    from escrowmq.broker.background import Background
    from escrowmq.broker.backup_schedule import BackupConfig
    from escrowmq.broker.broker import Broker

BACKUP_S = 1.0
"""The longest delay before a due backup begins."""


class Watch:
    """Alert notices and backups, each off unless configured. Use it from one event loop only."""

    def __init__(
        self,
        alerts: AlertsConfig,
        backup: BackupConfig,
        backup_command: Sequence[str],
        *,
        name: str,
    ) -> None:
        self._alerts = alerts
        self._backup = backup
        self._backup_command = backup_command
        self._name = name
        self._alerting: Alerting | None = None
        self._backups: ScheduledBackups | None = None

    async def start(self, broker: Broker, background: Background, address: str) -> None:
        """Start to watch the broker, which this machine reaches at the address."""
        if self._backup.is_on and self._backup_command:
            backups = ScheduledBackups(
                self._backup,
                self._backup_command,
                broker=self._name,
                now_ms=broker.clock.now_ms,
                seed=broker.store.seed,
            )
            await backups.find_last()
            self._backups = broker.vitals.backups = backups
            background.every(BACKUP_S, "make_backups", lambda: backups.look(address))
        if self._alerts.is_on:
            alerting = Alerting(self._alerts)
            self._alerting = broker.vitals.alerting = alerting
            alerting.start()

            async def look() -> None:
                alerting.look(broker)

            background.every(self._alerts.interval_ms / 1_000, "look_for_alerts", look)

    async def stop(self) -> None:
        """Send no more notices, and stop a running backup."""
        if self._alerting is not None:
            self._alerting.stop()
        if self._backups is not None:
            await self._backups.stop()
