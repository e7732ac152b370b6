"""Where a node is served: its own service, the kubelet's, and metrics, each at its place."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from devalloc.version import VERSION
from devalloc_node import tally
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed
from devalloc_node.metrics import Metrics, served
from devalloc_node.node import Node
from devalloc_node.service.door import open_door
from devalloc_node.service.node import About, NodeService
from devalloc_node.service.plugin import KubeletSockets
from devalloc_node.service.registration import KubeletPaths, kubelet_paths
from devalloc_node.service.server import Service
from devalloc_node.service.warm import WarmService
from devalloc_node.settings import KubeletSettings
from devalloc_node.takeover import Place, taken
from devalloc_node.warm.pool import Pool

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""How long the warm setups that are being made just then are waited for at the end."""
Say = Callable[[str], None]
"""Told what people want to know; from any thread."""


@contextmanager
def serving(node: Node, say: Say) -> Iterator[None]:
    """While inside, serve all that the settings name. Raises Denied, Failed where that cannot be."""
    kubelet = node.settings.kubelet
    with ExitStack() as stack:
        if (pool := node.warm) is not None:  # first, so that it goes when nobody is served any more
            what = f"warm setups in {pool.config.run}"
            stack.enter_context(taken(what, partial(_warm, what, pool), wait=True, say=say))
        if (path := node.settings.socket) is not None:
            own = NodeService(node.platform, _about(node), node.metrics, node.pulse).service()
            setups = WarmService(node.warm, node.metrics).service()
            what = f"{own.name} on {path}"
            wait = node.settings.rolling
            stack.enter_context(taken(what, partial(_own, what, path, (own, setups)), wait=wait, say=say))
        if kubelet is not None:
            paths = kubelet_paths(kubelet.folder, kubelet.driver, kubelet.pod_uid)
            what = f"the kubelet on {paths.endpoint}"
            stack.enter_context(taken(what, partial(_kubelet, what, node, kubelet, paths, say), wait=False, say=say))
        if (address := node.settings.metrics) is not None:
            scraped = partial(_metrics, node.metrics, address)  # machines do not wait for who has its port
            stack.enter_context(taken(f"metrics on {address} (--metrics)", scraped, wait=True, say=say))
        yield


def _about(node: Node) -> About:
    return About(
        version=VERSION,
        boot_id=node.boot_id(),
        started_ms=int(time.time() * 1000),
        journal=lambda: tally.journal_of(node.journal),
        pools=lambda: node.survey.pools,
        rescan=node.survey.look,
        health=lambda: {(each.pool, each.device): each.health for each in node.health.snapshot().devices},
        allowed_kinds=tuple(sorted(node.settings.bindings.allowed)),
    )


def _warm(what: str, pool: Pool) -> Place:
    pool.open()
    return Place(what, lambda: _closed(pool))


def _closed(pool: Pool) -> None:
    left = pool.close(Deadline.after(CLOSE_SECONDS))
    if left.removing or left.making:
        log.warning("%d warm setups are left for the next start to remove", left.removing + left.making)


def _own(what: str, path: Path, services: Sequence[Service]) -> Place:
    door = open_door(path, services)
    return Place(what, door.stop, door.is_lost)


def _kubelet(what: str, node: Node, kubelet: KubeletSettings, paths: KubeletPaths, say: Say) -> Place:
    def registered(done: bool, error: str) -> None:
        say(f"the kubelet {'registered' if done else 'did not register'} {kubelet.driver}{error and ': '}{error}")

    sockets = KubeletSockets(paths, kubelet.driver, node, node.health, versions=kubelet.versions, on_status=registered)
    return Place(what, sockets.stop, sockets.is_lost)


def _metrics(metrics: Metrics, address: str) -> Place:
    with ExitStack() as stack:
        try:
            place = stack.enter_context(served(metrics, address))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            raise Failed("SocketFailed", f"metrics cannot be served on {address} (--metrics): {error}") from error
        path = Path(place.removeprefix("unix:")) if place.startswith("unix:") else None
        return Place(f"metrics on {place}", stack.pop_all().close, lambda: path is not None and not path.exists())
