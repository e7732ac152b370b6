"""What machines are found to be: one that lives is watched, and that one ended is noted, whoever ended it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress

from devalloc_node.audit import audit
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, NodeError
from devalloc_node.machine import devices, launch, lifefile, lost, pci, placement
from devalloc_node.machine.deaths import Deaths
from devalloc_node.machine.kept import Kept, suppress_and_log
from devalloc_node.machine.looks import LOOK_SECONDS, ended
from devalloc_node.machine.process import Process
from devalloc_node.machine.records import MACHINES, MachineRecord, record_of
from devalloc_node.machine.spec import machine_id

LOG = logging.getLogger(__name__)
_SETTLE_SECONDS = 120.0
"""How long a change of a machine is waited for before it is noted that the machine ended."""


class Settling:
    """Safe for threads."""

    def __init__(self, kept: Kept, ended: Callable[[], None]) -> None:
        """``ended`` is called for each machine that ended though nobody asked for it."""
        self._kept = kept
        self._ended = ended
        self._deaths = Deaths(self._died)

    def close(self) -> None:
        """Watch none any more."""
        self._deaths.close()

    def recover(self) -> None:
        """Settle all that are known, and say which others live."""
        if self._kept.config.dry_run:
            return
        known = self._kept.records.records(MACHINES)
        for key in known:
            with suppress_and_log(key):
                self._settle(key)
        for found in lifefile.ids(self._kept.config) - {machine_id(key) for key in known}:
            with suppress_and_log(found):
                if (process := lifefile.process_of(found, self._kept.config)) is not None:
                    LOG.warning(
                        "machine %s (process %d) runs, and the journal does not know it; it is taken up where a "
                        "VirtualMachine of the store tells of this run; end it by hand where it is not wanted (kill "
                        "%d): until then no other machine of its name can be started",
                        found,
                        process.pid,
                        process.pid,
                    )

    def settle(self) -> Collection[str]:
        """Settle those that are not as they are known: another plugin on this state folder has started them, or was
        busy with them when this one began, or was killed in the middle of it. Returns the keys of all machines."""
        records = self._kept.records.records(MACHINES)
        for key, content in records.items():
            with suppress(NodeError, OSError):  # said by ``recover``, and by who asks for it: this is done too often
                if content.get("state") == "running" and self._deaths.watches(key):
                    continue  # nearly all, nearly always: it is not even read
                if self._is_settled(record_of(key, content)):
                    continue
                with suppress_and_log(key):
                    try:
                        self._settle(key, 0.0)
                    except Failed as error:
                        if error.code != "MachineBusy":  # who is busy with it sees to it
                            raise
        return records.keys()

    def _is_settled(self, record: MachineRecord) -> bool:
        process = self._kept.process_of(record)
        if process is None:
            return record.state in ("stopped", "failed")
        return record.state == "running" and self._deaths.watches(record.spec.key)

    def watch(self, key: str, process: Process) -> None:
        """Have it noted when this process, which is the machine, ends."""
        self._deaths.watch(key, process)

    def leave(self, key: str) -> None:
        """Watch it no more."""
        self._deaths.leave(key)

    def note_end(self, record: MachineRecord) -> None:
        """Of one that does not live: that it ended, where that is not known yet; said where nobody asked for it."""
        if record.state in ("stopped", "failed"):
            return
        noted = ended(record, self._kept.config)
        self._kept.put(noted)
        self.gone(record)
        if noted.reason != "StoppedOnRequest":
            LOG.warning("machine %s: %s", record.spec.key, noted.message)
            audit("machine", machine=record.spec.key, done="ended", reason=noted.reason, message=noted.message)
            self._ended()

    def gone(self, record: MachineRecord) -> None:
        """Take away what one that has ended leaves on the host."""
        self.leave(record.spec.key)
        if record.spec.adopt is None:
            launch.clean(record.spec.id, self._kept.config)
        if record.spec.wants_home:
            self._kept.homes.take_back(record.spec.key)

    def _settle(self, key: str, seconds: float = LOOK_SECONDS) -> None:
        """Note that a machine ended, or watch it."""
        with self._kept.hold(key, Deadline.after(seconds), "note that it ended"):
            record = self._kept.find(key)
            if record is None:
                return
            process = self._kept.process_of(record)
            is_another = process is not None and lost.is_another(record, process)
            if is_another and record.spec.uid:
                LOG.warning("what the journal knows of machine %s is of an earlier run, and is forgotten", key)
                self._kept.records.drop(MACHINES, key)  # perhaps of another object, too: its own takes it up
            elif process is not None:
                # Whoever was stopping it is no more, and its guest goes on; or who started it came to the end of that.
                if is_another or record.state in ("stopped", "failed"):  # an older journal was put back
                    LOG.warning("machine %s is a later run than the one that the journal knows: taken up", key)
                    self._kept.put(lost.seen(self._kept, record, Deadline.after(LOOK_SECONDS)))
                elif record.state == "stopping":
                    self._kept.put(record.asked_to_stop())
                elif record.state == "starting" and self._has_begun(record):
                    self._kept.put(record.become("running"))
                self.watch(key, process)
            else:
                self.note_end(record)

    def _has_begun(self, record: MachineRecord) -> bool:
        """Whether its CPUs run and the devices of its claims have addresses, as ``resume`` waits for. If one has none,
        the start was cut off before its end. If QEMU does not answer, the record counts."""
        key, deadline = record.spec.key, Deadline.after(LOOK_SECONDS)
        with suppress_and_log(key), self._kept.line(record) as monitor:
            if not lost.is_paused(monitor, deadline):
                there = [name for name in pci.present(monitor, deadline) if devices.is_of_claim(name)]
                return placement.have_addresses(monitor, key, there, deadline)
        return False

    def _died(self, key: str) -> None:
        # A change of this machine may be under way and take its time to fail; the next death is not to wait for it.
        threading.Thread(target=self._settle_later, args=(key,), name=f"death of {key}", daemon=True).start()

    def _settle_later(self, key: str) -> None:
        with suppress_and_log(key):
            self._settle(key, _SETTLE_SECONDS)
