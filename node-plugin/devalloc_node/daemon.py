"""The daemon: all parts of the node plugin put together, begun in order, ended in order.

Machines and prepared claims outlive it. It may be killed at any moment: what was begun is in the journal, and the next
start undoes it before anybody is served.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

from devalloc.inventory.sysfs import openers
from devalloc_node.binding.table import Bindings, step_kinds
from devalloc_node.cdi import Rendered, claim_spec
from devalloc_node.claims import Claims, Locks, Options
from devalloc_node.claims.files import FileKind
from devalloc_node.claims.reconcile import Reconciler, Report
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.feed import HealthFeed
from devalloc_node.grant import ClaimRef, Grant, Grants
from devalloc_node.host.boundary import Host
from devalloc_node.journal import SQLiteJournal, open_journal
from devalloc_node.metadata import claim_metadata
from devalloc_node.prepared import Prepared, PreparedDevice
from devalloc_node.service.plugin import KubeletSockets
from devalloc_node.service.registration import kubelet_paths
from devalloc_node.settings import NodeSettings

log = logging.getLogger(__name__)

Loop = Callable[[threading.Event], None]
"""Runs in a thread of its own until the event is set."""
Message = Literal["stop", "rescan"]
LOOP_SECONDS = 2.0
"""How long a stop waits for loops. What they leave unfinished is in the journal, or was not begun."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where this node's claims are found, and its devices told: one dialect a node (T1)."""

    kind: str
    """Of claims: ``DeviceClaim`` or ``ResourceClaim``."""
    grants: Grants
    loops: Sequence[Loop] = field(default=())
    """What keeps the devices published."""
    rescan: Callable[[], None] = lambda: None
    """Look at the devices now and publish them. From any thread."""


class Node:
    """The plugin of one node. Use ``opened``."""

    def __init__(self, settings: NodeSettings, host: Host, journal: SQLiteJournal, source: Source) -> None:
        self.settings = settings
        self.host = host
        self.source = source
        self.bindings = Bindings(host, settings.bindings)
        self.claims = Claims(
            journal,
            Locks(settings.state / "locks"),
            {source.kind: source.grants},
            self.bindings.choose,
            {**step_kinds(host), "file": FileKind(host)},
            options=Options(grace_seconds=settings.grace),
            render={"DeviceClaim": [self._spec], "ResourceClaim": [self._spec, self._metadata]},
            in_use=self._in_use,
            remains=self._remains,
        )
        self.reconciler = Reconciler(self.claims, boot_id=self._boot_id)
        # Unlike an Event or a Queue, a SimpleQueue may be used in a signal handler.
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """End ``run`` soon. From any thread or signal handler."""
        self._messages.put("stop")

    def rescan(self) -> None:
        """Look at devices and claims now. From any thread or signal handler."""
        self._messages.put("rescan")

    def run(self, feed: HealthFeed, say: Callable[[str], None] = log.info) -> None:
        """Recover what a crash left, then serve until ``stop``. ``say`` is told what people want to know.

        Raises Denied and Failed where a socket cannot be served, and what ended a loop.
        """
        _tell(self.reconciler.recover(), say)
        stop = threading.Event()
        with ExitStack() as stack:
            if (kubelet := self.settings.kubelet) is not None:
                paths = kubelet_paths(kubelet.folder, kubelet.driver, kubelet.pod_uid)
                sockets = KubeletSockets(
                    paths,
                    kubelet.driver,
                    self,
                    feed,
                    versions=kubelet.versions,
                    on_status=lambda done, error: say(
                        f"the kubelet registered {kubelet.driver}"
                        if done
                        else f"the kubelet did not register {kubelet.driver}: {error}"
                    ),
                )
                stack.callback(sockets.stop)
                say(f"serving the kubelet on {paths.endpoint}")
            loops = [
                threading.Thread(target=self._guarded, args=(loop, stop), daemon=True) for loop in self.source.loops
            ]
            for loop in loops:
                loop.start()
            self._reconcile(say)
            stop.set()
            for loop in loops:
                loop.join(LOOP_SECONDS)
        if self._failure is not None:
            raise self._failure

    # What the kubelet asks for.

    def prepare(self, ref: ClaimRef, deadline: Deadline) -> Prepared:
        return self.claims.prepare(ref, deadline, kind=self.source.kind, caller="kubelet")

    def unprepare(self, ref: ClaimRef, deadline: Deadline) -> None:
        self.claims.unprepare(ref, deadline, caller="kubelet")

    # Loops.

    def _reconcile(self, say: Callable[[str], None]) -> None:
        """Look at the claims now and then, and when asked to, until ``stop``."""
        while True:
            try:
                message = self._messages.get(timeout=self.settings.resync)
            except Empty:
                message = "rescan"
            else:
                if message == "rescan":
                    self.source.rescan()
            if message == "stop":
                return
            try:
                _tell(self.reconciler.reconcile(), say)
            except Exception:
                log.exception("could not look at the claims; trying again in %.0f s", self.settings.resync)

    def _guarded(self, loop: Loop, stop: threading.Event) -> None:
        """A loop that ends with an error ends everything."""
        try:
            loop(stop)
        except BaseException as error:
            self._failure = error
            self.stop()

    # Files that go with claims.

    def _spec(self, grant: Grant, devices: Sequence[PreparedDevice]) -> Rendered:
        return claim_spec(grant.ref, devices, driver=self.settings.driver, folder=str(self.settings.cdi))

    def _metadata(self, grant: Grant, devices: Sequence[PreparedDevice]) -> Rendered:
        # Their folder is named after the claim, not after its UID, and both have begun by now: of two at once, none
        # overlooks the other.
        for other in (record.ref for record in self.claims.journal.claims()):
            if other != grant.ref and str(other) == str(grant.ref):
                raise Denied(
                    "ClaimNameHeld",
                    f"another claim {other} (uid {other.uid}) is not unprepared yet, and its files have the same names",
                    retryable=True,
                )
        return claim_metadata(
            grant,
            devices,
            driver=self.settings.driver,
            data=str(self.settings.data),
            folder=str(self.settings.cdi),
        )

    # The host.

    def _in_use(self, device: PreparedDevice) -> str | None:
        """Who has a device open. Where others' processes cannot be seen, kernel and bindings have the last word."""
        proc = self.host.tree().proc
        if proc is None or not device.nodes:
            return None
        return next(iter(openers(proc, set(device.nodes), ()).values()), None)

    def _remains(self, uid: str) -> Sequence[str]:
        """Files that were written for a claim."""
        try:
            names = sorted(path.name for path in self.settings.cdi.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise Failed("HostUnreadable", f"cannot list {self.settings.cdi}: {error.strerror}") from error
        starts = (f"{self.settings.driver}_claim_{uid}.", f"{self.settings.driver}_metadata_{uid}_")
        return [str(self.settings.cdi / name) for name in names if name.startswith(starts)]

    def _boot_id(self) -> str:
        proc = self.host.tree().proc
        folder = proc.folder("sys", "kernel", "random") if proc is not None else None
        text = folder.text("boot_id") if folder is not None else None
        if text is None:
            raise Failed("HostUnreadable", "cannot read /proc/sys/kernel/random/boot_id")
        return text


@contextmanager
def opened(settings: NodeSettings, host: Host, source: Source) -> Iterator[Node]:
    """The plugin with its state folder open. Raises StoreError where that cannot be used."""
    with closing(open_journal(settings.state)) as journal:
        yield Node(settings, host, journal, source)


def folders(settings: NodeSettings) -> tuple[str, ...]:
    """The folders that the plugin writes files to."""
    return (str(settings.cdi), str(Path(settings.data) / "dra-device-metadata"))


def _tell(report: Report, say: Callable[[str], None]) -> None:
    for text in (*report.finished, *report.removed, *report.stuck, *report.doubts):
        say(text)
