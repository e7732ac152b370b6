"""ResourceClaims of pods at size on a real API server: devalloc's controller, and kube-scheduler with the same load."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, benchmark
from devalloc.store.kubernetes import ApiError, Client
from tests.support import kube_build, kube_crds
from tests.support.controller_processes import Process, prepare
from tests.support.kube_api import SCHEDULER, Cluster, Processes, running
from tests.support.kube_claims import Space, make_space
from tests.support.waiting import until

Object = dict[str, Any]
NODES, DEVICES, CLAIMS = 1_000, 16, 1_000
COUNTS = (1, 1, 1, 2, 2, 4, 8)
"""Devices that claims want, one after the other."""
SUBMITTERS = 16
MOST_RUNS = 3
PATIENCE = 1800.0
OURS, THEIRS = "devalloc's controller", "kube-scheduler"


@benchmark(
    "resource-claims",
    "ResourceClaims that pods wait for",
    method=f"A real API server and etcd (without fsync) on this machine, {NODES} nodes of {DEVICES} devices each, as "
    f"ResourceSlices. There are {CLAIMS} ResourceClaims for {', '.join(map(str, COUNTS))} devices of a node; "
    f"{SUBMITTERS} threads create a pod for each as fast as they can. {OURS} is one process, of nodes that are set "
    f"aside; {THEIRS} is the real one, of nodes that are not, with no limit on its requests: it also chooses the pods' "
    "nodes and binds them, which it does after ours as well, and which is not left out here. Times are from the first "
    "pod on until a watch tells that so many claims are allocated. CPU and memory (resident set) are those of the "
    f"process alone. At most {MOST_RUNS} runs of each, in turn, each on a new server;",
    packages=("kubernetes", "ortools"),
)
def resource_claims(runs: int) -> Iterator[Row]:
    results = [{who: _run(who) for who in (OURS, THEIRS)} for _ in range(min(runs, MOST_RUNS))]
    for who in (OURS, THEIRS):
        for number, what in enumerate(("pods are submitted", "first claim", "half", "last claim")):
            columns: dict[str, str | int] = {"who": who, "what": what}
            is_last = what == "last claim"
            columns["CPU, s"] = f"{_middle(each[who][1] for each in results):.1f}" if is_last else ""
            columns["memory, MiB"] = round(_middle(each[who][2] for each in results)) if is_last else ""
            yield Row(columns, tuple(each[who][0][number] for each in results))


def _run(who: str) -> tuple[tuple[float, ...], float, float]:
    """Seconds until each reported event, then CPU seconds meanwhile, and MiB in the end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "server").mkdir()
        with running(kube_build.binaries(), folder / "server", "--max-requests-inflight=2000") as cluster:
            space = make_space(cluster, "default")
            _fill(space, is_ours=who == OURS)
            with _allocator(who, cluster, folder) as pid, _allocation_times(cluster, space) as granted:
                before, began = _cpu(pid), time.monotonic()
                _each(lambda n: space.pod(f"p{n:04}", f"c{n:04}", tolerations=[{"operator": "Exists"}]), CLAIMS)
                submitted = time.monotonic() - began
                until(
                    lambda: len(granted) >= CLAIMS, "every claim is allocated", PATIENCE, context=lambda: len(granted)
                )
                times = sorted(at - began for at in granted.values())
                _check(cluster, space)
                return (submitted, times[0], times[CLAIMS // 2], times[-1]), _cpu(pid) - before, _memory(pid)


def _fill(space: Space, *, is_ours: bool) -> None:
    devices = [f"d{number}" for number in range(DEVICES)]
    space.device_class("gpu", 'device.driver == "devalloc.io"')
    _each(lambda n: space.node(f"node-{n:04}", room=110), NODES)
    _each(lambda n: space.slice(f"node-{n:04}", devices, aside=is_ours), NODES)
    _each(lambda n: space.claim(f"c{n:04}", "gpu", COUNTS[n % len(COUNTS)], ours=is_ours), CLAIMS)


@contextmanager
def _allocator(who: str, cluster: Cluster, folder: Path) -> Iterator[int]:
    """Who allocates, running and with nothing to do yet; its PID."""
    processes = Processes(folder)
    if who == THEIRS:
        config = cluster.kubeconfig(SCHEDULER)
        options = ["--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false"]
        options += ["--kube-api-qps=100000", "--kube-api-burst=100000", f"--kubeconfig={config}"]
        options += [f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}"]
        process = processes.start("kube-scheduler", [kube_build.node_binaries() / "kube-scheduler", *options])
        try:
            _settle(process.pid)
            yield process.pid
        finally:
            processes.stop()
        return
    kube_crds.install(cluster)
    prepare(cluster)
    ours = Process(cluster, folder, "controller", "15s", "--resource-claims")
    ours.start()
    try:
        assert ours.pid is not None
        _settle(ours.pid)
        yield ours.pid
    finally:
        ours.close()


def _settle(pid: int) -> None:
    """Until it has read all there is."""
    began, before = time.monotonic(), -1.0
    while (now := _cpu(pid)) - before > 0.05 or time.monotonic() - began < 10.0:
        before = now
        time.sleep(3.0)


@contextmanager
def _allocation_times(cluster: Cluster, space: Space) -> Iterator[dict[str, float]]:
    """When each claim was first told to be allocated, by the monotonic clock."""
    client, stop, times = Client.connect(cluster.kubeconfig("admin")), threading.Event(), dict[str, float]()
    version = str(client.get(space.claims, {"limit": "1"})["metadata"]["resourceVersion"])

    def listen() -> None:
        nonlocal version
        while not stop.is_set():
            try:
                for event in client.watch(space.claims, {}, version, stop):
                    obj = event["object"]
                    version = obj["metadata"]["resourceVersion"]
                    if obj.get("status", {}).get("allocation"):
                        times.setdefault(obj["metadata"]["name"], time.monotonic())
            except ApiError:
                time.sleep(0.1)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield times
    finally:
        stop.set()
        thread.join(10.0)


def _check(cluster: Cluster, space: Space) -> None:
    """Each claim has as many devices as it wants, and none has two owners."""
    owners: set[tuple[str, str]] = set()
    for claim in cluster.get(space.claims).content["items"]:
        results = claim["status"]["allocation"]["devices"]["results"]
        devices = {(each["pool"], each["device"]) for each in results}
        wanted = claim["spec"]["devices"]["requests"][0]["exactly"]["count"]
        if len(devices) != wanted or devices & owners:
            raise RuntimeError(f"this is a bug: {claim['metadata']['name']} has {sorted(devices)}")
        owners |= devices


def _each(act: Callable[[int], object], count: int) -> None:
    with ThreadPoolExecutor(SUBMITTERS) as threads:
        for _ in threads.map(act, range(count)):
            pass


def _cpu(pid: int) -> float:
    """Seconds that a process has spent."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """MiB that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _middle(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
