"""Claims, machines and pods that come and go while two controllers, the API server and etcd are disturbed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support import kube_claims, kube_rights
from tests.support.claim_history import PLACES, History
from tests.support.claim_judge import CLAIM, GROUP, MACHINE, RESOURCE_CLAIM, HistoryVerdict, held, why_not
from tests.support.controller_processes import DEVMGMT, NAMESPACE, Process, leader_process, lease_holder
from tests.support.faulty_proxy import FaultyProxy
from tests.support.fleet_manifests import gpu_pool
from tests.support.host_pools import host
from tests.support.kube_api import Cluster
from tests.support.kube_claims import Space, make_space
from tests.support.storm_clients import CLAIMS, MACHINES, PodScheduler, StormClients, annotations
from tests.support.storm_faults import Controller, StormFaults
from tests.support.waiting import until

Object = dict[str, Any]
POOLS = f"{DEVMGMT}/devicepools"
RECORDS = f"/api/v1/namespaces/{NAMESPACE}/configmaps?labelSelector=devalloc.io/transaction"
NODES, CARDS, DEVICES, CPUS = 4, 2, 4, 4
ASIDE, ASIDE_DEVICES = 2, 4
"""Nodes whose devices are for ResourceClaims, and how many each has."""
LEASE = 6.0
SKEW = 6 * 3600.0
"""Seconds by which the wall clocks of the two are wrong, one behind and one ahead."""
SETTLE_SECONDS = 150.0
SERVER = ("--storage-media-type=application/json",)
"""Options of its API server: what etcd has is then read by the judge."""


@dataclass
class ClaimTally:
    """What was done, and what came of it."""

    did: Counter[str] = field(default_factory=Counter)
    verdict: HistoryVerdict = field(default_factory=HistoryVerdict)
    unanswered: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    """Those that wait though there is room for them."""
    left: list[str] = field(default_factory=list)
    """What is there when all was deleted."""
    ends: Counter[int] = field(default_factory=Counter)
    """Exit codes of controllers."""
    broken: str | None = None
    """Why the history is not whole."""
    slowest: float = 0.0
    """Seconds until all was answered, when it was quiet again."""

    @property
    def wrong(self) -> list[str]:
        broken = [self.broken] if self.broken else []
        return [*self.verdict.wrong, *self.unanswered, *self.idle, *self.left, *broken]

    def __str__(self) -> str:
        did = ", ".join(f"{number} {what}" for what, number in sorted(self.did.items()))
        verdict = self.verdict
        return (
            f"{did}; {verdict.states} states with {verdict.grants} grants, {verdict.joint} of several objects at once, "
            f"{verdict.undone} such put back; controllers ended with {dict(self.ends)}; quiet after "
            f"{self.slowest:.0f} s: {len(self.wrong)} wrong"
        )


def prepare(cluster: Cluster) -> None:
    """The kinds, the rights and policies as they are shipped, and the nodes and devices of the storm."""
    kube_claims.install(cluster)
    for node in range(NODES):
        pools = [gpu_pool(f"storm-{node}-{card}", devices=DEVICES, node=f"storm-{node}") for card in range(CARDS)]
        for pool in (*pools, host(f"storm-{node}", cpus=CPUS)):
            answer = cluster.create(POOLS, pool)
            assert answer.ok, answer.message


class ClaimStorm:
    """On an API server of its own (with the options ``SERVER``), with the class gpu and no other claims or pools."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        seed: int,
        say: Callable[[str], None] = lambda text: None,
        *,
        has_machines: bool = True,
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._people, self._disturbing = random.Random(seed), random.Random(seed + 1)
        self._say = say
        self._has_machines = has_machines
        self._over, self._ended = threading.Event(), threading.Event()
        self._tally = ClaimTally()
        self._failure: BaseException | None = None

    def run(self, count: int, seconds: float, *, away: float = 0.0) -> ClaimTally:
        """So many claims, machines and ResourceClaims within so many seconds; ``away``: half-way the API server is away
        for so long besides. Raises what broke the storm itself."""
        prepare(self._cluster)
        space = self._space()
        history = History(self._cluster, PLACES.values())
        people = StormClients(self._cluster, space, self._people, self._tally.did, has_machines=self._has_machines)
        kubernetes = PodScheduler(self._cluster, space, self._tally.did)
        with self._controllers() as controllers:
            processes = [one.process for one in controllers]
            until(lambda: leader_process(self._cluster, processes), "one leads")
            chaos = StormFaults(
                self._cluster, controllers, self._disturbing, self._over, LEASE, kube_rights.CONTROLLER, self._say
            )
            chaos.did = self._tally.did
            works: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
                (people.come_and_go, (count, seconds, self._over)),
                (chaos.disturb, (seconds, away)),
                (kubernetes.run, (self._ended,)),
                (self._keep_running, (processes,)),
            ]
            threads = [threading.Thread(target=self._guarded, args=work, daemon=True) for work in works]
            for thread in threads:
                thread.start()
            for thread in threads[:2]:
                thread.join()
            chaos.heal()
            people.nodes_let_go()
            self._settle(people, space)
            self._say("all is deleted")
            people.all_go()
            self._clear(people, space)
            self._ended.set()
            for thread in threads[2:]:
                thread.join()
            for process in processes:
                self._tally.ends.update(process.codes)
                self._tally.ends.update([process.end()])
            if left := lease_holder(self._cluster):
                self._tally.left.append(f"the lease is still held, by {left}")
        if self._failure is not None:
            raise self._failure
        history.close()
        self._tally.broken, self._tally.verdict = history.broken, history.judge()
        return self._tally

    def _space(self) -> Space:
        space = make_space(self._cluster, "storm")
        space.device_class("storm", 'device.driver == "devalloc.io"')
        for node in range(ASIDE):
            space.node(f"aside-{node}")
            space.slice(f"aside-{node}", (f"aside-{node}-{number}" for number in range(ASIDE_DEVICES)))
        return space

    @contextmanager
    def _controllers(self) -> Iterator[list[Controller]]:
        """Two with the rights of the shipped account, each by a way of its own, with clocks twelve hours apart."""
        port = urlsplit(self._cluster.url).port
        assert port is not None
        controllers = []
        for name, skew in (("controller-0", -SKEW), ("controller-1", SKEW)):
            way = FaultyProxy(port)
            tokens = {**self._cluster.tokens, name: kube_rights.token(self._cluster, kube_rights.CONTROLLER)}
            own = replace(self._cluster, url=f"https://127.0.0.1:{way.port}", tokens=tokens)
            process = Process(own, self._folder, name, f"{LEASE:.0f}s", "--resource-claims")
            process.user, process.skew = name, skew
            controllers.append(Controller(process, way))
        try:
            for one in controllers:
                one.process.start()
            yield controllers
        finally:
            for one in controllers:
                one.process.close()
                one.way.close()

    def _guarded(self, work: Callable[..., None], more: tuple[Any, ...]) -> None:
        try:
            work(*more)
        except BaseException as error:
            self._failure = self._failure or error
            self._over.set()

    def _keep_running(self, processes: list[Process]) -> None:
        """As a Deployment does."""
        while not self._ended.wait(0.5):
            for process in processes:
                process.start()

    # -- when it is quiet again ----------------------------------------------------------------------------------------

    def _settle(self, people: StormClients, space: Space) -> None:
        began = time.monotonic()
        while time.monotonic() < began + SETTLE_SECONDS and self._failure is None:
            claims, machines = people.list(CLAIMS), people.list(MACHINES)
            pods, others = people.list(space.pods), people.list(space.claims)
            self._tally.unanswered = _unanswered(claims, machines)
            self._tally.idle = [*_idle(claims, machines), *_idle_pods(pods, others)]
            self._tally.slowest = time.monotonic() - began
            if not self._tally.unanswered and not self._tally.idle:
                return
            time.sleep(0.5)

    def _clear(self, people: StormClients, space: Space) -> None:
        """Until nothing is left of all that was asked for."""
        began = time.monotonic()
        while time.monotonic() < began + SETTLE_SECONDS and self._failure is None:
            paths = (CLAIMS, MACHINES, space.claims, space.pods, RECORDS)
            self._tally.left = [
                f"{path.rpartition('/')[2].partition('?')[0]} {obj['metadata']['name']} is left: {obj['metadata']}"
                for path in paths
                for obj in people.list(path)
            ]
            for pool in people.list(POOLS):
                there, free = len(pool["spec"]["devices"]), pool.get("status", {}).get("availableDevices")
                if there != free:
                    self._tally.left.append(f"pool {pool['metadata']['name']} says that {free} of {there} are free")
            if not self._tally.left:
                return
            time.sleep(0.5)


def _unanswered(claims: list[Object], machines: list[Object]) -> list[str]:
    """Those that have neither what they asked for nor a reason."""
    waiting = [claim for claim in claims if not held(CLAIM, claim) and not why_not(claim)]
    others = [one for one in machines if not held(MACHINE, one) and not one.get("status", {}).get("reason")]
    return [f"{one['kind']} {one['metadata']['name']} has no answer" for one in (*waiting, *others)]


def _idle(claims: list[Object], machines: list[Object]) -> list[str]:
    """Those that wait alone, and of which one node has as many free devices, or CPUs, as they want."""
    free, cpus = Counter[str](), Counter[str]()
    for node in range(NODES):
        free[f"storm-{node}"], cpus[f"storm-{node}"] = CARDS * DEVICES, CPUS
    free.subtract(name.partition("/")[0].rpartition("-")[0] for claim in claims for name in held(CLAIM, claim))
    named = {name for one in machines for name in one["spec"].get("claims") or ()}
    for one in machines:
        if held(MACHINE, one):
            cpus[one["status"]["nodeName"]] -= int(one["spec"]["cpu"]["min"])
    most, room = max(free.values()), max(cpus.values())
    waiting = [
        f"{claim['metadata']['name']} waits though a node has {most} free devices"
        for claim in claims
        if not held(CLAIM, claim)
        and GROUP not in annotations(claim)
        and claim["metadata"]["name"] not in named
        and claim["spec"]["claims"][0]["requests"]["count"] <= most
    ]
    others = [
        f"{one['metadata']['name']} waits though a node has {room} free CPUs"
        for one in machines
        if not held(MACHINE, one) and not one["spec"].get("claims") and int(one["spec"]["cpu"]["min"]) <= room
    ]
    return [*waiting, *others]


def _idle_pods(pods: list[Object], claims: list[Object]) -> list[str]:
    """Pods that wait, share nothing with others, and have claims that a node has enough free devices for."""
    there = {claim["metadata"]["name"]: claim for claim in claims}
    free = Counter({f"aside-{node}-card": ASIDE_DEVICES for node in range(ASIDE)})
    free.subtract(name.split("/")[1].removesuffix(".devalloc") for one in claims for name in held(RESOURCE_CLAIM, one))
    most = max(free.values())
    uses = Counter(used["resourceClaimName"] for pod in pods for used in pod["spec"]["resourceClaims"])
    complaints = []
    for pod in pods:
        names = [used["resourceClaimName"] for used in pod["spec"]["resourceClaims"]]
        own = [there[name] for name in names if name in there and not there[name]["metadata"].get("deletionTimestamp")]
        if pod["spec"].get("nodeName") or len(own) < len(names) or any(uses[name] > 1 for name in names):
            continue
        wanted = sum(one["spec"]["devices"]["requests"][0]["exactly"]["count"] for one in own)
        if wanted <= most or all(held(RESOURCE_CLAIM, one) for one in own):
            complaints.append(f"pod {pod['metadata']['name']} waits for {wanted} devices, and a node has {most} free")
    return complaints
