"""A controller on a real API server: 1,000 claims at once for 1,000 nodes, and a minute in which nothing happens."""

from __future__ import annotations

import re
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, benchmark
from tests.support import kube_build, kube_crds
from tests.support.claim_history import History
from tests.support.controller_processes import DEVMGMT, Process, prepare
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.kube_api import Cluster, running
from tests.support.waiting import until

Object = dict[str, Any]
NODES, DEVICES, CLAIMS = 1_000, 16, 1_000
COUNTS = (1, 1, 1, 2, 2, 4, 8)
"""Devices that claims want, one after the other: more than a third of all."""
SUBMITTERS = 16
MOST_RUNS = 3
QUIET_SECONDS = 60.0
PATIENCE = 900.0
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


@benchmark(
    "controller",
    "The controller of a cluster",
    method=f"A real API server and etcd (without fsync) on this machine, beside the controller's process and "
    f"{SUBMITTERS} threads that create {CLAIMS} claims as fast as they can, for {', '.join(map(str, COUNTS))} devices "
    f"of {NODES} nodes with {DEVICES} each, published as pools. Times are from the first creation on; an answer is "
    "there when etcd has it. Requests are those of the controller, by its own count: two for each claim (annotations, "
    "status), one for its Event, one for each pool whose availableDevices change. CPU and memory (resident set) are "
    f"those of its process. At most {MOST_RUNS} runs, each on a new server;",
    packages=("kubernetes", "ortools"),
)
def controller(runs: int) -> Iterator[Row]:
    results = [_run() for _ in range(min(runs, MOST_RUNS))]
    for what in results[0]:
        columns: dict[str, str | int] = {"what": what}
        columns |= {name: f"{_middle(each[what][1][name] for each in results):g}" for name in results[0][what][1]}
        yield Row(columns, tuple(each[what][0] for each in results))


Measured = dict[str, tuple[float, dict[str, float]]]
"""By what was measured: seconds, and what else there is in the row."""


def _run() -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "server").mkdir()
        with running(kube_build.binaries(), folder / "server", "--max-requests-inflight=2000") as cluster:
            kube_crds.install(cluster)
            prepare(cluster)
            _create(cluster, f"{DEVMGMT}/deviceclasses", [gpu_class()])
            pools = [gpu_pool(f"node-{n:04}-gpus", DEVICES, f"node-{n:04}", model="L4") for n in range(NODES)]
            _create(cluster, f"{DEVMGMT}/devicepools", pools)
            process = Process(cluster, folder, "controller", "15s", "--listen", "127.0.0.1:0", "--open-metrics")
            began = time.monotonic()
            process.start()
            try:
                return _measured(cluster, process, began)
            finally:
                process.close()


def _measured(cluster: Cluster, process: Process, began: float) -> Measured:
    rows: Measured = {}
    url = str(until(lambda: _address(process), "it listens", PATIENCE))
    until(lambda: _requests(url) and _pools_say(cluster) == NODES * DEVICES, "all pools are counted", PATIENCE)

    def row(what: str, seconds: float, requests: float, claims: int, cpu: float = 0.0) -> None:
        memory = round(_metric(url, "process_resident_memory_bytes") / 2**20)
        per_claim = round(requests / claims, 2) if claims else 0.0
        rows[what] = seconds, {
            "API requests": requests, "per claim": per_claim, "CPU, s": round(cpu, 2), "memory, MiB": memory,
        }  # fmt: skip

    row("start, until all pools say what is available", time.monotonic() - began, _requests(url), 0, _cpu(url))
    history, before, started, spent = History(cluster), _requests(url), time.monotonic(), _cpu(url)
    claims = [gpu_claim(f"c{number:04}", COUNTS[number % len(COUNTS)]) for number in range(CLAIMS)]
    _create(cluster, f"{DEVMGMT}/namespaces/default/deviceclaims", claims)
    submitted = time.monotonic() - started
    until(lambda: len(history.answered()) >= CLAIMS, "every claim is answered", PATIENCE)
    answers = sorted(history.answered().values())
    _settle(url)
    requests, cpu = _requests(url) - before, _cpu(url) - spent
    row("claims are submitted", submitted, 0, 0)
    row("first answer", answers[0] - started, 0, 0)
    row("last answer", answers[-1] - started, requests, CLAIMS, cpu)
    history.close()
    if wrong := history.judge().wrong:
        raise RuntimeError(f"this is a bug: {wrong[:3]}")
    _settle(url)
    before, began, spent = _requests(url), time.monotonic(), _cpu(url)
    time.sleep(QUIET_SECONDS)
    row("nothing happens", time.monotonic() - began, _requests(url) - before, 0, _cpu(url) - spent)
    return rows


def _settle(url: str) -> None:
    """Until nothing but the lease is asked for, and nothing that follows from the answers takes CPU any more."""
    while True:
        requests, cpu = _requests(url), _cpu(url)
        time.sleep(13.0)  # longer than availableDevices may wait, and than the monitor from look to look
        if _requests(url) - requests <= 5 and _cpu(url) - cpu < 0.2:
            return


def _create(cluster: Cluster, path: str, objects: Iterable[Object]) -> None:
    def create(obj: Object) -> None:
        answer = cluster.create(path, obj)
        if not answer.ok:
            raise RuntimeError(answer.message)

    with ThreadPoolExecutor(SUBMITTERS) as threads:
        for _ in threads.map(create, objects):
            pass


def _pools_say(cluster: Cluster) -> int:
    pools = cluster.get(f"{DEVMGMT}/devicepools").content["items"]
    return sum(pool.get("status", {}).get("availableDevices", 0) for pool in pools)


def _address(process: Process) -> str | None:
    match = re.search(r"at (https://[\d.]+:\d+)", process.output())
    return match.group(1) if match else None


def _metrics(url: str) -> list[tuple[str, str, float]]:
    context = ssl._create_unverified_context()
    with urllib.request.urlopen(f"{url}/metrics", timeout=60, context=context) as response:
        text = response.read().decode()
    return [(name, labels, float(value)) for name, labels, value in _SAMPLE.findall(text)]


def _metric(url: str, name: str) -> float:
    return sum(value for each, _, value in _metrics(url) if each == name)


def _requests(url: str) -> float:
    return _metric(url, "devalloc_api_requests_total")


def _cpu(url: str) -> float:
    return _metric(url, "process_cpu_seconds_total")


def _middle(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
