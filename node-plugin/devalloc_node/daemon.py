"""The daemon: start a node, run its loops, serve its sockets and metrics, and shut it down.

Machines and prepared claims outlive it. It may be killed at any moment: what was begun is in the journal, and the next
start undoes it before any request is served.

It serves the node's own service, the kubelet's, and metrics, each at its own address.
"""

from __future__ import annotations

import errno
import logging
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from devalloc.program import Loop, Program, run
from devalloc.version import VERSION
from devalloc.worker import DONE, Again, Pace, Why, Worker, repeat
from devalloc_node.claims.cleanup import ReconcileReport
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.journal import audit_log
from devalloc_node.journal.sqlite import NODE_NAME
from devalloc_node.metrics import gauges
from devalloc_node.metrics.registry import NodeMetrics, metrics_served
from devalloc_node.node import Node
from devalloc_node.service.kubelet_sockets import KubeletPaths, KubeletSockets, kubelet_paths
from devalloc_node.service.node_service import NodeService, ServiceInfo
from devalloc_node.service.peer_credentials import open_proxy
from devalloc_node.service.server import ExclusiveEndpoint, Service, hold_endpoint
from devalloc_node.settings import KubeletSettings

log = logging.getLogger(__name__)

Announce = Callable[[str], None]
"""Called with what people want to know; from any thread."""


@contextmanager
def serving(node: Node, say: Announce) -> Iterator[None]:
    """While inside, serve all that the settings name. Raises Denied and Failed if it cannot."""
    kubelet = node.settings.kubelet
    with ExitStack() as stack:
        for part in node.parts:  # first, so that they close last, after all requests
            for what, take in part.endpoints().items():
                stack.enter_context(hold_endpoint(what, take, wait=True, say=say))
        if (path := node.settings.socket) is not None:
            own = NodeService(node.held, _service_info(node), node.metrics, node.streams).service()
            services = [own, *(service for part in node.parts for service in part.services())]
            what = f"{own.name} on {path}"
            wait = node.settings.rolling
            stack.enter_context(hold_endpoint(what, partial(_own_socket, what, path, services), wait=wait, say=say))
        if kubelet is not None:
            paths = kubelet_paths(kubelet.folder, kubelet.driver, kubelet.pod_uid)
            what = f"the kubelet on {paths.endpoint}"
            stack.enter_context(
                hold_endpoint(what, partial(_kubelet_endpoint, what, node, kubelet, paths, say), wait=False, say=say)
            )
        if (address := node.settings.metrics) is not None:
            scraped = partial(_metrics_endpoint, node.metrics, address)  # machines do not wait for who has its port
            stack.enter_context(hold_endpoint(f"metrics on {address} (--metrics)", scraped, wait=True, say=say))
        yield


def _service_info(node: Node) -> ServiceInfo:
    return ServiceInfo(
        version=VERSION,
        node_name=node.settings.node_name,
        boot_id=node.boot_id(),
        started_ms=int(time.time() * 1000),
        journal=lambda: gauges.journal_info(node.journal),
        pools=lambda: node.inventory.pools,
        rescan=node.inventory.look,
        health=lambda: {(each.pool, each.device): each.health for each in node.health.snapshot().devices},
        allowed_kinds=tuple(sorted(node.settings.bindings.allowed)),
    )


def _own_socket(what: str, path: Path, services: Sequence[Service]) -> ExclusiveEndpoint:
    door = open_proxy(path, services)
    return ExclusiveEndpoint(what, door.stop, door.is_lost)


def _kubelet_endpoint(
    what: str, node: Node, kubelet: KubeletSettings, paths: KubeletPaths, say: Announce
) -> ExclusiveEndpoint:
    def registered(done: bool, error: str) -> None:
        say(f"the kubelet {'registered' if done else 'did not register'} {kubelet.driver}{error and ': '}{error}")

    sockets = KubeletSockets(paths, kubelet.driver, node, node.health, versions=kubelet.versions, on_status=registered)
    return ExclusiveEndpoint(what, sockets.stop, sockets.is_lost)


def _metrics_endpoint(metrics: NodeMetrics, address: str) -> ExclusiveEndpoint:
    with ExitStack() as stack:
        try:
            place = stack.enter_context(metrics_served(metrics, address))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            raise Failed("SocketFailed", f"cannot serve metrics on {address} (--metrics): {error}") from error
        path = Path(place.removeprefix("unix:")) if place.startswith("unix:") else None
        return ExclusiveEndpoint(
            f"metrics on {place}", stack.pop_all().close, lambda: path is not None and not path.exists()
        )


FILES = 65536
"""Open files that are enough for all machines of a host."""
SETTLE_SECONDS, MAX_SETTLE_SECONDS = 1.0, 30.0
"""The pauses before it is asked again what was taken away from this node."""
_UNSETTLED = "nothing is published, and no machine is changed, before it is known whether this node was fenced"
LOOP_SECONDS = 2.0
"""How long a stop waits for all loops. What they leave unfinished is in the journal, or was not begun."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """What keeps the node's devices published where claims can find them; it looks with ``InventoryCache.discover``."""

    loops: Sequence[Loop] = ()
    rescan: Callable[[], None] | None = None
    """Discover the devices and publish them soon. From any thread. None: nothing publishes them."""
    withdraw: Callable[[str], None] = lambda previous: None
    """Withdraw what this node published under its previous name, before anything is published under the new one.
    Raises Denied if that is in use, and Failed."""


def daemon(
    node: Node, publishing: Publisher | None = None, say: Announce = log.info, *, extra_loops: Sequence[Loop] = ()
) -> Program:
    """Recover what a crash left, and serve. ``extra_loops``: what else is to go on meanwhile.

    Raises Denied and Failed if it cannot serve a socket or write the audit log.
    """
    publishing = publishing or Publisher()
    _raise_file_limit()
    node.inventory.rescan = publishing.rescan
    with ExitStack() as stack:
        try:
            stack.enter_context(audit_log.to_file(node.settings.state / "audit.log"))
        except OSError as error:
            raise Failed("JournalUnavailable", f"cannot write the audit log: {error}") from error
        for text in (text for part in node.parts for text in part.warnings()):
            say(text)
        for part in node.parts:
            stack.callback(part.close)
        for part in node.parts:
            part.recover()
        _refuse_another_name(node)
        _announce_report(node.reconciler.recover(), say)
        _record_node_name(node, publishing)
        published = publishing.loops
        try:
            _settle(node)
        except NodeError as error:
            log.warning("%s: %s", _UNSETTLED, error)
            published = [partial(when_settled, node, one) for one in publishing.loops]
        stack.enter_context(serving(node, say))
        claims = _claim_worker(node, say)

        def rescan() -> None:
            node.health.poke()
            node.inventory.republish()
            claims.add(None)

        def wake(stop: threading.Event) -> None:
            stop.wait()
            node.claims_changed()

        own: list[Loop] = [
            claims.run,
            wake,
            node.health.run,
            node.condition_reporter.run,
            *(loop for part in node.parts for loop in part.loops()),
        ]
        node.reconciler.look()
        loops = [*own, *published, *extra_loops]
        return Program(parts=stack.pop_all(), loops=loops, rescan=rescan, grace=(LOOP_SECONDS, 0.0))


def run_daemon(
    node: Node, publishing: Publisher | None = None, say: Announce = log.info, *, extra_loops: Sequence[Loop] = ()
) -> None:
    """Run ``daemon`` until ``Node.stop``. Raises as it does, and the error that first ended a loop."""
    run(daemon(node, publishing, say, extra_loops=extra_loops), node.control)


def _refuse_another_name(node: Node) -> None:
    """Raises Denied if the journal has machines or claims that still belong to a node with another name.

    Their objects are placed on the node of that name, so this plugin would end all of them. Raises Failed if it cannot
    read whether they still exist.
    """
    name, journal = node.settings.node_name, node.journal
    previous = journal.setting(NODE_NAME)
    if previous == name:
        return
    if previous is not None and (held := _objects_of_node(node, previous)):
        raise Denied(
            "NodeRenamed",
            f"{node.settings.state} has what belongs to node {previous}: {', '.join(held[:5])}"
            f"{f' and {len(held) - 5} more' if len(held) > 5 else ''}; as node {name}, this plugin would end it. "
            f"{node.source.rename_advice.format(node=previous)}",
        )


def _objects_of_node(node: Node, name: str) -> list[str]:
    """The machines and claims of the journal that still belong to the node with this name. Raises NodeError."""
    source, claims = node.source, node.journal.claims()
    held = [text for part in node.parts for text in part.kept_for(name)]
    identity = source.grants.identity() if claims else ""
    for claim in claims:
        is_same_source = (claim.kind, claim.grant.get("source")) == (source.kind, identity)
        # Another store or cluster does not show whether the claim is gone.
        if not is_same_source or source.grants.belongs_to_node(claim.ref, name):
            held.append(f"claim {claim.ref}")
    return held


def _record_node_name(node: Node, publishing: Publisher) -> None:
    """Record in the journal that the node has this name, after all that it published under its previous name is
    withdrawn. After a crash the journal still has the previous name. Raises NodeError if something cannot be withdrawn.
    """
    name, previous = node.settings.node_name, node.journal.setting(NODE_NAME)
    if previous == name or node.settings.dry_run:
        return
    if previous is not None:
        for part in node.parts:
            part.settle_previous_name(previous)
        publishing.withdraw(previous)
    node.journal.set(NODE_NAME, name)


def _settle(node: Node) -> float:
    """End what was taken away from this node. Raises NodeError if that is not possible yet."""
    if not node.settings.dry_run:
        for part in node.parts:
            part.settle()
    return DONE


def when_settled(node: Node, loop: Loop, stop: threading.Event) -> None:
    """Run a loop that must not begin before what was taken away from this node is ended."""
    repeat(stop, partial(_settle, node), SETTLE_SECONDS, _UNSETTLED, most=MAX_SETTLE_SECONDS, expected=(NodeError,))
    if not stop.is_set():
        loop(stop)


def _raise_file_limit() -> None:
    """As many as there may be: each machine takes some, and what is usual is too little for hundreds of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _claim_worker(node: Node, say: Announce) -> Worker[None, None]:
    """Looks at the claims now, now and then, and when its key is added."""

    def look(_: None, why: Why) -> Again:
        node.journal.refuse_lost()
        before, report = node.reconciler.gone, node.reconciler.reconcile()
        if report.removed:
            node.metrics.removed("claim", len(report.removed))
        if report.finished or report.removed or before != node.reconciler.gone:
            node.claims_changed()
        _announce_report(report, say)
        return Again(node.settings.resync)

    seconds = node.settings.resync
    worker = Worker[None, None]("cannot reconcile claims", look, pace=Pace(seconds, seconds, expected=(NodeError,)))
    worker.add(None)
    node.rounds.append(lambda: worker.began)
    return worker


def _announce_report(report: ReconcileReport, say: Announce) -> None:
    """What was done. What could not be is in the log."""
    for text in (*report.finished, *report.removed):
        say(text)
