"""The pool: setups that are ready, who has which, and what goes on behind it.

A setup goes one way: it is made, ready, taken, removed. What comes back is removed and another one made in its place,
for what an owner has left in a namespace (addresses, routes, rules, files) cannot be told for certain. So the id of a
setup is that of one use.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from devalloc.file_lock import FileLock
from devalloc.inventory.capacity.cpus import CpuTopology, read_cpus
from devalloc.inventory.capacity.machines import MachineUsage
from devalloc.inventory.sysfs import Tree
from devalloc.worker import repeat
from devalloc_machines.qemu.cpu_pinning import CpuHolder, CpuPinning, NotEnoughCpus, choose_cpus
from devalloc_machines.qemu.spec import MachineSandbox, MachineSpec, SandboxProvider, whole_cpus
from devalloc_machines.warm.builder import Admit, Leftover, SetupBuilder, SetupTeardown
from devalloc_machines.warm.pool_state import PoolState, pool_closed_error
from devalloc_machines.warm.records import SetupRecord, SetupRecords
from devalloc_machines.warm.settings import WarmConfig
from devalloc_machines.warm.setup import NotEnoughSetups, PoolStatus, SetupNotTaken, SetupPart, TakenSetup
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.journal.audit_log import audit
from devalloc_node.model.grant import shown
from devalloc_node.model.network_address import NetworkAddress

log = logging.getLogger(__name__)

MOST_TEXT = 400
"""Characters of an owner, and of a request."""
LOCK = "lock"
"""Name of the file that a pool locks while it is open."""
_POLL_SECONDS = 0.05


def is_served(run: Path) -> bool:
    """Whether a process has opened the pool in this folder. Raises OSError."""
    try:
        with FileLock.existing(run / LOCK) as lock:
            return lock.is_locked_elsewhere()
    except FileNotFoundError:
        return False


class Pool:
    """Safe for threads. ``open`` first, ``close`` at the end; ``background`` fills it meanwhile."""

    def __init__(
        self,
        config: WarmConfig,
        boot: str,
        *,
        parts: Sequence[SetupPart] | None = None,
        cpus: Callable[[], CpuTopology] = lambda: read_cpus(Tree(Path("/"))),
        blind: Callable[[], str | None] = lambda: None,
        admit: Admit = lambda machine, spec: nullcontext(),
        exclusive: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """``boot``: the kernel's boot id. ``parts``: what setups are made of, None for what the config asks for.
        ``cpus``: those of the host, asked for when some are chosen. ``blind``: why its processes cannot be seen.
        ``admit``: asked for each machine that is to wait. ``exclusive``: CPUs that machines without a setup have for
        themselves."""
        self.config = config
        self._records = SetupRecords(config.run / "records")
        self._builder = SetupBuilder(config, self._records, boot, parts, admit)
        self._pool_state = PoolState(config)
        self._clearing = SetupTeardown(self._pool_state, self._builder, config.workers)
        self._boot = boot
        self._read_cpus = cpus
        self._blind = blind
        self._exclusive = exclusive
        self._wake = threading.Event()
        self._lock: FileLock | None = None

    # Its beginning and end.

    def open(self) -> None:
        """Take up what an earlier run has left: what is taken stays so, what is ready and whole is ready, and the rest
        is removed. Nothing else in these folders is touched.

        Raises Denied ``PoolInUse`` (retryable) if another plugin has it, ``ProcessesUnseen`` if it could not see
        who lives in a setup; Failed ``RecordsUnavailable``.
        """
        if (why := self._blind()) is not None:
            raise Denied("ProcessesUnseen", f"cannot keep warm setups: the plugin cannot see all processes: {why}")
        self._records.make_folder()
        self._lock = self._locked()
        try:
            self._recall()
        except BaseException:
            self._lock.close()
            raise
        self._remove_all()
        self._tidy_networks()

    def _recall(self) -> None:
        records, unreadable = self._records.all()
        for name in unreadable:
            log.error(
                "cannot read the record of warm setup %s; remove by hand everything with that name, then the record",
                name,
            )
        self._records.tidy()
        self._builder.recall(records)
        whole = [record for record in records if record.state == "ready" and self._builder.is_whole(record)]
        lived_in = self._clearing.occupants(whole)
        ready = [record for record in whole if record.id not in lived_in]
        with self._pool_state.mutex:
            for record in records:
                if record.state == "taken" and record.boot == self._boot:
                    self._pool_state.taken[record.id] = record
                elif record not in ready:
                    self._pool_state.discard(record)
            self._pool_state.ready.extend(ready)
            self._pool_state.is_open = True

    def close(self, deadline: Deadline) -> PoolStatus:
        """Remove all that have no owner; returns the status then. Taken setups stay, and are known again after
        ``open``, and so is what could not be removed before the deadline."""
        pool_state = self._pool_state
        with pool_state.mutex:
            if not pool_state.is_open:
                return self.status()
            pool_state.is_open = False
            # A thread that creates a setup, or waits for one to be quiet, sees that it is no longer wanted.
            while not pool_state.is_quiet and not deadline.passed:
                pool_state.mutex.wait(deadline.seconds)
            while pool_state.ready:
                pool_state.discard(pool_state.ready.popleft())
        self._wake.set()
        self._remove_all()
        if pool_state.is_quiet:
            self._tidy_networks()
        if pool_state.is_quiet and self._lock is not None:  # else the next plugin waits for the end of this process
            self._lock.close()
        return self.status()

    def _remove_all(self) -> None:
        try:
            self._clearing.remove_all()
        except NodeError as error:  # who lives there is not seen now; it is tried again
            log.warning("%s", error)

    def _tidy_networks(self) -> None:
        try:
            self._builder.remove_unused_networks()
        except NodeError as error:  # the next run tries again
            log.warning("%s", error)

    def _locked(self) -> FileLock:
        path = self.config.run / LOCK
        try:
            lock = FileLock(path)
        except OSError as error:
            raise Failed("RecordsUnavailable", f"cannot lock {path}: {error.strerror}") from error
        if not lock.try_lock():
            with lock:
                raise Denied("PoolInUse", f"{lock.holder()} serves the warm setups in {self.config.run}")
        return lock

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
    ) -> TakenSetup:
        """Give a setup to ``owner``: one that is ready, the oldest first, or, if there is none and the config allows
        it, one that is made for him.

        When this returns, the owner has it, even if the plugin crashes. ``request``: a name for this call; a repeated
        call with the same name gets the same setup. ``vcpus``: choose so many CPUs, with ``one_node`` on one NUMA node,
        with ``node`` on that one. ``bare``: the owner brings its own machine, so a setup that is created for it has no
        paused one (``end_waiting`` ends it in any other). Raises NotEnoughSetups if none is available now,
        Denied ``OwnerInvalid``, ``CpusTooFew`` or ``SetupBusy`` (retryable), and Failed.
        """
        for what, text, least in (("owner", owner, 1), ("request", request, 0)):
            if not least <= len(text) <= MOST_TEXT or not text.isprintable():
                raise Denied(
                    "OwnerInvalid",
                    f"the {what} of a setup must be {least} to {MOST_TEXT} printable characters, not {shown(text)}",
                )
        pool_state, key = self._pool_state, (owner, request)
        with pool_state.call():
            with pool_state.mutex:
                if request and key in pool_state.pending:
                    raise Denied("SetupBusy", f"request {request} of {owner} is already in progress")
                if request and (before := pool_state.of_request(owner, request)) is not None:
                    return self._taken_of(before)
                pool_state.pending.add(key)
            try:
                host = self._read_cpus() if vcpus else None  # as they are now: CPUs come and go

                def chosen() -> CpuPinning | None:
                    if host is None:
                        return None
                    most = self.config.vcpus_per_cpu
                    try:
                        return choose_cpus(
                            host, pool_state.loads(), vcpus,
                            most=most, one_node=one_node, only=node, exclusive=self._exclusive(),
                        )  # fmt: skip
                    except NotEnoughCpus as error:
                        raise NotEnoughSetups(
                            "cpus",
                            f"{error.message}; return a setup that is no longer used (devalloc warm list shows them), "
                            "or stop a pinned machine",
                        ) from None

                return self._taken_of(self._given(owner, request, chosen, bare))
            finally:
                with pool_state.mutex:
                    pool_state.pending.discard(key)

    def _given(self, owner: str, request: str, chosen: Callable[[], CpuPinning | None], bare: bool) -> SetupRecord:
        pool_state = self._pool_state
        with pool_state.mutex:
            where = chosen()
            record = self._oldest()
            if record is not None:
                record = pool_state.taken[record.id] = _owned_record(record, owner, request, where)
            elif not self.config.on_demand:
                raise NotEnoughSetups("setups", f"no warm setup is ready; {pool_state.making} are being created")
            else:
                pool_state.begin_making(1)
        if record is None:
            return self._made_for(owner, request, chosen, bare)
        self._note_taking(record)
        return record

    def _made_for(self, owner: str, request: str, chosen: Callable[[], CpuPinning | None], bare: bool) -> SetupRecord:
        pool_state, made = self._pool_state, self._make_one(bare=bare)
        if made is None:
            raise pool_closed_error()
        try:
            with pool_state.mutex:
                record = pool_state.taken[made.id] = _owned_record(
                    made, owner, request, chosen()
                )  # others have CPUs by now
                pool_state.finish_making(None)
        except NodeError:
            with pool_state.mutex:
                pool_state.finish_making(None)
                self._put_back(made)
            raise
        self._note_taking(record)
        return record

    def _note_taking(self, record: SetupRecord) -> None:
        """On disk it is his too, or it is ready again. Raises Failed."""
        try:
            self._records.put(record)
        except NodeError:
            record = self._disown(record)
            with self._pool_state.mutex:
                del self._pool_state.taken[record.id]
                self._put_back(record)
            raise
        self._wake.set()

    def _put_back(self, record: SetupRecord) -> None:
        """Put an unused one among the ready ones, if it is like them. With the lock."""
        if self._builder.has_all(record):
            self._pool_state.ready.appendleft(record)
        else:
            self._pool_state.discard(record)

    def _disown(self, record: SetupRecord) -> SetupRecord:
        """Its owner never got an answer: it is ready again, on disk too if possible."""
        record = replace(record, state="ready", owner="", request="", since_ms=0, cpus=(), nodes=())
        with suppress(NodeError):  # or it counts as taken after a crash, until its lease is over
            self._records.put(record)
        return record

    def give_back(self, setup: str, deadline: Deadline) -> None:
        """Take a setup from its owner, and remove it once it has no users.

        Raises SetupNotTaken if it is not taken (also the second time), and Denied ``SetupInUse`` (retryable) if a
        process still uses it at the deadline: then it stays taken.
        """
        pool_state = self._pool_state
        with pool_state.call():
            with pool_state.changing(setup) as record:
                self._await_quiet(record, deadline)
                record = replace(record, state="removing")
                self._records.put(record)  # from here on it has no owner, whatever becomes of the plugin
                with pool_state.mutex:
                    del pool_state.taken[setup]
                    pool_state.discard(record)
            self._clearing.remove(record, {})
        self._wake.set()

    def _await_quiet(self, record: SetupRecord, deadline: Deadline) -> None:
        while who := self._clearing.occupants([record], asking=True).get(record.id):
            self._pool_state.check_open()
            if deadline.passed:
                raise Denied(
                    "SetupInUse",
                    f"setup {record.id} of {record.owner} is still in use by {', '.join(who)}; end that first",
                )
            time.sleep(min(_POLL_SECONDS, deadline.seconds))

    def end_waiting(self, setup: str) -> None:
        """End the machine that waits in a setup that is taken, as its owner brings one of his own. May be done again.
        Raises SetupNotTaken, Failed ``SetupNotRemoved``."""
        with self._pool_state.call(), self._pool_state.changing(setup) as record:
            record = self._builder.without_machine(record)
            with self._pool_state.mutex:
                self._pool_state.taken[setup] = record

    # What goes on behind it.

    def fill(self, number: int) -> None:
        """Create so many more, several at a time. If one fails, those that exist or are being created stay, no further
        one begins, and the first error is raised. Raises NotEnoughSetups, before it creates any, above the maximum."""
        if number < 1:
            return
        with self._pool_state.mutex:
            self._pool_state.check_open()
            self._pool_state.begin_making(number)
        first: BaseException | None = None
        counting = threading.Lock()
        stopped = threading.Event()
        begun = 0

        def work() -> None:
            nonlocal begun
            if stopped.is_set():
                return
            with counting:
                begun += 1
            try:
                record = self._make_one()
                if record is not None:
                    self._pool_state.finish_making(record)
            except BaseException:
                stopped.set()
                raise

        try:
            with ThreadPoolExecutor(min(self.config.workers, number), thread_name_prefix="warm") as workers:
                for done in as_completed([workers.submit(work) for _ in range(number)]):
                    first = first or done.exception()
        finally:  # also if no thread can be had
            with self._pool_state.mutex:
                self._pool_state.making -= number - begun
                self._pool_state.mutex.notify_all()
        if first is not None:
            raise first

    def refill(self) -> None:
        """Make as many as are missing, and remove what is ready beyond the target. Raises NodeError for the first that
        cannot be made."""
        with self._pool_state.mutex:
            surplus = len(self._pool_state.ready) - (self.config.target or 0) if self._pool_state.is_open else 0
            for _ in range(surplus):  # of an earlier run that kept more
                self._pool_state.discard(self._pool_state.ready.pop())
        if surplus > 0:
            self._clearing.remove_all()
        with self._pool_state.mutex:
            room = self.config.most - self._pool_state.total
            ready = len(self._pool_state.ready) + self._pool_state.making
            missing = (self.config.target or 0) - ready if self._pool_state.is_open else 0
        with suppress(NotEnoughSetups):  # another caller was faster
            self.fill(min(missing, room))

    def _make_one(self, *, bare: bool = False) -> SetupRecord | None:
        """One of those that room was made for, still counted as being made; None if it is not wanted any more.
        ``bare``: no machine is to wait in it. Without the lock. Raises Failed, NotEnoughSetups."""
        pool_state = self._pool_state
        try:
            if not pool_state.is_open:
                pool_state.finish_making(None)
                return None
            _, record = self._builder.make(bare=bare)
        except BaseException as error:
            with pool_state.mutex:
                pool_state.finish_making(None)
                pool_state.failed(error)
                if isinstance(error, Leftover):
                    pool_state.discard(error.record)
            raise
        with pool_state.mutex:
            pool_state.made += 1
            pool_state.problem = ""
            if pool_state.is_open:
                return record
            record = pool_state.discard(record)
            pool_state.finish_making(None)
        self._clearing.remove(record, {})
        return None

    def look(self) -> None:
        """See what has died of what is ready; try to remove what could not be removed. Raises NodeError."""
        with self._pool_state.mutex:
            ready = list(self._pool_state.ready)
        dead = {record.id for record in ready if not self._builder.lives(record)}
        with self._pool_state.mutex:
            for record in [each for each in self._pool_state.ready if each.id in dead]:
                self._pool_state.ready.remove(record)
                self._pool_state.discard(record)
        self._clearing.remove_all()
        self._records.keep_spare()
        try:
            self._builder.keep_network()
        except NodeError as error:  # the next look tries again
            log.warning("%s", error)
            self._pool_state.failed(error)

    def await_change(self, seconds: float) -> None:
        """Until a setup was taken or given back, or ``poke``; so long at most."""
        self._wake.wait(seconds)
        self._wake.clear()

    def poke(self) -> None:
        """Wake the threads that wait for a change."""
        self._wake.set()

    # How it is.

    def status(self) -> PoolStatus:
        pool_state = self._pool_state
        with pool_state.mutex:
            return PoolStatus(
                self.config.target or 0,
                self.config.most,
                len(pool_state.ready),
                pool_state.making,
                len(pool_state.removing),
                self.taken(),
                pool_state.made,
                pool_state.failures,
                pool_state.problem,
            )

    def taken(self) -> Sequence[TakenSetup]:
        """Those taken longest first."""
        with self._pool_state.mutex:
            return tuple(map(self._taken_of, sorted(self._pool_state.taken.values(), key=lambda each: each.since_ms)))

    def empty(self) -> Sequence[TakenSetup]:
        """Those taken in which nothing lives but, perhaps, the machine that waited there. Raises NodeError."""
        with self._pool_state.mutex:
            taken = list(self._pool_state.taken.values())
        lived_in = self._clearing.occupants(taken)
        return [self._taken_of(record) for record in taken if record.id not in lived_in]

    @contextmanager
    def choosing_cpus(self) -> Iterator[Sequence[TakenSetup]]:
        """Inside, no setup is given CPUs; all that are taken."""
        with self._pool_state.mutex:
            yield self.taken()

    def uses(self) -> Iterator[MachineUsage]:
        """What the machines in setups take of the host, taken setups included. Also of a pool that another
        plugin has. Raises Failed (``RecordsUnavailable``)."""
        return self._builder.uses()

    def _taken_of(self, record: SetupRecord) -> TakenSetup:
        where = CpuPinning(record.cpus, record.nodes) if record.cpus else None
        return TakenSetup(self._builder.setup_of(record), record.owner, record.since_ms, record.request, where)

    def _oldest(self) -> SetupRecord | None:
        """Of those that are ready. One that has died, or that is gone, must be removed. With the
        lock."""
        while self._pool_state.ready:
            record = self._pool_state.ready.popleft()
            if self._builder.lives(record):
                return record
            self._pool_state.discard(record)
            self._wake.set()
        return None


def _owned_record(record: SetupRecord, owner: str, request: str, where: CpuPinning | None) -> SetupRecord:
    now = int(time.time() * 1000)
    chosen = where or CpuPinning((), ())
    return replace(
        record, state="taken", owner=owner, request=request, since_ms=now, cpus=chosen.cpus, nodes=chosen.nodes
    )


_STOP_SECONDS = 0.5
"""How soon a stop is seen."""
_PAUSES = (1.0, 60.0)
"""The first and the longest back-off after setups could not be made, in seconds."""


class PoolBackground:
    """Of one pool, in one thread: ``keep``."""

    def __init__(
        self, pool: Pool, clock: Callable[[], float] = time.monotonic, sweep: Callable[[], None] = lambda: None
    ) -> None:
        """``sweep``: takes back what machines that have ended still have."""
        self._pool = pool
        self._sweep = sweep
        self._clock = clock
        self._empty_since: dict[str, float] = {}
        """The setups that had no users at the last look, and since when."""

    def keep(self, stop: threading.Event) -> None:
        """Until ``stop``."""
        look, looked = self._pool.config.look_seconds, float("-inf")

        def maintain() -> float:
            nonlocal looked
            if self._clock() - looked >= look:  # first: it must not wait until setups can be made again
                looked = self._clock()
                self._sweep()
                self._pool.look()
                self.take_back_forgotten()
            self._pool.refill()
            self._pool.await_change(min(look, _STOP_SECONDS))
            return 0.0

        # What is done unasked must not end what was asked for.
        first, most = _PAUSES
        repeat(stop, maintain, first, "cannot maintain the warm setups", most=most, expected=(NodeError,))

    def take_back_forgotten(self) -> None:
        """Give back for their owners the setups that had no users for the configured time."""
        empty, now = self._pool.empty(), self._clock()
        before, self._empty_since = self._empty_since, {}
        for each in empty:
            name = each.setup.id
            since = before.get(name, now)
            if now - since < self._pool.config.lease_seconds:
                self._empty_since[name] = since
                continue
            with suppress(NodeError):  # in use again, or given back by its owner
                self._pool.give_back(name, Deadline.after(0))
                log.warning("reclaimed setup %s of %s: no process has used it for long", name, each.owner)
                audit("warm", setup=name, owner=each.owner, reason="no process has used it for long")


OWNER = "machine/"
"""The prefix of owners that are machines of this node, before their key; no other owner has it."""
_QUIET_SECONDS = 2.0
"""How long whatever else lives in the setup of a machine that has ended may take to leave."""


class WarmSandboxes(SandboxProvider):
    """Safe for threads."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def give(self, spec: MachineSpec, run: str) -> MachineSandbox:
        """A setup, with the CPUs that it was given if it is to be pinned. Raises NotEnoughSetups, Denied, Failed."""
        owner = f"{OWNER}{spec.key}"
        for left in self._of(owner):
            if left.request != run:  # of a start that was cut off
                self._give_back(left)
        vcpus = whole_cpus(spec.cpus.most) if spec.pinned else 0
        taken = self._pool.take(owner, run, vcpus=vcpus, node=spec.numa_node, bare=True)
        self._pool.end_waiting(taken.setup.id)
        cpus = () if taken.pin is None else taken.pin.cpus
        return MachineSandbox(taken.setup.namespace, cpus, taken.setup.network)

    def network(self, key: str, run: str) -> NetworkAddress | None:
        owner = f"{OWNER}{key}"
        return next((taken.setup.network for taken in self._of(owner) if taken.request == run), None)

    @contextmanager
    def choosing_cpus(self) -> Iterator[Mapping[int, Sequence[CpuHolder]]]:
        holders: dict[int, list[CpuHolder]] = {}
        with self._pool.choosing_cpus() as setups:
            for taken in setups:
                is_machine = taken.owner.startswith(OWNER)
                holder = CpuHolder(taken.owner.removeprefix(OWNER)) if is_machine else CpuHolder(setup=taken.setup.id)
                for cpu in () if taken.pin is None else taken.pin.cpus:
                    holders.setdefault(cpu, []).append(holder)
            yield holders

    def take_back(self, key: str) -> None:
        for taken in self._of(f"{OWNER}{key}"):
            self._give_back(taken)

    def check_lent(self, spec: MachineSpec) -> None:
        """One that waits in a setup may be adopted by who has taken that."""
        socket = Path(spec.adopt or "/").resolve()  # links that lead there are followed when it is adopted
        if self._pool.config.paused.run.resolve() not in socket.parents:
            return
        qmps = (taken.setup.qmp for taken in self._pool.taken())
        if not any(qmp is not None and qmp.resolve() == socket for qmp in qmps):
            raise Denied(
                "SetupNotTaken",
                f"{socket} belongs to a warm setup that is not taken: take one (`devalloc warm take`) and adopt its "
                "machine",
            )

    def sweep(self, lives_in: Callable[[str, str], bool]) -> None:
        """Take back what a plugin that was killed, or was just starting, did not. ``lives_in``: whether a setup that
        one run of a machine was given is its still."""
        for taken in self._pool.taken():
            if taken.owner.startswith(OWNER) and not lives_in(taken.owner.removeprefix(OWNER), taken.request):
                with suppress(NodeError):  # still in use
                    self._pool.give_back(taken.setup.id, Deadline.after(0))

    def _of(self, owner: str) -> list[TakenSetup]:
        return [taken for taken in self._pool.taken() if taken.owner == owner]

    def _give_back(self, taken: TakenSetup) -> None:
        """What cannot be given back now is with the next sweep."""
        try:
            with suppress(SetupNotTaken, NotEnoughSetups):  # another call was faster, or the pool is not open yet
                self._pool.give_back(taken.setup.id, Deadline.after(_QUIET_SECONDS))
        except NodeError as error:
            log.warning("cannot give back the setup of %s, which has ended, yet: %s", taken.owner, error)
