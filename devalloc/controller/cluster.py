"""Everything of one controller process on a cluster: who leads allocates, and both show how they are."""

from __future__ import annotations

import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import web

from devalloc.controller.access import Access
from devalloc.controller.allocate import AllocateSettings, Allocator, Round
from devalloc.controller.http import Response
from devalloc.controller.leading import DEADLINE, NAME, SECONDS, Controller, Loop
from devalloc.controller.lease import Lease
from devalloc.controller.metrics import TYPE, Metrics
from devalloc.controller.recorder import Recorder
from devalloc.controller.resourceclaims import ResourceClaimAllocator, ResourceClaimSettings
from devalloc.controller.seal import Interrupted, seal
from devalloc.controller.site import Page, Site
from devalloc.controller.told import changes
from devalloc.store import Listing, Object
from devalloc.store.key import Key
from devalloc.store.kubernetes import NAMESPACE, Client, KubernetesStore
from devalloc.store.kubernetes.resources import AROUND, OURS, Resources, lease
from devalloc.store.kubernetes.writing import Writing

log = logging.getLogger(__name__)

STILL_SECONDS = 60.0
"""After which a main loop that does not go round is not healthy: it does several times a second."""
ROUND_SECONDS = 900.0
"""After which a round is not healthy."""


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
    """The files that ``tls`` is of."""
    open_metrics: bool = False
    """Metrics need no token."""


class Singles:
    """Objects of the controller's own namespace, each asked for and written by itself and never watched: of leases
    there is one for each node elsewhere."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._writing = Writing(client, Resources([lease(namespace)]), lambda obj: None)

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        """Raises NotFound, StoreError."""
        return self._writing.read(Key(kind, namespace, name))

    def list(self, kinds: str, namespace: str | None) -> Listing:
        """Nobody here has rivals."""
        raise NotImplementedError

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
        pages: Callable[[KubernetesStore, Access], Mapping[str, Page]] = lambda store, access: {},
        on_state: Callable[[str, str], None] = lambda state, text: None,
        on_round: Callable[[Round], None] = lambda done: None,
        on_listening: Callable[[tuple[str, int]], None] = lambda address: None,
    ) -> None:
        """``pages``: more of them, by path, which read the store from threads and ask who may see them."""
        self._settings = settings
        self._client = client
        self._on_round = on_round
        self._settled = 0
        holder = f"{settings.instance}-{secrets.token_hex(4)}"
        self.lease = Lease(
            Singles(client, settings.namespace),
            holder,
            NAME,
            namespace=settings.namespace,
            seconds=settings.seconds,
            deadline=settings.deadline,
        )
        self.store = KubernetesStore(client, namespace=settings.namespace, may_write=lambda: self.lease.is_valid)
        self.recorder = Recorder(client, settings.instance)
        self.metrics = Metrics(lambda: self.controller.state == "leading", self.recorder, client.requests)
        self.allocator = Allocator(
            self.store,
            settings=settings.allocate,
            kinds=(resource.kind for resource in (*OURS, *AROUND)),
            progress=self._progress,
            wrote=lambda before, after: self.recorder.record(changes(before, after)),
            settle=self._settle,
        )
        self.controller = Controller(self.lease, self.store, self._loops, on_state=on_state)
        self._site: Site | None = None
        if settings.listen is not None:
            access = Access(client.create)
            self._site = Site(
                {
                    "/healthz": Page(self._health, is_open=True),
                    "/readyz": Page(self._ready, is_open=True),
                    "/metrics": Page(self._metrics, is_open=settings.open_metrics),
                    **pages(self.store, access),
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
        self.store.close()

    def _loops(self) -> Mapping[str, Loop]:
        loops: dict[str, Loop] = {"allocate": self.allocator.run}
        if self._settings.resource_claims:
            told = self._settings.allocate
            loops["resource-claims"] = ResourceClaimAllocator(
                self._client,
                stamp=f"{self.lease.transitions} {self.lease.holder}",
                may_write=lambda: self.lease.is_valid,
                record=self.recorder.record,
                settings=ResourceClaimSettings(told.placement, told.deadline, told.batch, told.resync, told.retry),
            ).run
        return loops

    def _settle(self, stop: threading.Event) -> None:
        """Have nothing that this process has sent and knows no end of be done any more. Raises StoreError."""
        self._settled += 1
        with suppress(Interrupted):
            seal(self.store, f"{self.lease.transitions} {self.lease.holder} {self._settled}", stop)

    def _aside(self, loop: Loop, over: threading.Event) -> None:
        """What shows how it is: without it nobody would know, so that its end is the end of all."""
        try:
            loop(over)
        except BaseException as error:
            self.controller.fail(error)

    def _progress(self, done: Round) -> None:
        self.metrics.count(done)
        self._on_round(done)

    # -- pages -------------------------------------------------------------------------------------------------------

    async def _health(self, request: web.BaseRequest) -> Response:
        now, began = time.monotonic(), self.allocator.began
        if now - self.controller.beat > STILL_SECONDS:
            return Response(503, b"the main loop stands still")
        if began is not None and now - began > ROUND_SECONDS:
            return Response(503, b"a round does not end")
        return Response(200, b"ok")

    async def _ready(self, request: web.BaseRequest) -> Response:
        """One that stands by is ready as well: only one leads, and a rolling update waits for the new one."""
        if self.controller.state == "stopping":
            return Response(503, b"stopping")
        return Response(200, self.controller.told.encode())

    async def _metrics(self, request: web.BaseRequest) -> Response:
        return Response(200, self.metrics.text(), TYPE)
