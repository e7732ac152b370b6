"""Periodic maintenance of machines."""

from __future__ import annotations

import logging
import threading
import time

from devalloc_node.deadline import Deadline
from devalloc_node.machine import emulated_devices, machine_files
from devalloc_node.machine.lifecycle import MachineLifecycle
from devalloc_node.machine.registry import MachineRegistry, suppress_and_log
from devalloc_node.machine.spec import machine_id
from devalloc_node.machine.status_cache import LOOK_SECONDS

LOG = logging.getLogger(__name__)
LOG_SECONDS = 10.0
"""How often it is looked whether a guest has filled a log: a guest writes as much as it likes."""
TIDY_SECONDS = 300.0
"""How often QEMU is looked at for what no device stands on any more, of machines that were changed since the last look,
or have devices that their guests may let go."""
TIDY_ALL_SECONDS = 3600.0
"""The same of all machines: another plugin on this state folder may have been cut off."""


def run_maintenance(machines: MachineLifecycle, stop: threading.Event) -> None:
    """Until ``stop``: empty the logs that guests have filled, settle machines that others have changed, and take away
    what calls that were cut off, and devices that guests let go by themselves, have left in QEMU."""
    if machines.config.dry_run:
        return
    tidied, all_tidied = float("-inf"), float("-inf")
    untidy: set[str] = set()
    """Keys of machines that may have something to take away."""
    while not stop.wait(LOG_SECONDS):
        try:
            now, keys = time.monotonic(), machines.settle()
            untidy.update(machines.take_held())
            if now >= all_tidied + TIDY_ALL_SECONDS:
                untidy, all_tidied = set(keys), now
            is_due = now >= tidied + TIDY_SECONDS
            tidied = now if is_due else tidied
            for key in keys:
                machine_files.trim(machines.config, machine_id(key))
                if is_due and key in untidy:
                    with suppress_and_log(key):
                        if _is_tidy(machines, key):
                            untidy.discard(key)
            untidy.intersection_update(keys)
        except Exception:  # what is done unasked must not end what was asked for
            LOG.exception("cannot maintain the machines; trying again in %.0f s", LOG_SECONDS)


def _is_tidy(machines: MachineRegistry, key: str) -> bool:
    """Take away what no device stands on; whether none is there that could leave something before a next change.

    Looks before it locks: nobody is to wait for a machine that is tidy.
    """
    due = Deadline.after(LOOK_SECONDS)
    record = machines.record_for(key)
    if record.state != "running" or machines.process_of(record) is None:
        return False
    with machines.line(record) as monitor:
        if emulated_devices.has_leftovers(seen := emulated_devices.observe_emulated(monitor, due)):
            with machines.hold(key, due, "tidy up"):
                emulated_devices.remove_leftovers(monitor, due)
        return emulated_devices.is_empty(seen)
