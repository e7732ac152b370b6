"""``devalloc controller``: leader election, the loops that allocate, metrics, health and the page."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from aiohttp import web
from markupsafe import Markup

from devalloc.api.dedicated_pools import NOT_ANSWERED
from devalloc.api.meta import CONTROLLER_LEASE, LABELS_NODES
from devalloc.api.serving import unserved_text
from devalloc.api.views import ClaimView
from devalloc.controller import http_endpoints
from devalloc.controller.authorization import ClusterAuthorizer
from devalloc.controller.event_recorder import EventRecorder
from devalloc.controller.fencing_program import NodeFencer
from devalloc.controller.http_endpoints import HttpSite, SitePage
from devalloc.controller.leader.election import GRACE_SECONDS, LeaderElection
from devalloc.controller.leader.lease import Lease, LeaseLost, LeaseTerm
from devalloc.controller.metrics import TYPE, ControllerMetrics
from devalloc.controller.reconcile.device_claims import AllocatorListener, DeviceClaimAllocator, DeviceClaimRound
from devalloc.controller.reconcile.loop import AllocatorSettings, ReconcileLoop
from devalloc.controller.reconcile.requester import events_of_write
from devalloc.controller.reconcile.resource_claims.adoption import PolicyProbe
from devalloc.controller.reconcile.resource_claims.allocator import ResourceClaimAllocator
from devalloc.controller.reconcile.resource_claims.allocator import ResourceClaimRound as ResourceRound
from devalloc.controller.reconcile.resource_claims.cluster_state import RESOURCES
from devalloc.machines.migration_cleanup import MigrationCleanup
from devalloc.machines.permits.hosts import published
from devalloc.machines.permits.leader_server import LeaderPermitServer
from devalloc.machines.permits.leadership import ProcessLeadership
from devalloc.machines.permits.server import PermitServices
from devalloc.machines.permits.store_migrator import MovableMachines, StoreMigrator
from devalloc.machines.replica_sets import KIND as REPLICA_SET_KIND
from devalloc.machines.replica_sets import ReplicaSets
from devalloc.machines.schedule.migrations import KIND as MIGRATION_KIND
from devalloc.machines.schedule.requester import requesters
from devalloc.machines.unserved_machines import UnservedMachines
from devalloc.net.http_server import JSON, HttpResponse
from devalloc.program import Loop, Program, ProgressDisplay
from devalloc.programs.controller_settings import ControllerSettings
from devalloc.store import Object, StoreError
from devalloc.store.errors import Key
from devalloc.store.kubernetes import ApiError, Client, KubernetesStore
from devalloc.store.kubernetes.node_leases import NodeLeases
from devalloc.store.kubernetes.object_writer import ObjectWriter
from devalloc.store.kubernetes.resources import CORE_KINDS, OWN_KINDS, ResourceRegistry, lease_resource
from devalloc.store.kubernetes.transaction import RECORDS
from devalloc.usage.accounting import UsageAccountant
from devalloc.usage.accounting.metrics import UsageCollector
from devalloc.usage.accounting.report import GROUPINGS, grouped, parse_month, read_report, report_json
from devalloc.usage.overview.cache import OverviewCache
from devalloc.usage.overview.fleet_monitor import FleetMonitor
from devalloc.usage.overview.metrics import FleetCollector
from devalloc.usage.page import FleetPage
from devalloc.worker import when_set
from devalloc_neon.billing import billing
from devalloc_neon.machines import NEON_MACHINES, NeonMachines
from devalloc_neon.plain_port import PLAIN_HTTP
from devalloc_neon.runner_pods import POD, RUNNER_PODS, RunnerPods

log = logging.getLogger(__name__)

_LEASES_SECONDS = 15.0
"""How long an answer counts about which node plugins run."""
LEASE_ATTEMPTS = 3
"""How often a request for the lease can hang, on a connection that is dead, before the lease is lost: after so many of
its deadline it is given up, and sent again on another one."""


class ObjectClient:
    """Leases and ConfigMaps of the controller's own namespace, each asked for and written by itself and never watched:
    of leases there is one for each node elsewhere."""

    def __init__(self, client: Client, namespace: str, may_write: Callable[[], bool] | None = None) -> None:
        self._writing = ObjectWriter(
            client, ResourceRegistry([lease_resource(namespace), RECORDS]), lambda obj: None, may_write
        )

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        """Raises NotFound, StoreError."""
        return self._writing.read(Key(kind, namespace, name))

    def create(self, obj: Object) -> Object:
        """Raises AlreadyExists, StoreError."""
        return self._writing.create(obj)

    def replace(self, obj: Object) -> Object:
        """Raises NotFound, Conflict, StoreError."""
        return self._writing.write(obj)


class ClusterProcess:
    """The parts of one process, and what they say of each other."""

    def __init__(
        self,
        client: Client,
        settings: ControllerSettings,
        *,
        pages: Callable[[ClusterProcess, KubernetesStore, ClusterAuthorizer], Mapping[str, SitePage]] = lambda *of: {},
        on_state: Callable[[str, str], None] = lambda state, text: None,
        on_round: Callable[[DeviceClaimRound], None] = lambda done: None,
        on_resource_round: Callable[[ResourceRound], None] = lambda done: None,
        on_listening: Callable[[tuple[str, int]], None] = lambda address: None,
        on_permits: Callable[[str, str | None], None] = lambda url, plain: None,
    ) -> None:
        """``pages``: more of them, by path, of this process and a store that is for what is only shown: whether it can
        be read says nothing of how this process is. They read stores from threads and ask who may see them.
        ``on_permits``: told where nodes ask for permits from now on, and where agents do by plain HTTP."""
        self._settings = settings
        allocate = settings.allocate or AllocatorSettings()
        self._client = client
        self._on_round = on_round
        self._on_resource_round = on_resource_round
        self._on_permits = on_permits
        self._permits: LeaderPermitServer | None = None
        self._resource_claims: ResourceClaimAllocator | None = None
        self._usage: UsageAccountant | None = None
        self._fencer: NodeFencer | None = None
        renewed = settings.lease * 2 / 3  # how long its holder believes it
        holder = f"{settings.instance}-{secrets.token_hex(4)}"
        self.lease = Lease(
            ObjectClient(client.within(renewed / LEASE_ATTEMPTS), settings.namespace),
            holder,
            CONTROLLER_LEASE,
            namespace=settings.namespace,
            term=LeaseTerm(settings.lease, renewed),
        )
        if allocate.labels_nodes:
            self.lease.inherited = (LABELS_NODES,)
        counts_neon = settings.neon and settings.permit_server is not None
        self.store = KubernetesStore(
            client,
            namespace=settings.namespace,
            resources=(NEON_MACHINES,) if counts_neon else (),
            may_write=lambda: self.lease.is_valid,
        )
        self._shown = KubernetesStore(client, namespace=settings.namespace)
        self._resource_store = KubernetesStore(
            client, namespace=settings.namespace, resources=RESOURCES, may_write=lambda: self.lease.is_valid
        )
        """Apart from the other, so that DeviceClaims are answered also if these kinds cannot be read."""
        self._pod_store = KubernetesStore(
            client, namespace=settings.namespace, resources=(RUNNER_PODS,), may_write=lambda: self.lease.is_valid
        )
        """The same for runner pods."""
        self._replica_store = KubernetesStore(
            client, namespace=settings.namespace, may_write=lambda: self.lease.is_valid
        )
        """The same for replica sets and their machines."""
        self.recorder = EventRecorder(client, settings.instance)
        self._node_leases = NodeLeases(client, settings.namespace, _LEASES_SECONDS)
        self.monitor = FleetMonitor(
            OverviewCache(self.store, self._shown, unserved=self.unserved).latest,
            (self.store, self._shown),
            self.recorder.record,
            is_busy=self._is_answering,
        )
        self.metrics = ControllerMetrics(
            lambda: self.controller.state == "leading",
            self.recorder,
            client.requests,
            self._searched,
            parts=(
                FleetCollector(
                    lambda: self._seen().unready(time.monotonic()) is None,
                    lambda: self.controller.state == "leading",
                    lambda: self.monitor.seen,
                ),
                UsageCollector(lambda: {} if self._usage is None else self._usage.counters),
            ),
            fencing=lambda: None if self._fencer is None else self._fencer.counts,
        )
        self.allocator = DeviceClaimAllocator(
            self.store,
            settings=replace(allocate, requesters=requesters()),
            kinds=(each.kind for each in (*OWN_KINDS, *CORE_KINDS) if each.kind != REPLICA_SET_KIND),
            listener=AllocatorListener(self._progress, self._wrote, self._heard),
            may_write=lambda: self.lease.is_valid,
        )
        self.controller = LeaderElection(self.lease, self.store, self._loops, on_state=on_state)
        self._sites: list[HttpSite] = []
        health = {"/healthz": SitePage(self._health, is_open=True), "/readyz": SitePage(self._ready, is_open=True)}
        if settings.health_listen is not None:
            self._sites.append(
                HttpSite(
                    health,
                    None,
                    host=settings.health_listen[0],
                    port=settings.health_listen[1],
                    connections=http_endpoints.HEALTH_CONNECTIONS,
                    on_ready=lambda at: log.info("health for probes at http://%s:%d", *at),
                )
            )
        if settings.listen is not None:
            access = ClusterAuthorizer(client.create, audience=settings.token_audience)
            site = HttpSite(
                {
                    **health,
                    "/metrics": SitePage(self._metrics, is_open=settings.open_metrics),
                    "/permits": SitePage(self._ledgers),
                    "/usage": SitePage(self._usage_of_month),
                    **pages(self, self._shown, access),
                },
                access,
                host=settings.listen[0],
                port=settings.listen[1],
                tls=settings.tls,
                certificate=settings.certificate,
                on_ready=on_listening,
            )
            self._sites.append(site)

    def program(self) -> Program:
        """This process. It ends with LeaseLost, after which nothing may go on, and with what ended a loop. Without the
        servers of metrics and health it could not be observed, so if one of them ends, all ends."""
        parts = ExitStack()
        parts.callback(self.close)
        endpoints = [self.recorder.run, *(site.run for site in self._sites)]
        grace = (2 * GRACE_SECONDS + 2.0, 2.0)  # the election itself gives up before
        return Program(parts=parts, loops=[self._lead], endpoints=endpoints, grace=grace, at_once=(LeaseLost,))

    def _lead(self, stop: threading.Event) -> None:
        when_set(stop, self.controller.stop)
        self.controller.run()

    def close(self) -> None:
        """End all watches."""
        self._shown.close()
        self._resource_store.close()
        self._pod_store.close()
        self._replica_store.close()
        self.store.close()

    def _is_answering(self) -> bool:
        """Whether a round of either dialect is under way."""
        return any(each.loop.began is not None for each in (self.allocator, self._resource_claims) if each is not None)

    def _searched(self) -> Mapping[str, float]:
        """Seconds by namespace, of both dialects."""
        seconds = Counter(self.allocator.loop.searches.seconds())
        if self._resource_claims is not None:
            seconds.update(self._resource_claims.loop.searches.seconds())
        return seconds

    def _loops(self) -> Mapping[str, Loop]:
        if (refused := self._unreadable("/api/v1/nodes")) is not None:
            log.warning("whether Nodes are cordoned or ready does not count, see `devalloc install`: %s", refused)
            self.allocator.loop.ignore_kind("Node")
        error = self._unreadable(ResourceRegistry(OWN_KINDS).of(MIGRATION_KIND).path)
        may_read_migrations = error is None or error.status == 404  # its CRD may come at any time
        if error is not None:
            log.warning("machines are not migrated, see `devalloc install`: %s", error)
        if not may_read_migrations:
            self.allocator.loop.ignore_kind(MIGRATION_KIND)
        self._usage = UsageAccountant(
            (self.store, self._shown),
            ObjectClient(self._client, self._settings.namespace, lambda: self.lease.is_valid),
            self.lease.holder,
            namespace=self._settings.namespace,
        )
        loops: dict[str, Loop] = {
            "allocate": self.allocator.run,
            "monitor": self.monitor.run,
            "usage": self._usage.run,
            "replica-sets": ReplicaSets(self._replica_store, collects=False).run,
            "unserved": UnservedMachines(self.store, self._node_leases.of_nodes, reads_nodes=refused is None).run,
        }
        if may_read_migrations:
            loops["migrations"] = MigrationCleanup(self.store, self._settings.migrations).run
        if self._settings.resource_claims:
            self._resource_claims = ResourceClaimAllocator(
                self._resource_store,
                stamp=f"{self.lease.transitions} {self.lease.holder}",
                record=self.recorder.record,
                progress=self._resource_progress,
                gave=lambda claim: self.metrics.allocated(claim, datetime.now(UTC)),
                probe=PolicyProbe(self._client, self._settings.namespace),
                settings=self._settings.allocate,
            )
            loops["resource-claims"] = self._resource_claims.run
        if (permits := self._settings.permit_server) is not None:
            stamp = f"{self.lease.transitions} {self.lease.holder}"
            # Of the allocator's store: what either of them writes the other one's fence knows.
            namespace = self._settings.namespace
            config_maps = ObjectClient(self._client, namespace, lambda: self.lease.is_valid)
            services = PermitServices(
                store=self.store,
                hosts=published(self.store),
                migrator=StoreMigrator(self.store) if error is None else None,
                movable=partial(MovableMachines, self.store),
                leadership=ProcessLeadership(self.lease.holder, lambda: self.lease.is_valid, self.lease.seconds),
                sources=[NeonMachines(self.store, stamp, (self._pod_store, POD))] if self._settings.neon else [],
                accounts=billing(config_maps, namespace),
                plain_http=PLAIN_HTTP,
            )
            self._permits = LeaderPermitServer(
                services, permits, self._client.create, config_maps, namespace, self._on_permits
            )
            loops["permits"] = self._permits.run
        if self._settings.fencing.command is not None:
            self._fencer = NodeFencer(self.store, self._settings.fencing, lambda: self.lease.is_valid)
            loops["fencing"] = self._fencer.run
        if self._settings.neon:
            loops["runner-pods"] = RunnerPods(self._pod_store).run
        return loops

    def _unreadable(self, path: str) -> ApiError | None:
        """Why objects cannot be read: the rights or CRDs of an earlier version. Claims are answered all the same."""
        try:
            self._client.get(path, {"limit": "1"})
        except ApiError as error:
            return error if error.status in (403, 404) else None
        return None

    def _progress(self, done: DeviceClaimRound) -> None:
        if self.allocator.has_labelled:
            self.lease.promises.add(LABELS_NODES)
        self.metrics.count(done)
        self._on_round(done)

    def _heard(self, before: Object, after: Object) -> None:
        if after["kind"] == MIGRATION_KIND:
            self.metrics.migrated(before, after)
        of_kind = (each for each in requesters() if after["kind"] in each.kinds)
        self.recorder.record(event for each in of_kind for event in each.heard(before, after))

    def _wrote(self, before: Object, after: Object) -> None:
        if after["kind"] == MIGRATION_KIND:
            self.metrics.migrated(before, after)
        if after["kind"] == "DeviceClaim" and ClaimView(after).entries and not ClaimView(before).entries:
            self.metrics.allocated(after, datetime.now(UTC))
        self.recorder.record(events_of_write(before, after, requesters()))

    def _resource_progress(self, done: ResourceRound) -> None:
        self.metrics.count_resources(done)
        self._on_resource_round(done)

    # -- pages -------------------------------------------------------------------------------------------------------

    async def _health(self, request: web.BaseRequest) -> HttpResponse:
        wrong = self._seen().unhealthy(time.monotonic())
        return HttpResponse(200, b"ok") if wrong is None else HttpResponse(503, wrong.encode())

    async def _ready(self, request: web.BaseRequest) -> HttpResponse:
        """One that stands by is ready as well: only one leads, and a rolling update waits for the new one."""
        wrong, summary = self._seen().unready(time.monotonic()), self.controller.summary
        return (
            HttpResponse(200, summary.encode()) if wrong is None else HttpResponse(503, f"{wrong}\n{summary}".encode())
        )

    def unserved(self) -> dict[str, str]:
        """The nodes whose plugin has ended, and that as a sentence. From any thread."""
        return {node: unserved_text(node, why) for node, why in self._node_leases.unserved().items()}

    def trouble(self) -> str:
        """For people who look at the fleet: why claims may not be answered; "" if they are, for all that this process
        knows. From any thread."""
        wrong = self._seen().unready(time.monotonic())
        return "" if wrong is None else f"Claims may not be answered: {wrong}. {self.controller.summary}"

    def _seen(self) -> http_endpoints.ProcessHealth:
        controller, others = self.controller, self._resource_claims
        loops = [_health("DeviceClaims", self.allocator.loop, self.store)]
        if others is not None:
            loops.append(_health("ResourceClaims", others.loop, self._resource_store))
        if self._permits is not None:
            loops.append(http_endpoints.LoopHealth("permits", None, self._permits.failing))
        return http_endpoints.ProcessHealth(
            controller.state, controller.beat, controller.taking_over, tuple(loops), controller.unanswered
        )

    async def _metrics(self, request: web.BaseRequest) -> HttpResponse:
        served = None if self._permits is None else self._permits.server
        more = None if served is None else await served.seen(served.metrics.text)
        return HttpResponse(200, self.metrics.text() + (more or b""), TYPE)

    async def _usage_of_month(self, request: web.BaseRequest) -> HttpResponse:
        """``?month=last&by=machine&namespace=team-a``; as written down, so that one that stands by answers, too."""
        query = request.query
        by = query.get("by", "device")
        if by not in GROUPINGS:
            return HttpResponse(400, f"by must be one of {', '.join(GROUPINGS)}".encode())
        try:
            month = parse_month(query.get("month", "this"), round(time.time() * 1000))
        except ValueError:
            return HttpResponse(400, b"month must be this, last, or a month such as 2026-11")
        records = ObjectClient(self._client, self._settings.namespace)
        try:
            report = await asyncio.to_thread(read_report, records, self._settings.namespace, month)
        except StoreError as error:
            return HttpResponse(503, f"cannot read the usage: {error}".encode())
        content = json.dumps(report_json(grouped(report, by, query.get("namespace") or None)))
        return HttpResponse(200, content.encode(), JSON)

    async def _ledgers(self, request: web.BaseRequest) -> HttpResponse:
        served = None if self._permits is None else self._permits.server
        shown = None if served is None else await served.seen(served.shown)
        return HttpResponse(503, b"no permits are given here") if shown is None else HttpResponse(200, shown, JSON)


def _health(name: str, loop: ReconcileLoop, store: KubernetesStore) -> http_endpoints.LoopHealth:
    return http_endpoints.LoopHealth(name, loop.began, loop.failing, store.silent_seconds)


def controller(settings: ControllerSettings, connect: Callable[[], Client], display: ProgressDisplay) -> Program:
    """Allocate the claims of a cluster and place its machines, as the one of several controllers that leads, or stand
    by. Raises BadSetting."""
    checked = settings.checked(display.say)

    def answered(done: DeviceClaimRound) -> None:
        for key in done.granted:
            display.say(f"{key} {'placed' if key.kind == 'VirtualMachine' else 'allocated'}")
        stand("claims", done.in_words)

    def resources_answered(done: ResourceRound) -> None:
        for key in done.granted:
            display.say(f"{key} allocated")
        stand("ResourceClaims", done.in_words)

    def permits_served(url: str, plain: str | None) -> None:
        display.say(f"permit server at {url}")
        if plain is not None:
            display.say(f"permits for Neon's agents at {plain}, by plain HTTP")

    states = {"claims": "", "ResourceClaims": ""}

    def stand(part: str, text: str) -> None:
        """Show both dialects in one line of state: each runs in a thread of its own."""
        states[part] = text
        display.state(", ".join(filter(None, states.values())))

    process = ClusterProcess(
        connect(),
        checked,
        pages=lambda process, shown, access: FleetPage(
            process.store,
            access,
            optional_store=shown,
            hint=_hint(settings.token_audience),
            remarks=process.trouble,
            unserved=process.unserved,
            unanswered=lambda: "" if settings.resource_claims else NOT_ANSWERED,
        ).mounted(),
        on_state=lambda state, text: display.say(text),
        on_round=answered,
        on_resource_round=resources_answered,
        on_listening=lambda at: display.say(f"health, metrics and pages at https://{at[0]}:{at[1]}"),
        on_permits=permits_served,
    )
    return process.program()


def _hint(audience: str) -> Markup:
    """How to get a token for the page."""
    return Markup(
        "<p>To get a token, run <code>kubectl create token NAME{}</code> for a service account that may get the path "
        "<code>/devalloc/</code>{}</p>"
    ).format(
        f" --audience {audience}" if audience else "",
        ". The token works for this page only." if audience else ", or use your own.",
    )
