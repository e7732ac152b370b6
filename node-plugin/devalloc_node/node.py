"""A node of devices, with what its parts add to it.

Nothing goes on by itself here but what parts begin; ``run_daemon`` has it serve.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from devalloc.api.pool import DevicePool
from devalloc.inventory import pci
from devalloc.inventory.config import DeviceRecords
from devalloc.inventory.device_users import visibility_problem
from devalloc.inventory.discover import Discovery, discover
from devalloc.inventory.pci import BarSizes
from devalloc.program import Control
from devalloc.service_manager import Round
from devalloc_node.binding.checks import process_using
from devalloc_node.binding.registry import Bindings, step_kinds
from devalloc_node.claims import ChangeGuard, ClaimLocks, Claims, DeviceHost, PrepareOptions
from devalloc_node.claims.claim_files import ClaimFiles, FileKind, folders_ever
from devalloc_node.claims.cleanup import Reconciler
from devalloc_node.claims.journal_content import inventory_facts, orphaned_devices
from devalloc_node.claims.steps import deny_change_in_dry_run, deny_in_dry_run, planned_steps
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.health import watch
from devalloc_node.health.conditions import ConditionReporter, with_machine_addresses
from devalloc_node.health.watch import DeviceHealth, HealthSnapshot, HealthWatch, PcieErrorCounter
from devalloc_node.host.boundary import Host
from devalloc_node.journal import SQLiteJournal, open_journal
from devalloc_node.metrics import gauges
from devalloc_node.metrics.registry import NodeMetrics, NodeState
from devalloc_node.model.grant import ClaimRef, Grants
from devalloc_node.model.step import Prepared, PreparedDevice, Step, StepKind
from devalloc_node.operations.change_feed import CLAIMS, DEVICES, ChangeNotifier
from devalloc_node.operations.claim_registry import ClaimRegistry
from devalloc_node.parts import NodePart
from devalloc_node.service.calls import ChangeStreams
from devalloc_node.settings import NodeSettings


class InventoryCache:
    """The devices found by the last discovery, which can be repeated on request. Safe for threads."""

    def __init__(
        self, settings: NodeSettings, extend: Callable[[DeviceRecords], DeviceRecords], changed: Callable[[], None]
    ) -> None:
        """``extend`` adds what the node knows of its devices. ``changed`` is called after each look."""
        self._settings = settings
        self._extend = extend
        self._changed = changed
        self.pools: list[DevicePool] = []
        self.rescan: Callable[[], None] | None = None
        """Has the devices discovered and published soon, from any thread. None: nothing publishes them."""
        self._begun = self._done = 0
        """The last look that was begun, and that was done."""
        self._looked = threading.Condition()

    def discover(self, devices: DeviceRecords) -> Discovery:
        """The devices of the host, of which more is known than ``devices``: what is prepared, and what is withheld."""
        with self._looked:
            self._begun += 1
            number = self._begun
        config = replace(self._settings.inventory, records=self._extend(devices))
        config = replace(config, allowed=self._settings.bindings.allowed)
        discovery = discover(self._settings.root, node_name=self._settings.node_name, config=config)
        with self._looked:
            if discovery.pools or not any(problem.is_error for problem in discovery.problems):
                self.pools = discovery.pools
            self._done = max(self._done, number)
            self._looked.notify_all()
        self._changed()
        return discovery

    def look(self, deadline: Deadline) -> list[DevicePool]:
        """Look at the devices, publish them, and return them. Raises Failed if that was not done in time."""
        if self.rescan is None:
            return self.discover(DeviceRecords()).pools
        with self._looked:
            begun = self._begun  # one that is under way may have missed what this is asked for
            self.rescan()
            if not self._looked.wait_for(lambda: self._done > begun, deadline.seconds):
                raise Failed("DeadlineExceeded", "cannot observe the host's devices in time; try again")
            return self.pools

    def republish(self) -> None:
        """What is published of the devices is out of date."""
        if self.rescan is not None:
            self.rescan()


RENAME_ADVICE = "Start it with --node-name {node}. To rename the node, first drain it and delete what stays on it"


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """Where this node's claims are found: one dialect a node (T1)."""

    kind: str
    """``DeviceClaim`` or ``ResourceClaim``."""
    grants: Grants
    uid_of: Callable[[str, str], str | None]
    """Of the claim that has this namespace and name now; None if there is none. Raises Failed."""
    tell: Callable[[Iterable[Prepared], HealthSnapshot], None] = lambda prepared, checkup: None
    """Says on claims how their devices are; called again and again, from one thread."""
    rename_advice: str = RENAME_ADVICE
    """What a user can do about machines and claims of ``{node}``, the previous name of this node."""


class Node:
    """The plugin of one node. Use ``open_node``."""

    def __init__(self, settings: NodeSettings, host: Host, journal: SQLiteJournal, source: ClaimSource) -> None:
        self.settings = settings
        self.host = host
        self.journal = journal
        self.source = source
        self.notifier = ChangeNotifier()
        self.streams = ChangeStreams(self.notifier)
        self.bindings = Bindings(host, settings.bindings)
        self.devices: Callable[[], BarSizes] = lambda: pci.largest_bar_sizes(host.tree())
        files = ClaimFiles(settings.driver, settings.cdi, settings.data, journal)
        ever = folders_ever(journal, settings.written)
        kinds: dict[str, StepKind] = {**step_kinds(host), "file": FileKind(host, ever)}
        self.claims = Claims(
            journal,
            ClaimLocks(settings.state / "locks"),
            {source.kind: source.grants},
            DeviceHost(
                self.bindings.choose,
                in_use=lambda device: process_using(self.host.tree(), device),
                identify=self.bindings.identify,
                observe=self.bindings.observe,
                boot_id=self.boot_id,
                remains=files.remains,
            ),
            kinds,
            options=PrepareOptions(grace_seconds=settings.grace),
            render={"DeviceClaim": [files.spec], "ResourceClaim": [files.spec, files.metadata]},
            guard=ChangeGuard(
                rehearse=lambda ref, due: deny_in_dry_run(host, lambda: self._plan(ref, due), ref),
                refuse=lambda what: deny_change_in_dry_run(host, what),
            ),
        )
        self.reconciler = Reconciler(
            self.claims,
            boot_id=self.boot_id,
            doubts=lambda held: orphaned_devices(self.host.tree(), held),
            blind=lambda: visibility_problem(self.host.tree()),
        )
        self.health = HealthWatch(self._subjects, on_change=self._health_changed)
        self.metrics = NodeMetrics(self._state)
        self.held = ClaimRegistry(
            self.claims,
            uid_of=source.uid_of,
            exclusive=self.claims.locks.named,
            plan=self._plan,
            kind=source.kind,
            changed=self.claims_changed,
            lives=lambda key: any(part.lives(key) for part in self.parts),
        )
        self.inventory = InventoryCache(settings, self._with_recorded, self.notifier.beat)
        self.condition_reporter = ConditionReporter(source.tell, self._reported_claims, self.health)
        self.control = Control()
        """Of the program that the node is."""
        self.rounds: list[Round] = []
        """Of the loops that must go on, for the watchdog of the service manager."""
        self._link_errors = PcieErrorCounter()
        self.parts: list[NodePart] = []
        for make in settings.parts:
            part = make(self)
            self.parts.append(part)
            kinds |= part.kinds()

    # Asked of who runs it.

    def stop(self) -> None:
        """End ``run`` soon. From any thread or signal handler."""
        self.control.stop()

    def rescan(self) -> None:
        """Look at devices and claims now. From any thread or signal handler."""
        self.control.rescan()

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
        """The prepared claims changed: watch, publish and report them. ``changed``: as ``ChangeNotifier.beat``."""
        self.notifier.beat(*(changed or (CLAIMS,)))
        self.health.poke()
        self.condition_reporter.soon()
        self.inventory.republish()

    def _health_changed(self, changed: Sequence[DeviceHealth]) -> None:
        """What is unwell is published as not available, and what is well again as available."""
        self.condition_reporter.soon()
        self.inventory.republish()
        self.notifier.beat(DEVICES)

    # What one part asks of the others.

    def boot_id(self) -> str:
        """The kernel's: another one after each boot. Raises Failed if the tree is not that of a running host."""
        tree = self.host.tree()
        folder = tree.proc.folder("sys", "kernel", "random") if tree.proc is not None else None
        text = folder.text("boot_id") if folder is not None else None
        if text is None:
            where = f"proc/sys/kernel/random/boot_id below {tree.root}"
            raise Failed("HostUnreadable", f"cannot read {where}: no running host")
        return text

    def _with_recorded(self, devices: DeviceRecords) -> DeviceRecords:
        """With what is prepared, and what is withheld."""
        own = inventory_facts(self.journal, self.reconciler.gone)
        withheld = {**own.withheld, **self.health.unhealthy(), **devices.withheld}
        refused = {**own.refused_vfs, **devices.refused_vfs}
        return DeviceRecords(devices.held, own.prepared, withheld, devices.made | own.made, refused, own.drives)

    def _reported_claims(self) -> list[Prepared]:
        """Return the prepared claims, with the addresses of machines that have their devices."""

        def address_of(ref: ClaimRef, device: PreparedDevice) -> str | None:
            addresses = (part.address_of(ref, device) for part in self.parts)
            return next((address for address in addresses if address is not None), None)

        return with_machine_addresses(self.claims.prepared(), address_of)

    def _subjects(self) -> Iterator[watch.ObservedDevice]:
        return watch.devices_to_observe(
            self.host.tree, self.bindings.observe, self.claims.prepared(), self.inventory.pools, self._link_errors
        )

    def _state(self) -> NodeState:
        """For the metrics. Raises NodeError."""
        self.journal.refuse_lost()
        state = gauges.node_state(self.journal)
        return replace(state, of_parts=[metric for part in self.parts for metric in part.metrics()])

    def _plan(self, ref: ClaimRef, due: Deadline) -> Sequence[Step]:
        """The steps of preparing a claim. Writes nothing."""
        return planned_steps(self.source.grants.look, self.bindings.choose, self.journal, ref, due)


@contextmanager
def open_node(settings: NodeSettings, host: Host, source: ClaimSource) -> Iterator[Node]:
    """The plugin with its state folder open. Raises StoreError if that cannot be used."""
    with closing(open_journal(settings.state)) as journal:
        yield Node(settings, host, journal, source)
