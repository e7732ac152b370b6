"""The loop from the VirtualMachine objects of a store to the machines of this node.

A round looks at the objects, the claims and what there is, and has each machine brought nearer to its object by a
thread of its own, so that a guest that takes its time to power down holds nobody up. Nothing is remembered that
matters: a round after a crash sees the same as one without it. What cannot be done yet is tried again, ever more
rarely, and at once when its object, one of its claims or the machine changes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from devalloc.api.meta import RELEASE
from devalloc.store import Expired, NotFound, Object, Store, StoreError, Unusable
from devalloc_node import marks
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.machine.view import Machine
from devalloc_node.platform import Platform
from devalloc_node.service.watching import Pulse
from devalloc_node.vms import claims as claimed
from devalloc_node.vms import objects
from devalloc_node.vms.claims import Claims
from devalloc_node.vms.keeper import Keeper
from devalloc_node.vms.outcome import Outcome
from devalloc_node.vms.running import Runners
from devalloc_node.vms.scaling import Scaling

log = logging.getLogger(__name__)

WORK_SECONDS = 90.0
"""For removing a machine whose object is gone."""
_IDENTITY = "identity/VirtualMachine"
KINDS = (objects.KIND, "DeviceClaim")


@dataclass(frozen=True, slots=True)
class Settings:
    """Times are in seconds."""

    resync: float = 60.0
    """Everything is looked at again this often, though nothing is known to have changed."""
    batch: float = 0.05
    """After a change more are waited for, so that what is applied together is seen together."""
    retry: float = 1.0
    """The pause after the first failure; twice as long after each further one,"""
    most: float = 60.0
    """but not longer."""
    grace: float = 300.0
    """How long a machine must be without its object, which this node did not let go, before it is removed (T16)."""
    workers: int = 8
    """Machines that are worked on at the same time."""


@dataclass(slots=True)
class _Turn:
    """When something is due again."""

    seen: Hashable = None
    """What it depended on when it was last looked at."""
    failures: int = 0
    at: float = 0.0


class VirtualMachines:
    """Run it in a thread of its own."""

    def __init__(
        self,
        store: Store,
        platform: Platform,
        pulse: Pulse,
        *,
        settings: Settings | None = None,
        removed: Callable[[str], None] = lambda what: None,
        clock: Callable[[], float] = time.monotonic,
        spawn: Callable[[Callable[[], None]], None] | None = None,
        scaling: Scaling | None = None,
        runners: Runners | None = None,
    ) -> None:
        """``pulse`` beats when a machine changed. ``removed`` is told ``machine`` when one whose object is gone was
        removed, for the metrics. ``spawn`` has something done in another thread."""
        self._store = store
        self._platform = platform
        self._pulse = pulse
        self._settings = settings or Settings()
        self._removed = removed
        self._clock = clock
        self._keeper = Keeper(store, platform, clock=clock, scaling=scaling, runners=runners)
        self._turns: dict[str, _Turn] = {}
        self._busy: set[str] = set()
        self._seen: set[str] = set()
        """What there was to look at in this round."""
        self._spawn = spawn or _in_thread
        self._gone_since: dict[str, float] = {}
        self._said: str | None = None

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set; what is under way goes on. Raises Unusable; all else is logged and tried again."""
        watching = threading.Thread(target=self._watch, args=(stop,), name="machines-watch", daemon=True)
        watching.start()
        while not stop.is_set():
            seen = self._pulse.count
            try:
                pause = self.round()
            except Unusable:
                raise
            except (NodeError, StoreError) as error:
                pause = self._settings.retry
                log.error("could not look at the machines; next try in %.0f s: %s", pause, error)
            except Exception:
                log.exception("could not look at the machines; next try in %.0f s", self._settings.retry)
                pause = self._settings.retry
            self._pulse.wait(seen, pause)
            stop.wait(self._settings.batch)
        watching.join()

    def round(self) -> float:
        """Begin all that is due and not under way; seconds until something is due again, though nothing changes.

        Raises StoreError, NodeError.
        """
        self._seen.clear()
        listing = self._store.list(KINDS)
        machines = [obj for obj in listing.objects if obj["kind"] == objects.KIND]
        claims = {
            (objects.namespace_of(obj), obj["metadata"]["name"]): obj
            for obj in listing.objects
            if obj["kind"] == "DeviceClaim"
        }
        held = self._platform.claims.held()
        node = self._platform.node_name
        claimed.tell_users(self._store, claims.values(), held, node)
        known = {machine.key: machine for machine in self._platform.machines.list()}
        kept = {key for key, machine in known.items() if machine.uid}
        for one in claimed.due(claims.values(), machines, held, node, kept):
            self._begin(f"claim {one.ref.uid}", (one.ref, one.force), partial(self._unprepare, one))
        here = {machine.uid for machine in known.values()}  # of objects that were taken from this node by hand, too
        mine = [
            obj
            for obj in machines
            if node in (objects.node_of(obj), objects.holder_of(obj)) or obj["metadata"]["uid"] in here
        ]
        for obj in mine:
            key = objects.key_of(obj)
            depends = (_depends(obj, claims, known.get(key)), self._keeper.scaling(key))
            self._begin(f"vm {obj['metadata']['uid']}", depends, partial(self._keeper.keep, obj, claims))
        for machine in self._orphans(machines, known):
            self._begin(f"vm {machine.uid}", machine, partial(self._remove, machine))
        # What is gone is never due again.
        self._turns = {name: turn for name, turn in self._turns.items() if name in self._seen or name in self._busy}
        return self._pause()

    def _begin(self, name: str, depends: Hashable, work: Callable[[], Outcome | None]) -> None:
        """Have it done by a worker, unless one is at it, none is free, or it is not due."""
        self._seen.add(name)
        if name in self._busy or len(self._busy) >= self._settings.workers:
            return
        turn = self._turns.setdefault(name, _Turn())
        if turn.seen != depends:
            turn.failures = 0
        elif self._clock() < turn.at:
            return
        turn.seen = depends
        self._busy.add(name)
        self._spawn(partial(self._work, name, turn, work))

    def _work(self, name: str, turn: _Turn, work: Callable[[], Outcome | None]) -> None:
        after: float | None = None
        try:
            outcome = work()
            failed = outcome is not None and bool(outcome.reason)
            after = outcome.after if outcome is not None else None
        except (NodeError, StoreError) as error:
            log.warning("%s: %s", name, error)
            failed = True
        except Exception:
            log.exception("%s", name)
            failed = True
        turn.failures = turn.failures + 1 if failed else 0
        settings = self._settings
        pause = min(settings.retry * 2 ** min(turn.failures - 1, 30), settings.most) if failed else settings.resync
        turn.at = self._clock() + (pause if after is None else after)
        self._busy.discard(name)
        self._pulse.beat()  # what changed meanwhile is looked at now, and how long to sleep is known

    def _pause(self) -> float:
        """Until the next thing is due. A worker that ends beats the pulse."""
        now = self._clock()
        if len(self._busy) >= self._settings.workers:
            return self._settings.resync
        due = [turn.at - now for name, turn in self._turns.items() if name not in self._busy]
        return max(0.0, min([self._settings.resync, *due]))

    def _watch(self, stop: threading.Event) -> None:
        """Beat the pulse when the store changes."""
        since = "0"
        while not stop.is_set():
            try:
                if since == "0":
                    since = self._store.list([]).resource_version
                    self._pulse.beat()
                with closing(self._store.watch(KINDS, since, timeout=self._settings.resync, stop=stop)) as events:
                    for event in events:
                        since = event.resource_version
                        self._pulse.beat()
            except Expired:
                since = "0"
            except Exception as error:
                if stop.is_set():
                    break
                log.warning("could not watch the machines' objects: %s", error)
                stop.wait(self._settings.retry)
        self._pulse.beat()

    def _unprepare(self, one: claimed.Due) -> Outcome | None:
        return None if claimed.unprepare(self._store, self._platform, one) else Outcome("ClaimHeld", one.why)

    # Machines whose objects are gone.

    def _is_same_store(self, gone: list[Machine]) -> bool:
        """Whether the objects come from where they came from before: of another store nothing is gone. Once nothing is
        left that has no object in it, it is the one that counts."""
        identity, journal = self._store.identity(), self._platform.claims.journal
        known = journal.setting(_IDENTITY)
        if known is None or (known != identity and not gone):
            journal.set(_IDENTITY, known := identity)
        if known != identity and known != self._said:
            self._said = known
            log.warning(
                "VirtualMachines come from another store than before (%s, and not %s): %s have no object in it and are "
                "left alone; delete them by hand if they are not wanted (`devalloc vm delete`)",
                identity,
                known,
                ", ".join(sorted(machine.key for machine in gone)),
            )
        return known == identity

    def _orphans(self, machines: list[Object], known: Mapping[str, Machine]) -> list[Machine]:
        """Those that have been without an object for the whole of the grace period."""
        uids = {obj["metadata"]["uid"] for obj in machines}
        gone = [machine for machine in known.values() if machine.uid and machine.uid not in uids]
        self._platform.without_object = frozenset(machine.uid for machine in gone)
        if not self._is_same_store(gone):
            return []
        now = self._clock()
        self._gone_since = {machine.uid: self._gone_since.get(machine.uid, now) for machine in gone}
        return [machine for machine in gone if now - self._gone_since[machine.uid] >= self._settings.grace]

    def _remove(self, machine: Machine) -> Outcome | None:
        """Only when the store says, asked for that very object, that it is gone (T16)."""
        namespace, _, name = machine.key.partition("/")
        try:
            if self._store.get(objects.KIND, namespace, name)["metadata"]["uid"] == machine.uid:
                return None
        except NotFound:
            pass
        log.warning("machine %s (uid %s) is removed: its VirtualMachine is gone", machine.key, machine.uid)
        self._keeper.leave(machine.key)
        due = Deadline.after(WORK_SECONDS)
        self._platform.delete(machine.key, None, due, owner=machine.uid, force=not machine.adopted, caller="reconcile")
        self._removed("machine")
        return None


def _in_thread(work: Callable[[], None]) -> None:
    """A thread that does not keep the process: what it leaves unfinished, the next start goes on with."""
    threading.Thread(target=work, name="machine", daemon=True).start()


def _depends(obj: Object, claims: Claims, machine: Machine | None) -> Hashable:
    """What must change for a machine to be worth another look before its time."""
    metadata = obj["metadata"]
    versions = [
        (
            claim["metadata"]["generation"],
            claim["metadata"].get("annotations", {}).get(RELEASE),
            bool(allocated),
            marks.is_unsettled(claim),
        )
        for name in objects.claim_names(obj)
        if (claim := claims.get((objects.namespace_of(obj), name))) is not None
        for allocated in [claim.get("status", {}).get("allocations")]
    ]
    # Each start that fails was a run of its own, which is no news: only that of a machine that runs is.
    run = machine.id if machine is not None and machine.runs and not machine.is_paused else ""
    seen = (
        None if machine is None else (machine.phase, run and machine.reason, run, machine.observed, machine.is_paused)
    )
    status = obj.get("status") or {}
    kept = status.get("allocations")
    placed = (
        status.get("nodeName"),
        status.get("numaNode"),
        repr(kept),
        kept and objects.why_not_admitted(obj),
        objects.is_unsettled(obj),
    )
    return (metadata["generation"], tuple(versions), seen, placed)
