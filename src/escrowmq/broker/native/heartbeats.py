"""PIPELINE_HEARTBEAT: pipelines tell that they are alive and how their rounds go."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.broker.checks.leading import Leadership
from escrowmq.broker.native.calls import Call
from escrowmq.broker.net.requests import handles
from escrowmq.broker.state.ledger_reports import PipelineSigns
from escrowmq.broker.state.pipeline_life import PipelineLife
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.protocol.native.pipeline_headers import HeartbeatHeader
from escrowmq.protocol.native.requests import NativeCode


@dataclass(frozen=True, slots=True)
class PipelineHeartbeats:
    """Handles PIPELINE_HEARTBEAT."""

    clock: BrokerClock
    life: PipelineLife
    signs: PipelineSigns
    leadership: Leadership

    @handles(NativeCode.PIPELINE_HEARTBEAT)
    def hear(self, call: Call[HeartbeatHeader]) -> None:
        """Take a heartbeat, and answer which process checks now."""
        self.signs.heartbeat_at_ms = self.clock.monotonic_ms()
        self.signs.has_left = call.header.is_last
        self.life.put(call.header, now_ms=self.signs.heartbeat_at_ms)
        call.answer(checker=self.leadership.look().value)
