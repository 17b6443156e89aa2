"""Warms up before the measurement: the pipeline settles one undecided transaction.

The first job after Spark starts takes many times as long as the later ones.
"""

from __future__ import annotations

import os
import time

from escrowmq.demo import order_service
from escrowmq.demo.order_service import TRANSACTIONAL
from escrowmq.demo.place import Place
from escrowmq.demo.processes import demo_failed
from escrowmq.demo.shop import Shop
from escrowmq.pipeline.audit.pins import take_pins

NAME = "rehearsal"
SETTLED_S_MAX = 180.0
_MAX_DURATION_S = 1.0
_LOOK_S = 0.2


def rehearse(place: Place, shop: Shop) -> None:
    """Start a service that dies before the COMMIT of one order, and wait until it is settled."""
    shop.make(1)
    task = order_service.Task(
        mode=TRANSACTIONAL,
        name_server=place.name_server,
        group=NAME,
        folder=str(shop.folder),
        topic=NAME,
        orders=1,
        threads=1,
        max_duration_s=_MAX_DURATION_S,
        die_before_commit=[1],
        parent=os.getpid(),
    )
    service = place.processes.start_with(NAME, "escrowmq.demo.order_service", task)
    service.wait()
    place.processes.stop(service)
    until = time.monotonic() + SETTLED_S_MAX
    while take_pins([place.broker])[0].status.undecided:
        if time.monotonic() > until:
            raise demo_failed("the pipeline settles nothing", place.processes.log("up"))
        time.sleep(_LOOK_S)
