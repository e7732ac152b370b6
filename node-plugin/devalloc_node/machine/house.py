"""What is done for machines now and then, without being asked."""

from __future__ import annotations

import logging
import threading
import time

from devalloc_node.deadline import Deadline
from devalloc_node.machine import logs, plain
from devalloc_node.machine.kept import Kept, suppress_and_log
from devalloc_node.machine.looks import LOOK_SECONDS
from devalloc_node.machine.machines import Machines
from devalloc_node.machine.spec import machine_id

LOG = logging.getLogger(__name__)
LOG_SECONDS = 10.0
"""How often it is looked whether a guest has filled a log: a guest writes as much as it likes."""
TIDY_SECONDS = 300.0
"""How often QEMU is looked at for what no device stands on any more."""


def keep(machines: Machines, stop: threading.Event) -> None:
    """Until ``stop``: empty the logs that guests have filled, settle machines that others have changed, and take away
    what calls that were cut off, and devices that guests let go by themselves, have left in QEMU."""
    if machines.config.dry_run:
        return
    tidied = float("-inf")
    while not stop.wait(LOG_SECONDS):
        is_due = time.monotonic() >= tidied + TIDY_SECONDS
        tidied = time.monotonic() if is_due else tidied
        try:
            for key in machines.settle():
                logs.trim(machines.config, machine_id(key))
                with suppress_and_log(key):
                    if is_due:
                        _tidy(machines, key)
        except Exception:  # what is done unasked must not end what was asked for
            LOG.exception("could not look after the machines; trying again in %.0f s", LOG_SECONDS)


def _tidy(machines: Kept, key: str) -> None:
    """Looks before it locks: nobody is to wait for a machine that is tidy."""
    due = Deadline.after(LOOK_SECONDS)
    record = machines.known(key)
    if record.state == "running" and machines.process_of(record) is not None:
        with machines.line(record) as monitor:
            if plain.has_strays(monitor, due):
                with machines.hold(key, due, "tidy up"):
                    plain.tidy(monitor, due)
