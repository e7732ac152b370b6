"""The pool: setups that are ready, who has which, and what goes on behind it.

A setup goes one way: it is made, ready, taken, removed. What comes back is removed and another one made in its place,
for what an owner has left in a namespace (addresses, routes, rules, files) cannot be told for certain. So the id of a
setup is that of one use.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from devalloc.inventory.capacity.cpus import Cpus, read_cpus
from devalloc.inventory.capacity.machines import MachineUse
from devalloc.inventory.sysfs import Tree
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.lockfile import holder_of, take
from devalloc_node.names import shown
from devalloc_node.warm.build import Admit, Builder
from devalloc_node.warm.clearing import Clearing
from devalloc_node.warm.errors import TryAgain
from devalloc_node.warm.filling import Filling
from devalloc_node.warm.parts import Part
from devalloc_node.warm.pinning import Pin, pin
from devalloc_node.warm.records import Record, Records
from devalloc_node.warm.setup import WarmConfig
from devalloc_node.warm.shelf import Shelf, closed
from devalloc_node.warm.view import Status, Taken

log = logging.getLogger(__name__)

MOST_TEXT = 400
"""Characters of an owner, and of a request."""
_POLL_SECONDS = 0.05


class Pool:
    """Safe for threads. ``open`` first, ``close`` at the end; ``keeping`` fills it meanwhile."""

    def __init__(
        self,
        config: WarmConfig,
        boot: str,
        *,
        parts: Sequence[Part] | None = None,
        cpus: Callable[[], Cpus] = lambda: read_cpus(Tree(Path("/"))),
        blind: Callable[[], str | None] = lambda: None,
        admit: Admit = lambda machine, spec: nullcontext(),
    ) -> None:
        """``boot``: the kernel's boot id. ``parts``: what setups are made of, None for what the config asks for.
        ``cpus``: those of the host, asked for when some are chosen. ``blind``: why its processes cannot be seen.
        ``admit``: asked for each machine that is to wait."""
        self.config = config
        self._records = Records(config.run / "records")
        self._builder = Builder(config, self._records, boot, parts, admit)
        self._shelf = Shelf(config)
        self._clearing = Clearing(self._shelf, self._builder, config.workers)
        self._filling = Filling(config, self._shelf, self._builder, self._clearing)
        self._boot = boot
        self._read_cpus = cpus
        self._blind = blind
        self._wake = threading.Event()
        self._lock = -1

    # Its beginning and end.

    def open(self) -> None:
        """Take up what an earlier run has left: what is taken stays so, what is ready and whole is ready, and the rest
        is removed. Nothing else in these folders is touched.

        Raises Denied ``PoolInUse`` (retryable) where another plugin has it, ``ProcessesUnseen`` where nobody could tell
        who lives in a setup; Failed ``RecordsUnavailable``.
        """
        if (why := self._blind()) is not None:
            raise Denied("ProcessesUnseen", f"no warm setups can be kept here, for who lives in one is not seen: {why}")
        self._records.make_folder()
        self._lock = self._locked()
        try:
            self._recall()
        except BaseException:
            os.close(self._lock)
            raise
        self._remove_all()

    def _recall(self) -> None:
        found, unreadable = self._records.all()
        for name in unreadable:
            log.error("the record of warm setup %s cannot be read; remove by hand what has that name, then it", name)
        self._records.tidy()
        self._builder.recall(found)
        whole = [record for record in found if record.state == "ready" and self._builder.is_whole(record)]
        lived_in = self._clearing.occupants(whole)
        ready = [record for record in whole if record.id not in lived_in]
        with self._shelf.mutex:
            for record in found:
                if record.state == "taken" and record.boot == self._boot:
                    self._shelf.taken[record.id] = record
                elif record not in ready:
                    self._shelf.discard(record)
            self._shelf.ready.extend(ready)
            self._shelf.is_open = True

    def close(self, deadline: Deadline) -> Status:
        """Remove all that nobody has taken; the status then. What is taken stays, and is known again after ``open``,
        and so is what could not be removed before the deadline."""
        shelf = self._shelf
        with shelf.mutex:
            if not shelf.is_open:
                return self.status()
            shelf.is_open = False
            # Whoever makes one, or waits for a setup to be quiet, sees that it is not wanted any more.
            while not shelf.is_quiet and not deadline.passed:
                shelf.mutex.wait(deadline.seconds)
            while shelf.ready:
                shelf.discard(shelf.ready.popleft())
        self._wake.set()
        self._remove_all()
        if shelf.is_quiet:  # else the next plugin waits for the end of this process
            os.close(self._lock)
        return self.status()

    def _remove_all(self) -> None:
        try:
            self._clearing.remove_all()
        except NodeError as error:  # who lives there is not seen now; it is tried again
            log.warning("%s", error)

    def _locked(self) -> int:
        path = self.config.run / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Failed("RecordsUnavailable", f"cannot lock {path}: {error.strerror}") from error
        if not take(descriptor):
            holder = holder_of(descriptor)
            os.close(descriptor)
            raise Denied("PoolInUse", f"{holder} has the warm setups in {self.config.run}", retryable=True)
        return descriptor

    # Taking and giving back.

    def take(
        self,
        owner: str,
        request: str = "",
        *,
        vcpus: int = 0,
        one_node: bool = False,
        node: int | None = None,
        bare: bool = False,
    ) -> Taken:
        """Give a setup to ``owner``: one that is ready, the oldest first, or where there is none and the config allows
        it one that is made for him.

        It is his, whatever becomes of the plugin, when this returns. ``request``: a name for this taking, under which
        it may be asked for again: the same setup is the answer. ``vcpus``: choose so many CPUs for him, with
        ``one_node`` of one NUMA node, with ``node`` of that one. ``bare``: he brings a machine of his own, so that none
        is made to wait in one that is made for him (``end_waiting`` ends it in any other). Raises TryAgain where there
        is none to be had now, Denied ``OwnerInvalid``, ``CpusTooFew``, ``SetupBusy`` (retryable), Failed.
        """
        for what, text, least in (("owner", owner, 1), ("request", request, 0)):
            if not least <= len(text) <= MOST_TEXT or not text.isprintable():
                raise Denied(
                    "OwnerInvalid",
                    f"the {what} of a setup is {shown(text)}, and must be {least} to {MOST_TEXT} printable characters",
                )
        shelf, asked = self._shelf, (owner, request)
        with shelf.call():
            with shelf.mutex:
                if request and asked in shelf.asked:
                    raise Denied("SetupBusy", f"request {request} of {owner} is under way already", retryable=True)
                if request and (before := shelf.of_request(owner, request)) is not None:
                    return self._told(before)
                shelf.asked.add(asked)
            try:
                host = self._read_cpus() if vcpus else None  # as they are now: CPUs come and go

                def chosen() -> Pin | None:
                    if host is None:
                        return None
                    most = self.config.vcpus_per_cpu
                    return pin(host, shelf.loads(), vcpus, most=most, one_node=one_node, only=node)

                return self._told(self._given(owner, request, chosen, bare))
            finally:
                with shelf.mutex:
                    shelf.asked.discard(asked)

    def _given(self, owner: str, request: str, chosen: Callable[[], Pin | None], bare: bool) -> Record:
        shelf = self._shelf
        with shelf.mutex:
            where = chosen()
            record = self._oldest()
            if record is not None:
                record = shelf.taken[record.id] = _own(record, owner, request, where)
            elif not self.config.on_demand:
                raise TryAgain("setups", f"no warm setup is ready, and {shelf.making} are being made")
            else:
                shelf.begin_making(1)
        if record is None:
            return self._made_for(owner, request, chosen, bare)
        self._note_taking(record)
        return record

    def _made_for(self, owner: str, request: str, chosen: Callable[[], Pin | None], bare: bool) -> Record:
        shelf, made = self._shelf, self._filling.make_one(bare=bare)
        if made is None:
            raise closed()
        try:
            with shelf.mutex:
                record = shelf.taken[made.id] = _own(made, owner, request, chosen())  # others have CPUs by now
                shelf.finish_making(None)
        except NodeError:
            with shelf.mutex:
                shelf.finish_making(None)
                self._put_back(made)
            raise
        self._note_taking(record)
        return record

    def _note_taking(self, record: Record) -> None:
        """On disk it is his too, or it is ready again. Raises Failed."""
        try:
            self._records.put(record)
        except NodeError:
            record = self._disown(record)
            with self._shelf.mutex:
                del self._shelf.taken[record.id]
                self._put_back(record)
            raise
        self._wake.set()

    def _put_back(self, record: Record) -> None:
        """One that nobody has had, among those that are ready, if it is as they are. With the lock."""
        if self._builder.has_all(record):
            self._shelf.ready.appendleft(record)
        else:
            self._shelf.discard(record)

    def _disown(self, record: Record) -> Record:
        """Nobody was told that it is his: it is ready, on disk too where that can be."""
        record = replace(record, state="ready", owner="", request="", since_ms=0, cpus=(), nodes=())
        with suppress(NodeError):  # or it counts as taken after a crash, until its lease is over
            self._records.put(record)
        return record

    def give_back(self, setup: str, deadline: Deadline) -> None:
        """Take a setup from its owner and remove it, once nobody lives in it any more.

        Raises NotTaken where nobody has it (also the second time), Denied ``SetupInUse`` (retryable) where somebody
        still lives in it at the deadline: it stays taken then.
        """
        shelf = self._shelf
        with shelf.call():
            with shelf.changing(setup) as record:
                self._await_quiet(record, deadline)
                record = replace(record, state="removing")
                self._records.put(record)  # from here on nobody has it, whatever becomes of the plugin
                with shelf.mutex:
                    del shelf.taken[setup]
                    shelf.discard(record)
            self._clearing.remove(record, {})
        self._wake.set()

    def _await_quiet(self, record: Record, deadline: Deadline) -> None:
        while who := self._clearing.occupants([record], asking=True).get(record.id):
            self._shelf.check_open()
            if deadline.passed:
                raise Denied(
                    "SetupInUse",
                    f"setup {record.id} of {record.owner} cannot be given back while it is in use, by "
                    f"{', '.join(who)}; end that first",
                    retryable=True,
                )
            time.sleep(min(_POLL_SECONDS, deadline.seconds))

    def end_waiting(self, setup: str) -> None:
        """End the machine that waits in a setup that is taken, as its owner brings one of his own. May be done again.
        Raises NotTaken, Failed ``SetupNotRemoved``."""
        with self._shelf.call(), self._shelf.changing(setup) as record:
            record = self._builder.without_machine(record)
            with self._shelf.mutex:
                self._shelf.taken[setup] = record

    # What goes on behind it.

    def fill(self, number: int) -> None:
        """Make so many more, several at a time. Where one fails those that are made or being made stay, no further one
        is begun, and the first error is raised. Raises TryAgain, before any is made, where there may not be so many."""
        self._filling.fill(number)

    def refill(self) -> None:
        """Make as many as are missing. Raises NodeError for the first that cannot be made."""
        self._filling.refill()

    def look(self) -> None:
        """See what has died of what is ready; try to remove what could not be removed. Raises NodeError."""
        with self._shelf.mutex:
            ready = list(self._shelf.ready)
        dead = {record.id for record in ready if not self._builder.lives(record)}
        with self._shelf.mutex:
            for record in [each for each in self._shelf.ready if each.id in dead]:
                self._shelf.ready.remove(record)
                self._shelf.discard(record)
        self._clearing.remove_all()
        self._records.keep_spare()

    def await_change(self, seconds: float) -> None:
        """Until a setup was taken or given back, or ``poke``; so long at most."""
        self._wake.wait(seconds)
        self._wake.clear()

    def poke(self) -> None:
        """Whoever awaits a change has waited long enough."""
        self._wake.set()

    # How it is.

    def status(self) -> Status:
        shelf = self._shelf
        with shelf.mutex:
            return Status(
                self.config.target,
                self.config.most,
                len(shelf.ready),
                shelf.making,
                len(shelf.removing),
                self.taken(),
                shelf.made,
                shelf.failures,
                shelf.problem,
            )

    def taken(self) -> Sequence[Taken]:
        """Those taken longest first."""
        with self._shelf.mutex:
            return tuple(map(self._told, sorted(self._shelf.taken.values(), key=lambda each: each.since_ms)))

    def empty(self) -> Sequence[Taken]:
        """Those taken in which nothing lives but, perhaps, the machine that waited there. Raises NodeError."""
        with self._shelf.mutex:
            taken = list(self._shelf.taken.values())
        lived_in = self._clearing.occupants(taken)
        return [self._told(record) for record in taken if record.id not in lived_in]

    def uses(self) -> Iterator[MachineUse]:
        """What the machines in setups take of the host, those that somebody has taken, too. Also of a pool that another
        plugin has. Raises Failed (``RecordsUnavailable``)."""
        return self._builder.uses()

    def _told(self, record: Record) -> Taken:
        where = Pin(record.cpus, record.nodes) if record.cpus else None
        return Taken(self._builder.setup_of(record), record.owner, record.since_ms, record.request, where)

    def _oldest(self) -> Record | None:
        """Of those that are ready. One that has died, or that somebody has taken away, is to be removed. With the
        lock."""
        while self._shelf.ready:
            record = self._shelf.ready.popleft()
            if self._builder.lives(record):
                return record
            self._shelf.discard(record)
            self._wake.set()
        return None


def _own(record: Record, owner: str, request: str, where: Pin | None) -> Record:
    now = int(time.time() * 1000)
    chosen = where or Pin((), ())
    return replace(
        record, state="taken", owner=owner, request=request, since_ms=now, cpus=chosen.cpus, nodes=chosen.nodes
    )
