"""Claims of two allocators on the devices of a foreign driver, while rules that adopt it come and go and processes die.

kube-scheduler is the real one, and asks another API server than the controller does: what the controller's probes see
says nothing about that one. The devices are whole ones, ones with shares, and parts that draw on counters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from devalloc.api.adopted_pools import POLICY
from devalloc.controller.reconcile.resource_claims import adoption as adopting
from devalloc.install import adoption
from devalloc.store.kubernetes import Client
from tests.support import kube_build, kube_claims, kube_controllers, kube_node
from tests.support.device_owners import DeviceOwners, watched
from tests.support.kube_api import Cluster, Processes, ServerProcess, running, wait_ready
from tests.support.kube_claims import FOREIGN_DRIVER, RULES, SLICES, Space, allocating
from tests.support.ports import free_ports
from tests.support.waiting import until

NODES, GPUS, SHARED, CARDS = 10, 6, 1, 1
"""Nodes, and on each: whole devices, devices of four shares, and cards of four parts or one whole."""
RULE = f"devalloc-{FOREIGN_DRIVER}"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
POD_SECONDS = 4.0
"""How long a pod runs."""
SLOWLY = ("--kube-api-qps=40", "--kube-api-burst=40")
"""Options of kube-scheduler: it writes seconds after it has chosen, as it does by itself in a large cluster."""
PROGRESS, PROGRESS_SECONDS = 60, 20.0
"""Allocations that one side has time for before its turn ends, and the longest turn."""
MOST_CYCLES = 14
BURST = 120
"""Claims that are made at once, of both sides together."""


@dataclass
class RaceResult:
    """What a race came to."""

    granted_ours: int
    granted_theirs: int
    twice: list[str]
    cycles: int
    """How often the driver was adopted and given back."""
    disturbances: dict[str, int]
    seconds: float
    left: int
    """Claims that never had devices."""

    @property
    def in_words(self) -> str:
        return (
            f"{self.granted_ours} allocations by devalloc, {self.granted_theirs} by kube-scheduler, {self.cycles} "
            f"cycles, {self.disturbances}, {self.left} left over, {len(self.twice)} devices twice, {self.seconds:.0f} s"
        )


def slices_of(node: str) -> list[dict[str, Any]]:
    """Specs of the pools of a node."""

    def kind(name: str) -> dict[str, Any]:
        return {"kind": {"string": name}}

    def pool(suffix: str, count: int = 1) -> dict[str, Any]:
        header = {"name": f"{node}{suffix}", "generation": 1, "resourceSliceCount": count}
        return {"driver": FOREIGN_DRIVER, "nodeName": node, "pool": header}

    memory = {"memory": {"value": "80Gi"}}
    gpus = [{"name": f"gpu-{n}", "attributes": kind("gpu"), "capacity": memory} for n in range(GPUS)]
    policy = {"default": "20Gi", "validRange": {"min": "20Gi", "step": "20Gi"}}
    shared = [
        {
            "name": f"shared-{n}",
            "attributes": kind("shared"),
            "capacity": {"memory": {"value": "80Gi", "requestPolicy": policy}},
            "allowMultipleAllocations": True,
        }
        for n in range(SHARED)
    ]
    counters = [{"name": f"card-{n}", "counters": {"memory": {"value": "40Gi"}}} for n in range(CARDS)]
    parts = [
        {
            "name": f"card-{n}-{part}",
            "attributes": kind("part"),
            "consumesCounters": [{"counterSet": f"card-{n}", "counters": {"memory": {"value": amount}}}],
        }
        for n in range(CARDS)
        for part, amount in (("whole", "40Gi"), *((f"part-{i}", "10Gi") for i in range(4)))
    ]
    return [
        {**pool(""), "devices": gpus},
        {**pool("-shared"), "devices": shared},
        {**pool("-cards", 2), "sharedCounters": counters},
        {**pool("-cards", 2), "devices": parts},
    ]


@dataclass
class Race:
    """A cluster with two API servers, in which a race can be run."""

    cluster: Cluster
    """The API server of the controller and of the test."""
    other: Cluster
    """That of kube-scheduler."""
    processes: Processes
    programs: Path
    space: Space
    slices: list[dict[str, Any]]
    is_unsafe: bool
    """Run without the policy, on the rule alone. The judge must then report devices with two owners."""
    _client: Client
    _stack: ExitStack = field(default_factory=ExitStack)
    _leaders: int = 0

    def start_scheduler(self) -> None:
        kube_node.start_scheduler(self.other, self.programs, self.processes, *SLOWLY)

    def restart_scheduler(self) -> None:
        self.processes.kill_one("kube-scheduler")
        self.start_scheduler()

    def restart_controller(self) -> None:
        """The next leader: another process would have nothing of this one's memory, either."""
        self._stack.close()
        self._leaders += 1
        probe = (lambda rule: "") if self.is_unsafe else None
        self._stack.enter_context(allocating(self._client, f"{self._leaders} race", probe))

    def restart_api_server(self) -> None:
        """That of kube-scheduler."""
        assert self.other.server is not None
        self.other.server.kill()
        self.other.server.start(self.other)

    def stop(self) -> None:
        self._stack.close()

    def run(self, claims: int, seed: int, say: Callable[[str], object] = lambda text: None) -> RaceResult:
        """``claims``: of both sides together."""
        chance, began = Random(seed), time.monotonic()
        names = [(f"c{number}", number % 2 == 0) for number in range(claims)]
        done = threading.Event()
        bursts = [names[first : first + BURST] for first in range(0, len(names), BURST)]
        reaper = threading.Thread(target=self._reap, args=(done,), daemon=True)
        cycles, disturbances = 0, {"scheduler": 0, "controller": 0, "API server": 0}
        if self.is_unsafe:
            adopting.SETTLE_SECONDS = adopting.RELEASE_SECONDS = 0.0
        with watched(self.cluster, "/apis/resource.k8s.io/v1/resourceclaims", self.slices) as owners:
            self.restart_controller()
            reaper.start()
            try:
                while bursts or (len(owners.ever) < claims and cycles < MOST_CYCLES):
                    cycles += 1
                    self._make(bursts.pop(0) if bursts else [], chance)
                    time.sleep(chance.uniform(0.1, 0.8))  # what kube-scheduler chose now, it writes later
                    adoption.adopt(
                        self._admin(), FOREIGN_DRIVER, (), "devalloc-system", lambda text: None, dry_run=False
                    )
                    self._disturb(disturbances, chance)
                    self._make(bursts.pop(0) if bursts else [], chance)
                    self._await_progress(owners, is_ours=True)
                    self._make(bursts.pop(0) if bursts else [], chance)
                    time.sleep(chance.uniform(0.1, 0.8))
                    self.cluster.delete(f"{RULES}/{RULE}")
                    self._disturb(disturbances, chance)
                    until(lambda: self.cluster.get(f"{RULES}/{RULE}").status == 404, "the rule goes")
                    self._await_progress(owners, is_ours=False)
                    say(f"cycle {cycles}: {owners.granted[True]} and {owners.granted[False]}, twice: {owners.twice}")
                left = claims - len(owners.ever)
            finally:
                done.set()
                self.stop()
            reaper.join()
            return RaceResult(
                owners.granted[True],
                owners.granted[False],
                list(owners.twice),
                cycles,
                disturbances,
                time.monotonic() - began,
                left,
            )

    def _await_progress(self, owners: DeviceOwners, *, is_ours: bool) -> None:
        """Give one side time for some allocations, if it has claims that wait."""
        before, until_then = owners.granted[is_ours], time.monotonic() + PROGRESS_SECONDS
        while time.monotonic() < until_then and owners.granted[is_ours] < before + PROGRESS:
            time.sleep(0.2)

    def _admin(self) -> Client:
        return Client.connect(self.cluster.kubeconfig("admin"))

    def _disturb(self, counts: dict[str, int], chance: Random) -> None:
        """Restart one of the processes at a moment of the change."""
        disturb = {
            "scheduler": self.restart_scheduler,
            "controller": self.restart_controller,
            "API server": self.restart_api_server,
        }
        name = min(counts, key=lambda each: (counts[each], chance.random()))
        time.sleep(chance.uniform(0.05, 1.5))
        if not self.is_unsafe:
            disturb[name]()
            counts[name] += 1

    def _make(self, names: list[tuple[str, bool]], chance: Random) -> None:
        """Claims and their pods, all at once."""

        def make(name: str, is_ours: bool, kind: str) -> None:
            more: dict[str, Any] = {"capacity": {"requests": {"memory": "20Gi"}}} if kind == "shared" else {}
            claim = self.space.claim_of(name, kind, ours=is_ours, **more)
            for path, body in ((self.space.claims, claim), (self.space.pods, self.space.pod_of(name, name))):
                answer = self.cluster.create(path, body)
                assert answer.ok, answer.message

        kinds = chance.choices(("gpu", "shared", "part"), (6, 2, 2), k=len(names))
        with ThreadPoolExecutor(6) as threads:
            for made in [threads.submit(make, *each, kind) for each, kind in zip(names, kinds, strict=True)]:
                made.result()

    def _reap(self, done: threading.Event) -> None:
        """End pods that ran; kube-controller-manager takes their devices back. Old claims without a pod go."""
        seen: dict[str, float] = {}
        while not done.wait(0.5):
            for pod in self.cluster.get(self.space.pods).content.get("items", ()):
                name = pod["metadata"]["name"]
                if pod["spec"].get("nodeName"):
                    seen.setdefault(name, time.monotonic())
                if time.monotonic() - seen.get(name, time.monotonic()) > POD_SECONDS:
                    self.cluster.delete(f"{self.space.pods}/{name}?gracePeriodSeconds=0")


@contextmanager
def race_cluster(folder: Path, *, is_unsafe: bool = False) -> Iterator[Race]:
    """Raises Unavailable."""
    for name in ("kubernetes", "other", "processes"):
        (folder / name).mkdir()
    processes = Processes(folder / "processes")
    programs = kube_build.node_binaries()
    with running(kube_build.binaries(), folder / "kubernetes", "--max-mutating-requests-inflight=400") as cluster:
        try:
            other = _second_server(cluster, processes)
            controllers = "--controllers=resourceclaim-controller,namespace-controller,serviceaccount-controller"
            kube_controllers.start(cluster, programs, processes, controllers)
            kube_claims.install(cluster, adoption=True)
            client = kube_claims.controller(cluster)
            if is_unsafe:
                assert cluster.delete(f"{BINDINGS}/{POLICY}").ok
            space = kube_claims.make_space(cluster, "race")
            for kind in ("gpu", "shared", "part"):
                expression = (
                    f'device.driver == "{FOREIGN_DRIVER}" && device.attributes["{FOREIGN_DRIVER}"].kind == "{kind}"'
                )
                space.device_class(kind, expression)
            slices = []
            for number in range(NODES):
                node = f"race-{number}"
                kube_claims.ready_node(cluster, node, pods=100)
                for place, spec in enumerate(slices_of(node)):
                    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": spec}
                    made = space.create(SLICES, {**body, "metadata": {"name": f"{node}-{place}"}})
                    assert made["spec"].get("devices", []) == spec.get("devices", []), "the API server keeps all fields"
                    slices.append(spec)
            race = Race(cluster, other, processes, programs, space, slices, is_unsafe, client)
            race.start_scheduler()
            try:
                yield race
            finally:
                race.stop()
        finally:
            processes.stop()


def _second_server(cluster: Cluster, processes: Processes) -> Cluster:
    """Another API server on the same etcd, with the same certificate, keys and tokens."""
    assert cluster.server is not None
    (port,) = free_ports(1)
    command = [str(part) for part in cluster.server.command]
    command = [f"--secure-port={port}" if part.startswith("--secure-port=") else part for part in command]
    folder = cluster.folder / "second"
    folder.mkdir()
    (folder / "certs").symlink_to(cluster.folder / "certs")
    name = "second-apiserver"
    second = replace(
        cluster,
        url=f"https://127.0.0.1:{port}",
        folder=folder,
        server=ServerProcess(processes, name, command),
        keeper=None,
    )
    processes.start(name, command)
    wait_ready(second, processes)
    return second
