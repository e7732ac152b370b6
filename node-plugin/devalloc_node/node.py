"""All parts of the node plugin put together: what each is given of the others, and what one has to tell the others.

Nothing goes on by itself here but the watch over machines; ``daemon.run`` has it serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Literal

from devalloc.inventory import Known, bars
from devalloc.inventory.bars import BarSizes
from devalloc.inventory.sight import blind_spot
from devalloc_node import health, tally
from devalloc_node.binding.table import Bindings, step_kinds
from devalloc_node.binding.use import user_of
from devalloc_node.claims import Claims, Locks, Options
from devalloc_node.claims.files import ClaimFiles, FileKind, folders_ever
from devalloc_node.claims.reconcile import Reconciler
from devalloc_node.claims.strays import strays
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.feed import Checkup, DeviceHealth
from devalloc_node.grant import ClaimRef, Grants
from devalloc_node.health import HealthWatch, LinkErrors
from devalloc_node.held import HeldClaims
from devalloc_node.host.boundary import Host
from devalloc_node.journal import SQLiteJournal, open_journal
from devalloc_node.machine.attachment import AttachmentKind
from devalloc_node.machine.machines import Machines
from devalloc_node.machine.view import Amounts
from devalloc_node.metrics import Metrics, State
from devalloc_node.plan import planned, refused, rehearsed
from devalloc_node.platform import Platform
from devalloc_node.prepared import Prepared
from devalloc_node.recorded import recorded
from devalloc_node.service.watching import CLAIMS, DEVICES, Pulse, machine_change
from devalloc_node.settings import NodeSettings
from devalloc_node.step import ATTACHMENT, Step
from devalloc_node.survey import Survey
from devalloc_node.telling import Telling
from devalloc_node.warm.homes import WarmHomes
from devalloc_node.warm.pool import Pool

Message = Literal["stop", "rescan"]
ADMIT_SECONDS = 10.0
"""How long a machine that is to wait may take to have its turn among those that are started."""


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
    permitted: Callable[[], Mapping[str, Amounts]] = dict
    """What machines of the node are permitted, by key. Raises Failed."""


class Node:
    """The plugin of one node. Use ``opened``."""

    def __init__(self, settings: NodeSettings, host: Host, journal: SQLiteJournal, source: Source) -> None:
        self.settings = settings
        self.host = host
        self.journal = journal
        self.source = source
        self.pulse = Pulse()
        self.bindings = Bindings(host, settings.bindings)
        self.devices: Callable[[], BarSizes] = lambda: bars.largest(host.tree())
        self.warm = (
            None
            if settings.warm is None
            else Pool(
                replace(settings.warm, machines=replace(settings.warm.machines, devices=self.devices)),
                self.boot_id(),
                blind=lambda: blind_spot(self.host.tree()),
                admit=lambda machine, spec: self.machines.admitted(machine, spec, Deadline.after(ADMIT_SECONDS)),
            )
        )
        self.homes = None if self.warm is None else WarmHomes(self.warm)
        self.machines = Machines(
            replace(
                settings.machines,
                lent=None if self.warm is None else self.warm.config.paused.run,
                devices=self.devices,
            ),
            journal,
            changed=lambda key: self.pulse.beat(machine_change(key)),
            ended=lambda: self.metrics.ended(),
            host=settings.capacity,
            homes=self.homes,
            beside=tuple if self.warm is None else self.warm.uses,
            permitted=source.permitted,
        )
        attachments = AttachmentKind(self.machines, host, lambda functions: bars.of_functions(host.tree(), functions))
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
            refuse=lambda what: refused(host, what),
        )
        self.reconciler = Reconciler(
            self.claims,
            boot_id=self.boot_id,
            doubts=lambda held: strays(self.host.tree(), held),
            blind=lambda: blind_spot(self.host.tree()),
        )
        self.health = HealthWatch(self._subjects, on_change=self._health_changed)
        self.metrics = Metrics(self._state)
        held = HeldClaims(
            self.claims, attachments, uid_of=source.uid_of, exclusive=self.claims.locks.named, plan=self._plan
        )
        self.platform = Platform(
            held, self.machines, node_name=settings.node_name, kind=source.kind, changed=self.claims_changed
        )
        self.survey = Survey(settings, self._known, self.pulse.beat)
        self.telling = Telling(source.tell, self.claims.prepared, self.health)
        # Unlike an Event or a Queue, a SimpleQueue may be used in a signal handler.
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self._link_errors = LinkErrors()

    # Asked of who runs it.

    def stop(self) -> None:
        """End ``run`` soon. From any thread or signal handler."""
        self.messages.put("stop")

    def rescan(self) -> None:
        """Look at devices and claims now. From any thread or signal handler."""
        self.messages.put("rescan")

    # For the kubelet.

    def prepare(self, ref: ClaimRef, deadline: Deadline) -> Prepared:
        """Raises NodeError."""
        with self._measured("NodePrepareResources"):
            return self.claims.prepare(ref, deadline, kind=self.source.kind, caller="kubelet")

    def unprepare(self, ref: ClaimRef, deadline: Deadline) -> None:
        """Raises NodeError."""
        with self._measured("NodeUnprepareResources"):
            self.claims.unprepare(ref, deadline, caller="kubelet")

    @contextmanager
    def _measured(self, method: str) -> Iterator[None]:
        with self.metrics.timed(method) as timed:
            try:
                yield
                timed.result = "done"
            except NodeError as error:
                timed.result = (
                    "denied" if isinstance(error, Denied) else "failed" if isinstance(error, Failed) else "unknown"
                )
                raise
            finally:
                self.claims_changed()

    # What one part tells the others.

    def claims_changed(self, *changed: str) -> None:
        """What is prepared is another thing to watch, to publish and to tell. ``changed``: as ``Pulse.beat``."""
        self.pulse.beat(*(changed or (CLAIMS,)))
        self.health.poke()
        self.telling.soon()
        self.survey.republish()

    def _health_changed(self, changed: Sequence[DeviceHealth]) -> None:
        """What is unwell is published as not available, and what is well again as available."""
        self.telling.soon()
        self.survey.republish()
        self.pulse.beat(DEVICES)

    # What one part asks of the others.

    def boot_id(self) -> str:
        """The kernel's: another one after each boot. Raises Failed where the tree is not that of a running host."""
        tree = self.host.tree()
        folder = tree.proc.folder("sys", "kernel", "random") if tree.proc is not None else None
        text = folder.text("boot_id") if folder is not None else None
        if text is None:
            where = f"proc/sys/kernel/random/boot_id below {tree.root}"
            raise Failed("HostUnreadable", f"cannot read {where}: no running host")
        return text

    def _known(self, known: Known) -> Known:
        """With what is prepared, and what is withheld."""
        own = recorded(self.journal, self.reconciler.gone)
        withheld = {**own.withheld, **self.health.unhealthy(), **known.withheld}
        return Known(known.held, own.prepared, withheld, known.made | own.made)

    def _subjects(self) -> Iterator[health.Subject]:
        return health.subjects(
            self.host.tree, self.bindings.observe, self.claims.prepared(), self.survey.pools, self._link_errors
        )

    def _state(self) -> State:
        """For the metrics. Raises NodeError."""
        self.journal.refuse_lost()
        return tally.state(self.journal, self.machines.list(), None if self.warm is None else self.warm.status())

    def _plan(self, ref: ClaimRef, due: Deadline) -> Sequence[Step]:
        """The steps of preparing a claim. Writes nothing."""
        return planned(self.source.grants.look, self.bindings.choose, self.journal, ref, due)


@contextmanager
def opened(settings: NodeSettings, host: Host, source: Source) -> Iterator[Node]:
    """The plugin with its state folder open. Raises StoreError where that cannot be used."""
    with closing(open_journal(settings.state)) as journal:
        yield Node(settings, host, journal, source)
