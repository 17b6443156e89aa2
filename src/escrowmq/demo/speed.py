"""The demo's text about speed: the figures, and why one run is slower than the other. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from escrowmq.demo.figures import DemoRun, Figures
from escrowmq.demo.step_times import OrderStep, StepTimes

Row = tuple[str, str, str]
_NONE = "-"
#: The steps that are round trips to the broker.
_BROKER_STEPS = (OrderStep.HOLD, OrderStep.SEND, OrderStep.DECIDE)


def speed_rows(plain: DemoRun, transactional: DemoRun) -> Iterator[Row]:
    """Yield orders per second with and without restarts, and the seconds behind them."""
    runs = plain, transactional
    yield "orders per second, restarts included", *_each(runs, "{0.orders_per_s:,.0f}")
    yield "orders per second, restarts left out", *_each(runs, "{0.working_orders_per_s:,.0f}")
    yield "until the last order was paid", *_each(runs, "{0.took_s:,.1f} s")
    yield "of that, starts of the order service", *_each(runs, "{0.service_starts_s:,.1f} s")
    yield "of that, restarts of the broker", *_each(runs, "{0.broker_away_s:,.1f} s")


def _each(runs: tuple[DemoRun, DemoRun], form: str) -> tuple[str, str]:
    return form.format(runs[0]), form.format(runs[1])


def step_rows(plain: StepTimes, transactional: StepTimes) -> Iterator[Row]:
    """Yield the median time of each step of an order."""
    for step in OrderStep:
        if step in plain.median_ms or step in transactional.median_ms:
            yield step, _ms(plain, step), _ms(transactional, step)
    yield "all steps of an order", f"{plain.order_ms:,.2f} ms", f"{transactional.order_ms:,.2f} ms"
    yield "orders measured", f"{plain.orders:,}", f"{transactional.orders:,}"


def _ms(times: StepTimes, step: OrderStep) -> str:
    return f"{times.median_ms[step]:,.2f} ms" if step in times.median_ms else _NONE


def speed_reasons(figures: Figures) -> list[str]:
    """Explain why the two speeds differ, with the measured figures."""
    plain, ours = figures.plain, figures.transactional
    restarts = (
        f"{plain.orders_per_s:,.0f} beside {ours.orders_per_s:,.0f} orders per second, restarts"
        f" included: {plain.restarts_s:,.1f} s of the plain run and {ours.restarts_s:,.1f} s of the"
        " transactional run went into starting killed processes again. Without restarts:"
        f" {plain.working_orders_per_s:,.0f} beside {ours.working_orders_per_s:,.0f}."
    )
    told = [restarts]
    if plain.steps.median_ms and ours.steps.median_ms:
        more_ms = _broker_ms(ours.steps) - _broker_ms(plain.steps)
        told.append(
            "A plain order waits for the broker's disk once, a transactional one twice: its message"
            " is on disk before COMMIT, and the decision after it. That is"
            f" {_broker_ms(ours.steps):,.1f} ms per order instead of {_broker_ms(plain.steps):,.1f}"
            f" ms ({more_ms:+,.1f} ms). The ledger's row costs"
            f" {ours.steps.median_ms.get(OrderStep.LEDGER_ROW, 0.0):,.2f} ms."
        )
    told.append(
        "The plain run does less durable work: nothing on disk says which orders still need a"
        " message."
    )
    return told


def _broker_ms(times: StepTimes) -> float:
    return sum(times.median_ms.get(step, 0.0) for step in _BROKER_STEPS)
