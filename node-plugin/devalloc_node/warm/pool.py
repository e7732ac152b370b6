"""The pool: setups that are ready, who has which, and what goes on behind it.

A setup goes one way: it is made, ready, taken, removed. What comes back is removed and another one made in its place,
for what an owner has left in a namespace (addresses, routes, rules, files) cannot be told for certain. So the id of a
setup is that of one use.

Nothing on the host is changed while the pool's lock is held.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from devalloc.inventory.capacity.cpus import Cpus, read_cpus
from devalloc.inventory.sysfs import Tree
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.lockfile import holder_of, take
from devalloc_node.names import shown
from devalloc_node.warm.build import Builder, Leftover
from devalloc_node.warm.errors import NotTaken, TryAgain
from devalloc_node.warm.occupants import occupants
from devalloc_node.warm.parts import Part
from devalloc_node.warm.pinning import Pin, pin
from devalloc_node.warm.records import Record, Records
from devalloc_node.warm.setup import WarmConfig
from devalloc_node.warm.view import Status, Taken

log = logging.getLogger(__name__)

MOST_TEXT = 253
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
    ) -> None:
        """``boot``: the kernel's boot id. ``parts``: what setups are made of, None for what the config asks for.
        ``cpus``: those of the host, asked for now and then. ``blind``: why processes of the host cannot be seen."""
        self.config = config
        self._records = Records(config.run / "records")
        self._builder = Builder(config, self._records, boot, parts)
        self._boot = boot
        self._read_cpus = cpus
        self._blind = blind
        self._cpus = Cpus(None, frozenset(), frozenset(), ())
        self._mutex = threading.Condition()  # a thread may take it again that has it
        # Under the mutex:
        self._idle: deque[Record] = deque()
        """Oldest first."""
        self._taken: dict[str, Record] = {}
        self._asked: set[tuple[str, str]] = set()
        """Owners and requests that are being answered."""
        self._coming_back: set[str] = set()
        """Those of the taken ones that somebody gives back just now."""
        self._making = 0
        self._removing: dict[str, Record] = {}
        self._in_hand: set[str] = set()
        """Those of these that somebody removes just now."""
        self._open = False
        self._made = self._failures = 0
        self._problem = ""
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
        self._cpus = self._read_cpus()
        found, unreadable = self._records.all()
        for name in unreadable:
            log.error("the record of warm setup %s cannot be read; remove by hand what has that name, then it", name)
        self._builder.recall(found)
        whole = [record for record in found if record.state == "idle" and self._builder.is_whole(record)]
        lived_in = self._occupants(whole)
        ready = [record for record in whole if record.id not in lived_in]
        with self._mutex:
            for record in found:
                if record.state == "taken" and record.boot == self._boot:
                    self._taken[record.id] = record
                elif record not in ready:
                    self._removing[record.id] = replace(record, state="removing")
            self._idle.extend(ready)
            self._open = True

    def close(self, deadline: Deadline) -> Status:
        """Remove all that nobody has taken; the status then. What is taken stays, and is known again after ``open``,
        and so is what could not be removed before the deadline."""
        with self._mutex:
            if not self._open:
                return self.status()
            self._open = False
            while self._making and not deadline.passed:  # whoever makes one sees that it is not wanted any more
                self._mutex.wait(deadline.seconds)
            while self._idle:
                record = self._idle.popleft()
                self._removing[record.id] = replace(record, state="removing")
        self._wake.set()
        self._remove_all()
        if not self._making:  # else the next plugin waits for the end of this process
            os.close(self._lock)
        return self.status()

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

    def take(self, owner: str, request: str = "", *, vcpus: int = 0, one_node: bool = False) -> Taken:
        """Give a setup to ``owner``: one that is ready, the oldest first, or where there is none and the config allows
        it one that is made for him.

        It is his, whatever becomes of the plugin, when this returns. ``request``: a name for this taking, under which
        it may be asked for again: the same setup is the answer. ``vcpus``: choose so many CPUs for him, with
        ``one_node`` of one NUMA node. Raises TryAgain where there is none to be had now, Denied ``OwnerInvalid``,
        ``CpusTooFew``, Failed.
        """
        for what, text, least in (("owner", owner, 1), ("request", request, 0)):
            if not least <= len(text) <= MOST_TEXT or not text.isprintable():
                raise Denied(
                    "OwnerInvalid",
                    f"the {what} of a setup is {shown(text)}, and must be {least} to {MOST_TEXT} printable characters",
                )
        asked = (owner, request)
        with self._mutex:
            self._check_open()
            if request and asked in self._asked:
                raise Denied("SetupBusy", f"request {request} of {owner} is under way already", retryable=True)
            if request and (before := self._of_request(owner, request)) is not None:
                return self._told(before)
            self._asked.add(asked)
        try:
            return self._told(self._given(owner, request, vcpus, one_node))
        finally:
            with self._mutex:
                self._asked.discard(asked)

    def _given(self, owner: str, request: str, vcpus: int, one_node: bool) -> Record:
        with self._mutex:
            pin = self._pin(vcpus, one_node)
            record = self._oldest()
            if record is not None:
                record = _own(record, owner, request, pin)
                self._taken[record.id] = record
            else:
                self._begin_making(1, demanded=True)
        if record is None:
            return self._made_for(owner, request, vcpus, one_node)
        self._note_taking(record)
        return record

    def _made_for(self, owner: str, request: str, vcpus: int, one_node: bool) -> Record:
        made = self._make_one()
        if made is None:
            raise _closing()
        try:
            with self._mutex:
                chosen = self._pin(vcpus, one_node)  # others have taken CPUs meanwhile
                record = self._taken[made.id] = _own(made, owner, request, chosen)
                self._finish_making(None)
        except NodeError:
            self._finish_making(made)
            raise
        self._note_taking(record)
        return record

    def _note_taking(self, record: Record) -> None:
        """On disk it is his too, or it is ready again. Raises Failed."""
        try:
            self._records.put(record)
        except NodeError:
            record = self._disown(record)
            with self._mutex:
                del self._taken[record.id]
                self._idle.appendleft(record)
            raise
        self._wake.set()

    def _disown(self, record: Record) -> Record:
        """Nobody was told that it is his: it is ready, on disk too where that can be."""
        record = replace(record, state="idle", owner="", request="", since_ms=0, cpus=(), nodes=())
        with suppress(NodeError):  # or it counts as taken after a crash, until its lease is over
            self._records.put(record)
        return record

    def _of_request(self, owner: str, request: str) -> Record | None:
        return next((r for r in self._taken.values() if (r.request, r.owner) == (request, owner)), None)

    def give_back(self, setup: str, deadline: Deadline) -> None:
        """Take a setup from its owner and remove it, once nobody lives in it any more.

        Raises NotTaken where nobody has it (also the second time), Denied ``SetupInUse`` (retryable) where somebody
        still lives in it at the deadline: it stays taken then.
        """
        with self._mutex:
            self._check_open()
            record = self._taken.get(setup)
            if record is None:
                raise NotTaken(setup)
            if setup in self._coming_back:
                raise Denied(
                    "SetupBusy", f"setup {setup} is being given back by somebody else just now", retryable=True
                )
            self._coming_back.add(setup)
        try:
            self._await_quiet(record, deadline)
            record = replace(record, state="removing")
            self._records.put(record)  # from here on nobody has it, whatever becomes of the plugin
            with self._mutex:
                del self._taken[setup]
                self._removing[setup] = record
        finally:
            with self._mutex:
                self._coming_back.discard(setup)
        self._remove(record, {})
        self._wake.set()

    def _await_quiet(self, record: Record, deadline: Deadline) -> None:
        while who := self._occupants([record], asking=True).get(record.id):
            if deadline.passed:
                raise Denied(
                    "SetupInUse",
                    f"setup {record.id} of {record.owner} cannot be given back while it is in use, by "
                    f"{', '.join(who)}; end that first",
                    retryable=True,
                )
            time.sleep(min(_POLL_SECONDS, deadline.seconds))

    # Filling.

    def fill(self, number: int) -> None:
        """Make so many more, several at a time. Where one fails those that are made or being made stay, no further one
        is begun, and the first error is raised. Raises TryAgain, before any is made, where there may not be so many."""
        if number < 1:
            return
        with self._mutex:
            self._check_open()
            self._begin_making(number, demanded=False)
        left, first = iter(range(number)), None
        counting = threading.Lock()
        stopped = threading.Event()
        begun = 0

        def work() -> None:
            nonlocal begun
            while not stopped.is_set():
                with counting:
                    if next(left, None) is None:
                        return
                    begun += 1
                try:
                    record = self._make_one()
                    if record is not None:
                        self._finish_making(record)
                except BaseException:
                    stopped.set()
                    raise

        with ThreadPoolExecutor(min(self.config.workers, number), thread_name_prefix="warm") as workers:
            for done in as_completed([workers.submit(work) for _ in range(min(self.config.workers, number))]):
                first = first or done.exception()
        with self._mutex:
            self._making -= number - begun
            self._mutex.notify_all()
        if first is not None:
            raise first

    def refill(self) -> None:
        """Make as many as are missing. Raises NodeError for the first that cannot be made."""
        with self._mutex:
            room = self.config.most - self._total()
            missing = self.config.target - len(self._idle) - self._making if self._open else 0
        with suppress(TryAgain):  # somebody else was faster
            self.fill(min(missing, room))

    def look(self) -> None:
        """See which CPUs the host has now and what has died of what is ready; try to remove what could not be removed.

        Raises NodeError, OSError."""
        self._cpus = self._read_cpus()
        with self._mutex:
            ready = list(self._idle)
        dead = {record.id for record in ready if not self._builder.lives(record)}
        with self._mutex:
            for record in [each for each in self._idle if each.id in dead]:
                self._idle.remove(record)
                self._removing[record.id] = replace(record, state="removing")
        self._remove_all()

    def await_change(self, seconds: float) -> None:
        """Until a setup was taken or given back, or ``poke``; so long at most."""
        self._wake.wait(seconds)
        self._wake.clear()

    def poke(self) -> None:
        """Whoever awaits a change has waited long enough."""
        self._wake.set()

    # How it is.

    def status(self) -> Status:
        with self._mutex:
            return Status(
                self.config.target,
                self.config.most,
                len(self._idle),
                self._making,
                len(self._removing),
                tuple(map(self._told, sorted(self._taken.values(), key=lambda each: each.since_ms))),
                self._made,
                self._failures,
                self._problem,
            )

    def _told(self, record: Record) -> Taken:
        pin = Pin(record.cpus, record.nodes) if record.cpus else None
        return Taken(self._builder.setup_of(record), record.owner, record.since_ms, record.request, pin)

    # Within. The first ones are called with the mutex.

    def _check_open(self) -> None:
        if not self._open:
            raise _closing()

    def _total(self) -> int:
        return len(self._idle) + len(self._taken) + self._making + len(self._removing)

    def _oldest(self) -> Record | None:
        """Of those that are ready. One that has died, or that somebody has taken away, is to be removed."""
        while self._idle:
            record = self._idle.popleft()
            if self._builder.lives(record):
                return record
            self._removing[record.id] = replace(record, state="removing")
            self._wake.set()
        return None

    def _pin(self, vcpus: int, one_node: bool) -> Pin | None:
        """Counted anew from those who have CPUs, so that none stays counted whose owner has gone. Raises Denied."""
        if not vcpus:
            return None
        loads = Counter(cpu for record in self._taken.values() for cpu in record.cpus)
        return pin(self._cpus, loads, vcpus, most=self.config.vcpus_per_cpu, one_node=one_node)

    def _begin_making(self, number: int, *, demanded: bool) -> None:
        """Have room for so many. Raises TryAgain."""
        total, most = self._total(), self.config.most
        if demanded and not self.config.on_demand:
            raise TryAgain("setups", f"no warm setup is ready, and {self._making} are being made")
        if total + number > most:
            raise TryAgain(
                "setups",
                f"{number} more warm setups would be {total + number}, and {most} may be: {len(self._taken)} are "
                f"taken, {len(self._idle)} ready, {self._making} being made and {len(self._removing)} being removed",
            )
        self._making += number

    def _make_one(self) -> Record | None:
        """One of those that room was made for; None where it is not wanted any more. Not with the mutex."""
        try:
            if not self._open:
                self._finish_making(None)
                return None
            _, record = self._builder.make()
        except BaseException as error:
            with self._mutex:
                self._finish_making(None)
                self._failed(error)
                if isinstance(error, Leftover):
                    self._removing[error.record.id] = error.record
            raise
        with self._mutex:
            self._made += 1
            self._problem = ""
            if self._open:
                return record
            self._removing[record.id] = replace(record, state="removing")
            self._finish_making(None)
        self._remove(record, {})
        return None

    def _finish_making(self, record: Record | None) -> None:
        with self._mutex:
            self._making -= 1
            if record is not None:
                self._idle.append(record)
            self._mutex.notify_all()

    def _occupants(self, records: Sequence[Record], *, asking: bool = False) -> dict[str, Sequence[str]]:
        """Who lives in them, but for machines that wait there. ``asking``: these may have been used since, and are
        asked whether they were."""
        waiting = {}
        for record in records:
            process = self._builder.process_of(record)
            if process is not None and (not asking or self._builder.is_unused(record)):
                waiting[record.id] = process
        return dict(occupants([self._builder.setup_of(record) for record in records], waiting))

    def empty(self) -> Sequence[Taken]:
        """Those taken in which nothing lives but, perhaps, the machine that waited there. Raises NodeError."""
        with self._mutex:
            taken = list(self._taken.values())
        lived_in = self._occupants(taken)
        return [self._told(record) for record in taken if record.id not in lived_in]

    def _remove_all(self) -> None:
        """Try those that are to be removed, several at a time."""
        with self._mutex:
            records = list(self._removing.values())
        if not records:
            return
        lived_in = self._occupants(records)
        with ThreadPoolExecutor(min(self.config.workers, len(records)), thread_name_prefix="warm") as workers:
            list(workers.map(lambda record: self._remove(record, lived_in), records))

    def _remove(self, record: Record, lived_in: Mapping[str, Sequence[str]]) -> None:
        """What cannot be removed now is tried again. ``lived_in``: who lives where."""
        with self._mutex:
            if record.id in self._in_hand or record.id not in self._removing:
                return
            self._in_hand.add(record.id)
        try:
            if who := lived_in.get(record.id):
                raise Denied("SetupInUse", f"setup {record.id} is not removed, for it is used by {', '.join(who)}")
            self._builder.remove(record)
        except NodeError as error:
            log.warning("%s", error)
            self._failed(error)
        else:
            with self._mutex:
                self._removing.pop(record.id, None)
        finally:
            with self._mutex:
                self._in_hand.discard(record.id)

    def _failed(self, error: BaseException) -> None:
        with self._mutex:
            self._failures += 1
            self._problem = str(error)


def _own(record: Record, owner: str, request: str, pin: Pin | None) -> Record:
    now = int(time.time() * 1000)
    chosen = pin or Pin((), ())
    return replace(
        record, state="taken", owner=owner, request=request, since_ms=now, cpus=chosen.cpus, nodes=chosen.nodes
    )


def _closing() -> TryAgain:
    return TryAgain("pool", "the pool of warm setups is not open: the node plugin starts, or ends")
