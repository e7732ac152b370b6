"""What a claim costs the API server on clusters of 10 to 1,000 nodes: the events that it sends to the nodes."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, benchmark
from devalloc.api.meta import NODE_LABEL, node_label
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.store.kubernetes import Client, KubernetesStore
from tests.support import kube_build, kube_crds
from tests.support.controller_processes import DEVMGMT
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.kube_api import Cluster, running
from tests.support.waiting import until

Object = dict[str, Any]
NODES = (10, 100, 1_000)
CLAIMS = 100
QUIET_SECONDS = 2.0
PATIENCE = 300.0
_CLAIMS = f"{DEVMGMT}/namespaces/default/deviceclaims"


class Watches:
    """The watches of simulated nodes for DeviceClaims, which count what they hear."""

    def __init__(self, cluster: Cluster, selectors: list[str]) -> None:
        self._cluster = cluster
        self._selectors = selectors
        self.open = 0
        self.events = 0
        self.bytes = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, all are open."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        done = asyncio.run_coroutine_threadsafe(self._watch_all(), loop)
        try:
            until(lambda: self.open == len(self._selectors), "all watches are open", PATIENCE)
            yield
        finally:
            loop.call_soon_threadsafe(done.cancel)
            until(lambda: not asyncio.all_tasks(loop), "all watches are closed", PATIENCE)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(60)

    async def _watch_all(self) -> None:
        import aiohttp

        version = self._cluster.get(_CLAIMS).content["metadata"]["resourceVersion"]
        headers = {"Authorization": f"Bearer {self._cluster.token}", "Accept": "application/json"}
        connector = aiohttp.TCPConnector(limit=0, ssl=ssl._create_unverified_context())
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
            await asyncio.gather(*(self._watch(session, version, selector) for selector in self._selectors))

    async def _watch(self, session: Any, version: str, selector: str) -> None:
        params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "3000"}
        params |= {"labelSelector": selector} if selector else {}
        async with session.get(f"{self._cluster.url}{DEVMGMT}/deviceclaims", params=params) as answer:
            self.open += 1
            async for line in answer.content:
                assert json.loads(line)["type"] in ("ADDED", "MODIFIED", "DELETED"), line
                self.events += 1
                self.bytes += len(line)


@benchmark(
    "watches",
    "What a claim costs the API server",
    method=f"A real API server and etcd (without fsync), and an allocator that answers {CLAIMS} claims of one device "
    "each. Each simulated node has a watch for DeviceClaims: of all, as before 0.2.0, or of those with its label. "
    "Each claim is written four times: created, allocated (metadata, status), and prepared (finalizer), by this "
    "process in place of a node. The API server's CPU is that of its process, from the first claim on until all events "
    "are there, for each claim. Times are for all claims. One run for each row, whatever the number of runs;",
    packages=("kubernetes", "aiohttp"),
)
def watches(runs: int) -> Iterator[Row]:
    for nodes in NODES:
        for watched in ("all claims", "own claims"):
            with tempfile.TemporaryDirectory() as name, running(kube_build.binaries(), Path(name)) as cluster:
                kube_crds.install(cluster)
                yield _measured(cluster, nodes, watched)


def _measured(cluster: Cluster, nodes: int, watched: str) -> Row:
    names = [f"node-{number:04}" for number in range(nodes)]
    _create(cluster, f"{DEVMGMT}/deviceclasses", gpu_class())
    for node in names[:CLAIMS]:  # the others have nothing that claims want
        _create(cluster, f"{DEVMGMT}/devicepools", gpu_pool(f"{node}-gpus", CLAIMS // min(nodes, CLAIMS), node))
    is_own = watched == "own claims"
    of_nodes = Watches(cluster, [f"{NODE_LABEL}={node_label(node)}" if is_own else "" for node in names])
    stop = threading.Event()
    with closing(KubernetesStore(Client.connect(cluster.kubeconfig("admin")))) as store, of_nodes.running():
        settings = AllocatorSettings(placement="spread", labels_nodes=is_own, availability=3600.0)
        allocator = DeviceClaimAllocator(store, settings=settings)
        thread = threading.Thread(target=allocator.run, args=(stop,))
        thread.start()
        try:
            spent, began = _server_cpu(cluster), time.monotonic()
            for number in range(CLAIMS):
                _create(cluster, _CLAIMS, gpu_claim(f"c{number:04}"))
            until(lambda: len(_allocated(store)) == CLAIMS, "all claims are allocated", PATIENCE)
            for claim in _allocated(store):
                _mark(store, claim)
            _settle(of_nodes)
            seconds, spent = time.monotonic() - began - QUIET_SECONDS, _server_cpu(cluster) - spent
        finally:
            stop.set()
            thread.join()
    columns: dict[str, str | int] = {
        "nodes": nodes,
        "watch": watched,
        "events per claim": f"{of_nodes.events / CLAIMS:g}",
        "KiB per claim": f"{of_nodes.bytes / CLAIMS / 1024:.1f}",
        "API server, CPU ms per claim": f"{spent / CLAIMS * 1000:.1f}",
    }
    return Row(columns, (seconds,))


def _allocated(store: KubernetesStore) -> list[Object]:
    return [claim for claim in store.list("DeviceClaim").objects if claim.get("status", {}).get("allocations")]


def _mark(store: KubernetesStore, claim: Object) -> None:
    """As its node does before it prepares the devices."""
    claim = store.get("DeviceClaim", "default", claim["metadata"]["name"])
    store.replace({**claim, "metadata": {**claim["metadata"], "finalizers": ["devalloc.io/node"]}})


def _settle(of_nodes: Watches) -> None:
    before = -1
    while of_nodes.events != before:
        before = of_nodes.events
        time.sleep(QUIET_SECONDS)


def _create(cluster: Cluster, path: str, obj: Object) -> None:
    answer = cluster.create(path, obj)
    if not answer.ok:
        raise RuntimeError(answer.message)


def _server_cpu(cluster: Cluster) -> float:
    request = urllib.request.Request(f"{cluster.url}/metrics", headers={"Authorization": f"Bearer {cluster.token}"})
    with urllib.request.urlopen(request, timeout=60, context=ssl._create_unverified_context()) as response:
        text = response.read().decode()
    match = re.search(r"^process_cpu_seconds_total (\S+)$", text, re.MULTILINE)
    assert match is not None, "the API server has this metric"
    return float(match[1])
