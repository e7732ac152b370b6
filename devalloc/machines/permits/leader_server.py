"""The permit server of a controller on a cluster: it serves while its process leads, and publishes where.

One that stands by does not listen. Nodes find the one that does by a ConfigMap, which each leader writes when it
serves, with the certificate that only this process has the key of; so there is nothing to route, and no key to keep.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from ipaddress import ip_address

from devalloc.controller.authorization import PostRequest
from devalloc.controller.certificate import self_signed_with_pem
from devalloc.machines.permits.caller_auth import NodeTokenAuthenticator
from devalloc.machines.permits.doors import ServerAddresses
from devalloc.machines.permits.server import PermitServer, PermitServices
from devalloc.machines.permits.settings import PodPort, Settings
from devalloc.scaling.permits.arithmetic import DEFAULT_ARITHMETIC, PermitsArithmetic
from devalloc.scaling.permits.endpoint import NAME, PublishedEndpoint
from devalloc.store import NotFound, Object, ObjectStore, StoreError
from devalloc.worker import Again, Pace, Why, Worker

log = logging.getLogger(__name__)

KIND = "ConfigMap"
CHECK_SECONDS = 60.0
"""How often it is looked whether the ConfigMap still says where this server is."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 2.0, 60.0
_LIFETIME = timedelta(days=3650)
"""Of a certificate that goes with its process."""


@dataclass(frozen=True, slots=True)
class PermitListenAddress:
    """Where nodes ask for permits."""

    host: str
    port: int
    """0: any that is free."""
    address: str
    """Where nodes reach it: an address or a name."""
    arithmetic: PermitsArithmetic = DEFAULT_ARITHMETIC
    plain: PodPort | None = None
    """Where agents ask that speak plain HTTP; None: nowhere."""
    migration_seconds: float = Settings.migration_seconds
    """Time limit of the migrations that the server begins."""


class LeaderPermitServer:
    """``run`` in a thread, once, while the process leads."""

    def __init__(
        self,
        services: PermitServices,
        at: PermitListenAddress,
        post: PostRequest,
        config_maps: ObjectStore,
        namespace: str,
        on_serving: Callable[[str, str | None], None] = lambda url, plain: None,
    ) -> None:
        """``services``: without settings, which follow from ``at``. ``post``: asks the API server whose token it is.
        ``config_maps``: has the ConfigMaps of ``namespace``. ``on_serving``: called with the URL for nodes, and that of
        plain HTTP if there is one."""
        self._at = at
        self._config_maps = config_maps
        self._namespace = namespace
        self._on_serving = on_serving
        context, self._certificate = self_signed_with_pem([at.address], _LIFETIME)
        self._place: PublishedEndpoint | None = None
        self._plain: str | None = None
        self._is_announced = False
        pace = Pace(RETRY_SECONDS, MAX_RETRY_SECONDS, expected=(StoreError,))
        self._teller: Worker[None, object] = Worker("cannot publish the permit endpoint", self._publish, pace=pace)
        self._unheard: float | None = None
        self._untold: float | None = None
        settings = Settings(
            host=at.host,
            port=at.port,
            dump_port=None,
            tls=context,
            callers=NodeTokenAuthenticator(post),
            plain=at.plain,
            migration_seconds=at.migration_seconds,
            **vars(at.arithmetic),
        )
        self.server = PermitServer(replace(services, settings=settings, ready=self._ready, unheard=self._cannot_listen))

    @property
    def failing(self) -> float | None:
        """Since when it does not listen, or nodes cannot be told where it does, by the monotonic clock."""
        return min((since for since in (self._unheard, self._untold) if since is not None), default=None)

    def run(self, stop: threading.Event) -> None:
        """Serve, until ``stop``. If another process has the port, it waits: claims are answered without it."""
        self._unheard = time.monotonic()  # until it listens
        reporter = threading.Thread(target=self._teller.run, args=(stop,), name="permits-place", daemon=True)
        reporter.start()
        self.server.run(stop)
        reporter.join(MAX_RETRY_SECONDS)

    def _cannot_listen(self, error: OSError) -> None:
        self._unheard = time.monotonic() if self._unheard is None else self._unheard
        why = os.strerror(error.errno or 0)
        log.error("permit server not listening: %s port %d (--permits): %s", self._at.host, self._at.port, why)

    def _ready(self, addresses: ServerAddresses) -> None:
        self._unheard = None
        self._plain = None if addresses.plain is None else f"http://{in_url(addresses.plain[0])}:{addresses.plain[1]}/"
        self._place = PublishedEndpoint(
            f"https://{in_url(self._at.address)}:{addresses.requests[1]}/", self._certificate
        )
        self._teller.add(None)

    def _publish(self, key: None, why: Why) -> Again:
        """Have the ConfigMap say where the server is, from when it serves. Raises StoreError."""
        if (place := self._place) is not None:
            try:
                self._write(place)
            except StoreError:
                self._untold = time.monotonic() if self._untold is None else self._untold
                raise
            self._untold = None
            if not self._is_announced:
                self._on_serving(place.url, self._plain)
            self._is_announced = True
        return Again(CHECK_SECONDS)

    def _write(self, place: PublishedEndpoint) -> None:
        """Raises StoreError."""
        metadata = {"name": NAME, "namespace": self._namespace}
        meant: Object = {"apiVersion": "v1", "kind": KIND, "metadata": metadata, "data": place.data}
        try:
            there = self._config_maps.get(KIND, self._namespace, NAME)
        except NotFound:
            self._config_maps.create(meant)
        else:
            if there.get("data") != place.data:
                self._config_maps.replace({**there, "data": place.data})


def in_url(address: str) -> str:
    """An address as it is written in a URL."""
    try:
        return f"[{address}]" if ip_address(address).version == 6 else address
    except ValueError:
        return address
