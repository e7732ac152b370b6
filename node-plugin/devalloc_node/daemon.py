"""The daemon: all parts of the node plugin put together, begun in order, ended in order.

Machines and prepared claims outlive it. It may be killed at any moment: what was begun is in the journal, and the next
start undoes it before anybody is served.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal, TypeVar

from devalloc.api.pool import DevicePool
from devalloc.inventory import Discovery, Known, discover
from devalloc.inventory.sight import blind_spot
from devalloc.inventory.sysfs import Tree
from devalloc.version import installed_version
from devalloc_node import audit, health, tally
from devalloc_node.binding.table import Bindings, step_kinds
from devalloc_node.binding.use import user_of
from devalloc_node.claims import Claims, Locks, Options
from devalloc_node.claims.describe import made_vfs, not_undone
from devalloc_node.claims.files import ClaimFiles, FileKind, folders_ever
from devalloc_node.claims.reconcile import Reconciler, Report
from devalloc_node.claims.strays import strays
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.feed import Checkup, DeviceHealth
from devalloc_node.grant import ClaimRef, Grant, Grants
from devalloc_node.health import HealthWatch, LinkErrors
from devalloc_node.host.boundary import Host
from devalloc_node.journal import SQLiteJournal, open_journal
from devalloc_node.machine import house
from devalloc_node.machine.attachment import AttachmentKind
from devalloc_node.machine.machines import Machines
from devalloc_node.metrics import Metrics, State, served
from devalloc_node.plan import planned, rehearsed
from devalloc_node.platform import Platform
from devalloc_node.prepared import Prepared
from devalloc_node.service.door import open_door
from devalloc_node.service.node import About, NodeService
from devalloc_node.service.plugin import KubeletSockets
from devalloc_node.service.registration import kubelet_paths
from devalloc_node.service.server import Service
from devalloc_node.service.watching import Pulse
from devalloc_node.settings import KubeletSettings, NodeSettings
from devalloc_node.step import ATTACHMENT, Step
from devalloc_node.takeover import Place, taken
from devalloc_node.vms.restarts import Restarts

log = logging.getLogger(__name__)

Loop = Callable[[threading.Event], None]
"""Runs in a thread of its own until the event is set."""
Say = Callable[[str], None]
"""Told what people want to know; from any thread."""
Message = Literal["stop", "rescan"]
T = TypeVar("T")
_RESULTS = {Denied: "denied", Failed: "failed"}
LOOP_SECONDS = 2.0
"""How long a stop waits for loops. What they leave unfinished is in the journal, or was not begun."""
_TICK_SECONDS = 0.1
STATUS_SECONDS = 5.0
"""How often it is looked whether claims are to be told something about their devices."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where this node's claims are found: one dialect a node (T1)."""

    kind: str
    """``DeviceClaim`` or ``ResourceClaim``."""
    grants: Grants
    uid_of: Callable[[str, str], str | None]
    """Of the claim that has a namespace and name now; None where there is none. Raises Failed."""
    tell: Callable[[Iterable[Prepared], Checkup], None] = lambda prepared, checkup: None
    """Says on claims how their devices are; called again and again, from one thread."""
    look: Callable[[ClaimRef], Grant] | None = None
    """What a claim holds, without its counting as held; None where ``grants`` keep no count."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """What keeps the node's devices published where claims can find them; it looks with ``Node.discover``."""

    loops: Sequence[Loop] = ()
    rescan: Callable[[], None] | None = None
    """Look at the devices and publish them soon. From any thread. None: nobody publishes them."""


class Node:
    """The plugin of one node. Use ``opened``."""

    def __init__(self, settings: NodeSettings, host: Host, journal: SQLiteJournal, source: Source) -> None:
        self.settings = settings
        self.host = host
        self.source = source
        self.pulse = Pulse()
        self.bindings = Bindings(host, settings.bindings)
        self.machines = Machines(
            settings.machines, journal, changed=lambda key: self.pulse.beat(), ended=lambda: self.metrics.ended()
        )
        attachments = AttachmentKind(self.machines, host)
        files = ClaimFiles(settings.driver, settings.cdi, settings.data, journal)
        ever = folders_ever(journal, settings.written)
        self.claims = Claims(
            journal,
            Locks(settings.state / "locks"),
            {source.kind: source.grants},
            self.bindings.choose,
            {**step_kinds(host), "file": FileKind(host, ever), ATTACHMENT: attachments},
            options=Options(grace_seconds=settings.grace),
            render={"DeviceClaim": [files.spec], "ResourceClaim": [files.spec, files.metadata]},
            in_use=lambda device: user_of(self.host.tree(), device),
            remains=files.remains,
            rehearse=lambda ref, due: rehearsed(host, lambda: self._plan(ref, due), ref),
        )
        self.reconciler = Reconciler(
            self.claims,
            boot_id=self.boot_id,
            doubts=lambda held: strays(self.host.tree(), held),
            blind=lambda: blind_spot(self.host.tree()),
        )
        self.health = HealthWatch(self._subjects, on_change=self._health_changed)
        self.metrics = Metrics(self._state)
        self.platform = Platform(
            self.claims,
            self.machines,
            attachments,
            node_name=settings.node_name,
            uid_of=source.uid_of,
            exclusive=self.claims.locks.named,
            plan=self._plan,
            kind=source.kind,
            changed=self._claims_changed,
        )
        self._journal = journal
        self._pools: list[DevicePool] = []
        self._begun = self._done = 0
        """The last look at the devices that was begun, and that was done."""
        self._looked = threading.Condition()
        self._link_errors = LinkErrors()
        self._publishing = Publishing()
        self._to_tell = threading.Event()
        # Unlike an Event or a Queue, a SimpleQueue may be used in a signal handler.
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._failure: BaseException | None = None

    # What others do with it.

    def run(self, publishing: Publishing | None = None, say: Say = log.info, *, beside: Sequence[Loop] = ()) -> None:
        """Recover what a crash left, then serve until ``stop``. ``beside``: what else is to go on meanwhile.

        Raises Denied and Failed where a socket cannot be served or the audit log not written, and what ended a loop.
        """
        self._publishing = publishing or self._publishing
        stop = threading.Event()
        with ExitStack() as stack:
            try:
                stack.enter_context(audit.to_file(self.settings.state / "audit.log"))
            except OSError as error:
                raise Failed("JournalUnavailable", f"cannot write the audit log: {error}") from error
            stack.callback(self.machines.close)
            self.machines.recover()
            _tell(self.reconciler.recover(), say)
            rolling = self.settings.kubelet is not None and self.settings.kubelet.pod_uid is not None
            if (path := self.settings.socket) is not None:
                own = NodeService(self.platform, self._about(), self.metrics, self.pulse).service()
                what = f"{own.name} on {path}"
                stack.enter_context(taken(what, partial(_opened_door, what, path, own), wait=rolling, say=say))
            if self.settings.kubelet is not None:
                stack.enter_context(self._serving(self.settings.kubelet, say))
            if (address := self.settings.metrics) is not None:
                scraped = partial(self._scraped, address)  # machines do not wait for who has its port
                stack.enter_context(taken(f"metrics on {address} (--metrics)", scraped, wait=True, say=say))
            restarts = Restarts(self.platform, self.pulse, self.machines.to_restart)
            own_loops: list[Loop] = [
                self.health.run,
                self._tell_claims,
                partial(house.keep, self.machines),
                restarts.run,
            ]
            loops = [*own_loops, *self._publishing.loops, *beside]
            threads = [threading.Thread(target=self._guarded, args=(loop, stop), daemon=True) for loop in loops]
            for thread in threads:
                thread.start()
            self._reconcile(say)
            stop.set()
            self._claims_changed()
            for thread in threads:
                thread.join(LOOP_SECONDS)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End ``run`` soon. From any thread or signal handler."""
        self._messages.put("stop")

    def rescan(self) -> None:
        """Look at devices and claims now. From any thread or signal handler."""
        self._messages.put("rescan")

    def discover(self, known: Known) -> Discovery:
        """The devices of the host, of which more is known than ``known``: what is prepared, and what is withheld."""
        with self._looked:
            self._begun += 1
            number = self._begun
        withheld = health.uncleaned(self.claims.withheld())
        withheld |= health.not_undone(not_undone(self._journal, self.reconciler.gone)) | self.health.unhealthy()
        withheld |= known.withheld
        prepared = health.backing(self.claims.prepared())
        more = Known(known.held, prepared, withheld, known.made | made_vfs(self._journal))
        config = replace(self.settings.inventory.knowing(more), allowed=self.settings.bindings.allowed)
        found = discover(self.settings.root, node_name=self.settings.node_name, config=config)
        with self._looked:
            if found.pools or not any(problem.is_error for problem in found.problems):
                self._pools = found.pools
            self._done = max(self._done, number)
            self._looked.notify_all()
        self.pulse.beat()
        return found

    def look(self, deadline: Deadline) -> list[DevicePool]:
        """Look at the devices, publish them, and return them. Raises Failed where that was not done in time."""
        if self._publishing.rescan is None:
            return self.discover(Known()).pools
        with self._looked:
            begun = self._begun  # one that is under way may have missed what this is asked for
            self._publishing.rescan()
            if not self._looked.wait_for(lambda: self._done > begun, deadline.seconds):
                raise Failed("DeadlineExceeded", "the host's devices could not be looked at in time; ask again")
            return self._pools

    # For the kubelet.

    def prepare(self, ref: ClaimRef, deadline: Deadline) -> Prepared:
        """Raises NodeError."""
        return self._measured(
            "NodePrepareResources",
            lambda: self.claims.prepare(ref, deadline, kind=self.source.kind, caller="kubelet"),
        )

    def unprepare(self, ref: ClaimRef, deadline: Deadline) -> None:
        """Raises NodeError."""
        self._measured("NodeUnprepareResources", lambda: self.claims.unprepare(ref, deadline, caller="kubelet"))

    def _measured(self, method: str, work: Callable[[], T]) -> T:
        with self.metrics.timed(method) as timed:
            try:
                answer = work()
            except NodeError as error:
                timed.result = (
                    "denied" if isinstance(error, Denied) else "failed" if isinstance(error, Failed) else "unknown"
                )
                raise
            finally:
                self._claims_changed()
            timed.result = "done"
            return answer

    # Services and loops.

    def _about(self) -> About:
        return About(
            version=installed_version(),
            boot_id=self.boot_id(),
            started_ms=int(time.time() * 1000),
            journal=lambda: tally.journal_of(self._journal),
            pools=lambda: self._pools,
            rescan=self.look,
            health=lambda: {(each.pool, each.device): each.health for each in self.health.snapshot().devices},
            allowed_kinds=tuple(sorted(self.settings.bindings.allowed)),
        )

    def _scraped(self, address: str) -> Place:
        with ExitStack() as stack:
            try:
                place = stack.enter_context(served(self.metrics, address))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
                raise Failed("SocketFailed", f"metrics cannot be served on {address} (--metrics): {error}") from error
            path = Path(place.removeprefix("unix:")) if place.startswith("unix:") else None
            return Place(f"metrics on {place}", stack.pop_all().close, lambda: path is not None and not path.exists())

    def _serving(self, kubelet: KubeletSettings, say: Say) -> AbstractContextManager[None]:
        def registered(done: bool, error: str) -> None:
            say(f"the kubelet {'registered' if done else 'did not register'} {kubelet.driver}{error and ': '}{error}")

        paths = kubelet_paths(kubelet.folder, kubelet.driver, kubelet.pod_uid)
        what = f"the kubelet on {paths.endpoint}"

        def take() -> Place:
            sockets = KubeletSockets(
                paths, kubelet.driver, self, self.health, versions=kubelet.versions, on_status=registered
            )
            return Place(what, sockets.stop, sockets.is_lost)

        return taken(what, take, wait=False, say=say)

    def _reconcile(self, say: Say) -> None:
        """Look at the claims now, now and then, and when asked to, until ``stop``."""
        pause = 0.0
        while True:
            try:
                message = self._messages.get(timeout=pause)
            except Empty:
                pass
            else:
                if message == "stop":
                    return
                self.health.poke()
                self._republish()
            pause = self.settings.resync
            try:
                self._journal.refuse_lost()
                before, report = self.reconciler.gone, self.reconciler.reconcile()
                if report.removed:
                    self.metrics.removed("claim", len(report.removed))
                if report.finished or report.removed or before != self.reconciler.gone:
                    self._claims_changed()
                _tell(report, say)
            except NodeError as error:
                log.error("could not look at the claims; trying again in %.0f s: %s", self.settings.resync, error)
            except Exception:
                log.exception("could not look at the claims; trying again in %.0f s", self.settings.resync)

    def _tell_claims(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._to_tell.clear()
            checkup = self.health.snapshot()
            try:
                self.source.tell(self.claims.prepared(), checkup)
            except Exception:
                log.exception("could not say on claims how their devices are; trying again")
            until = Deadline.after(STATUS_SECONDS)
            while not (stop.is_set() or until.passed or self.health.wait(checkup.version, 0.0)):
                if self._to_tell.wait(_TICK_SECONDS):
                    break

    def _guarded(self, loop: Loop, stop: threading.Event) -> None:
        """A loop that ends with an error ends everything."""
        try:
            loop(stop)
        except BaseException as error:
            self._failure = error
            self.stop()

    def _claims_changed(self) -> None:
        """What is prepared is another thing to watch, to publish and to tell."""
        self.pulse.beat()
        self.health.poke()
        self._to_tell.set()
        self._republish()

    def _republish(self) -> None:
        if self._publishing.rescan is not None:
            self._publishing.rescan()

    # The host.

    def _state(self) -> State:
        """For the metrics. Raises NodeError."""
        self._journal.refuse_lost()
        return tally.state(self._journal, self.machines.list())

    def boot_id(self) -> str:
        """The kernel's: another one after each boot. Raises Failed."""
        return boot_id(self.host.tree())

    def _subjects(self) -> Iterator[health.Subject]:
        return health.subjects(
            self.host.tree, self.bindings.observe, self.claims.prepared(), self._pools, self._link_errors
        )

    def _health_changed(self, changed: Sequence[DeviceHealth]) -> None:
        """What is unwell is published as not available, and what is well again as available."""
        self._republish()
        self.pulse.beat()

    def _plan(self, ref: ClaimRef, due: Deadline) -> Sequence[Step]:
        """The steps of preparing a claim. Writes nothing."""
        return planned(self.source.look or self.source.grants.get, self.bindings.choose, self._journal, ref, due)


def boot_id(tree: Tree) -> str:
    """The kernel's: another one after each boot. Raises Failed where the tree is not that of a running host."""
    folder = tree.proc.folder("sys", "kernel", "random") if tree.proc is not None else None
    text = folder.text("boot_id") if folder is not None else None
    if text is None:
        raise Failed("HostUnreadable", f"cannot read proc/sys/kernel/random/boot_id below {tree.root}: no running host")
    return text


@contextmanager
def opened(settings: NodeSettings, host: Host, source: Source) -> Iterator[Node]:
    """The plugin with its state folder open. Raises StoreError where that cannot be used."""
    with closing(open_journal(settings.state)) as journal:
        yield Node(settings, host, journal, source)


def _opened_door(what: str, path: Path, service: Service) -> Place:
    door = open_door(path, [service])
    return Place(what, door.stop, door.is_lost)


def _tell(report: Report, say: Say) -> None:
    """What was done. What could not be is in the log."""
    for text in (*report.finished, *report.removed):
        say(text)
