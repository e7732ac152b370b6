"""Everything of one controller process on a cluster: who leads allocates, and both show how they are."""

from __future__ import annotations

import logging
import secrets
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aiohttp import web

from devalloc.controller import health
from devalloc.controller.access import AUDIENCE, Access
from devalloc.controller.allocate import AllocateSettings, Allocator, Round
from devalloc.controller.claims import allocations
from devalloc.controller.http import JSON, Response
from devalloc.controller.leading import DEADLINE, NAME, SECONDS, Controller, Loop
from devalloc.controller.lease import Lease
from devalloc.controller.metrics import TYPE, Metrics
from devalloc.controller.monitor import Monitor
from devalloc.controller.permits.leader import LeaderPermits, Listening
from devalloc.controller.permits.lease import OfProcess
from devalloc.controller.recorder import Recorder
from devalloc.controller.resourceclaims import ResourceClaimAllocator, ResourceClaimSettings
from devalloc.controller.resourceclaims.allocator import Round as ResourceRound
from devalloc.controller.sight import Sight
from devalloc.controller.site import Page, Site
from devalloc.controller.told import changes, said_by_node
from devalloc.store import Object
from devalloc.store.key import Key
from devalloc.store.kubernetes import NAMESPACE, ApiError, Client, KubernetesStore
from devalloc.store.kubernetes.resources import AROUND, OURS, Resources, lease
from devalloc.store.kubernetes.underway import RECORDS
from devalloc.store.kubernetes.writing import Writing

log = logging.getLogger(__name__)

LEASE_TRIES = 3
"""How often a request for the lease can hang, on a connection that is dead, before the lease is lost: after so many of
its deadline it is given up, and sent again on another one."""


@dataclass(frozen=True)
class ClusterSettings:
    """How a controller runs on a cluster."""

    instance: str
    """What this process is called: the name of its pod."""
    namespace: str = NAMESPACE
    """Where the lease is, and what else is devalloc's own."""
    seconds: float = SECONDS
    """How long others believe the lease without a renewal."""
    deadline: float = DEADLINE
    """How long its holder does."""
    allocate: AllocateSettings = field(default_factory=AllocateSettings)
    resource_claims: bool = False
    """ResourceClaims of resource.k8s.io are allocated as well, where their label asks for it."""
    listen: tuple[str, int] | None = None
    """Where health, metrics and pages are; None: nowhere."""
    tls: ssl.SSLContext | None = None
    certificate: tuple[str, str] | None = None
    """The files that ``tls`` is of, or is to be of when they are there."""
    audience: str = AUDIENCE
    """For whom tokens must be that read metrics and pages; empty for the API server."""
    open_metrics: bool = False
    """Metrics need no token."""
    permits: Listening | None = None
    """Where nodes ask for permits of the one that leads; None: nowhere."""


class Singles:
    """Leases and ConfigMaps of the controller's own namespace, each asked for and written by itself and never watched:
    of leases there is one for each node elsewhere."""

    def __init__(self, client: Client, namespace: str, may_write: Callable[[], bool] | None = None) -> None:
        self._writing = Writing(client, Resources([lease(namespace), RECORDS]), lambda obj: None, may_write)

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        """Raises NotFound, StoreError."""
        return self._writing.read(Key(kind, namespace, name))

    def create(self, obj: Object) -> Object:
        """Raises AlreadyExists, StoreError."""
        return self._writing.create(obj)

    def replace(self, obj: Object) -> Object:
        """Raises NotFound, Conflict, StoreError."""
        return self._writing.write(obj)


class Cluster:
    """One process. ``run`` in the main thread."""

    def __init__(
        self,
        client: Client,
        settings: ClusterSettings,
        *,
        pages: Callable[[Cluster, KubernetesStore, Access], Mapping[str, Page]] = lambda *of: {},
        on_state: Callable[[str, str], None] = lambda state, text: None,
        on_round: Callable[[Round], None] = lambda done: None,
        on_resource_round: Callable[[ResourceRound], None] = lambda done: None,
        on_listening: Callable[[tuple[str, int]], None] = lambda address: None,
        on_permits: Callable[[str], None] = lambda url: None,
    ) -> None:
        """``pages``: more of them, by path, of this process and a store that is for what is only shown: whether it can
        be read says nothing of how this process is. They read stores from threads and ask who may see them.
        ``on_permits``: told where nodes ask for permits from now on."""
        self._settings = settings
        self._client = client
        self._on_round = on_round
        self._on_resource_round = on_resource_round
        self._on_permits = on_permits
        self._permits: LeaderPermits | None = None
        self._resource_claims: ResourceClaimAllocator | None = None
        holder = f"{settings.instance}-{secrets.token_hex(4)}"
        self.lease = Lease(
            Singles(client.within(settings.deadline / LEASE_TRIES), settings.namespace),
            holder,
            NAME,
            namespace=settings.namespace,
            seconds=settings.seconds,
            deadline=settings.deadline,
        )
        self.store = KubernetesStore(client, namespace=settings.namespace, may_write=lambda: self.lease.is_valid)
        self._shown = KubernetesStore(client, namespace=settings.namespace)
        self.recorder = Recorder(client, settings.instance)
        self.monitor = Monitor(
            Sight(self.store, self._shown).latest,
            (self.store, self._shown),
            self.recorder.record,
            is_busy=self._is_answering,
        )
        self.metrics = Metrics(
            lambda: self.controller.state == "leading",
            self.recorder,
            client.requests,
            self._searched,
            ready=lambda: self._seen().unready(time.monotonic()) is None,
            seen=lambda: self.monitor.seen,
        )
        self.allocator = Allocator(
            self.store,
            settings=settings.allocate,
            kinds=(resource.kind for resource in (*OURS, *AROUND)),
            progress=self._progress,
            wrote=self._wrote,
            heard=lambda before, after: self.recorder.record(said_by_node(before, after)),
        )
        self.controller = Controller(self.lease, self.store, self._loops, on_state=on_state)
        self._site: Site | None = None
        if settings.listen is not None:
            access = Access(client.create, audience=settings.audience)
            self._site = Site(
                {
                    "/healthz": Page(self._health, is_open=True),
                    "/readyz": Page(self._ready, is_open=True),
                    "/metrics": Page(self._metrics, is_open=settings.open_metrics),
                    "/permits": Page(self._ledgers),
                    **pages(self, self._shown, access),
                },
                access,
                host=settings.listen[0],
                port=settings.listen[1],
                tls=settings.tls,
                certificate=settings.certificate,
                on_ready=on_listening,
            )

    def stop(self) -> None:
        """End ``run`` soon. From any thread or signal handler."""
        self.controller.stop()

    def rescan(self) -> None:
        """There are no devices to look at here."""

    def run(self) -> None:
        """Raises Lost, after which the process is to end at once, and what ended a loop."""
        over = threading.Event()
        asides: list[Loop] = [self.recorder.run]
        if self._site is not None:
            asides.append(self._site.run)
        threads = [threading.Thread(target=self._aside, args=(loop, over), daemon=True) for loop in asides]
        for thread in threads:
            thread.start()
        try:
            self.controller.run()
        finally:
            over.set()
        for thread in threads:
            thread.join(2.0)
        self.close()

    def close(self) -> None:
        """End all watches. ``run`` does so, unless it raises: then the process ends, and they with it."""
        self._shown.close()
        self.store.close()

    def _is_answering(self) -> bool:
        """Whether a round of either dialect is under way."""
        return any(loop.began is not None for loop in (self.allocator, self._resource_claims) if loop is not None)

    def _searched(self) -> Mapping[str, float]:
        """Seconds by namespace, of both dialects."""
        found = Counter(self.allocator.searches.seconds())
        if self._resource_claims is not None:
            found.update(self._resource_claims.searches.seconds())
        return found

    def _loops(self) -> Mapping[str, Loop]:
        try:
            self._client.get("/api/v1/nodes", {"limit": "1"})
        except ApiError as error:
            if error.status == 403:  # the rights of an earlier version: claims are answered all the same
                log.warning("whether Nodes are cordoned or ready does not count, see `devalloc install`: %s", error)
                self.allocator.forgo("Node")
        loops: dict[str, Loop] = {"allocate": self.allocator.run, "monitor": self.monitor.run}
        if self._settings.resource_claims:
            told = self._settings.allocate
            self._resource_claims = ResourceClaimAllocator(
                self._client,
                stamp=f"{self.lease.transitions} {self.lease.holder}",
                may_write=lambda: self.lease.is_valid,
                record=self.recorder.record,
                progress=self._resource_progress,
                gave=lambda claim: self.metrics.allocated(claim, datetime.now(UTC)),
                settings=ResourceClaimSettings(told.placement, told.deadline, told.batch, told.resync, told.retry),
            )
            loops["resource-claims"] = self._resource_claims.run
        if self._settings.permits is not None:
            # Of the allocator's store: what either of them writes the other one's fence knows.
            self._permits = LeaderPermits(
                self.store,
                OfProcess(self.lease.holder, lambda: self.lease.is_valid, self.lease.seconds),
                self._client.create,
                Singles(self._client, self._settings.namespace, lambda: self.lease.is_valid),
                self._settings.namespace,
                self._settings.permits,
                on_serving=self._on_permits,
            )
            loops["permits"] = self._permits.run
        return loops

    def _aside(self, loop: Loop, over: threading.Event) -> None:
        """What shows how it is: without it nobody would know, so that its end is the end of all."""
        try:
            loop(over)
        except BaseException as error:
            self.controller.fail(error)

    def _progress(self, done: Round) -> None:
        self.metrics.count(done)
        self._on_round(done)

    def _wrote(self, before: Object, after: Object) -> None:
        if after["kind"] == "DeviceClaim" and allocations(after) and not allocations(before):
            self.metrics.allocated(after, datetime.now(UTC))
        self.recorder.record(changes(before, after))

    def _resource_progress(self, done: ResourceRound) -> None:
        self.metrics.count_resources(done)
        self._on_resource_round(done)

    # -- pages -------------------------------------------------------------------------------------------------------

    async def _health(self, request: web.BaseRequest) -> Response:
        wrong = self._seen().unhealthy(time.monotonic())
        return Response(200, b"ok") if wrong is None else Response(503, wrong.encode())

    async def _ready(self, request: web.BaseRequest) -> Response:
        """One that stands by is ready as well: only one leads, and a rolling update waits for the new one."""
        wrong, told = self._seen().unready(time.monotonic()), self.controller.told
        return Response(200, told.encode()) if wrong is None else Response(503, f"{wrong}\n{told}".encode())

    def trouble(self) -> str:
        """For people who look at the fleet: why claims may not be answered; "" if they are, for all that this process
        knows. From any thread."""
        wrong = self._seen().unready(time.monotonic())
        return "" if wrong is None else f"Claims may not be answered: {wrong}. {self.controller.told}"

    def _seen(self) -> health.Seen:
        controller, others = self.controller, self._resource_claims
        claims = self.allocator
        loops = [health.Loop("DeviceClaims", claims.began, claims.failing, self.store.silent_seconds)]
        if others is not None:
            loops.append(health.Loop("ResourceClaims", others.began, others.failing, others.silent_seconds))
        if self._permits is not None:
            loops.append(health.Loop("permits", None, self._permits.failing))
        return health.Seen(
            controller.state, controller.beat, controller.taking_over, tuple(loops), controller.unanswered
        )

    async def _metrics(self, request: web.BaseRequest) -> Response:
        served = None if self._permits is None else self._permits.server
        more = None if served is None else await served.seen(served.metrics.text)
        return Response(200, self.metrics.text() + (more or b""), TYPE)

    async def _ledgers(self, request: web.BaseRequest) -> Response:
        served = None if self._permits is None else self._permits.server
        shown = None if served is None else await served.seen(served.shown)
        return Response(503, b"no permits are given here") if shown is None else Response(200, shown, JSON)
