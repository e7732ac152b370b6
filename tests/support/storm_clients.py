"""Clients in a storm: claims, groups, machines with claims, pods with ResourceClaims, and the nodes that prepare them.

Each client writes based on what it read, as nodes do. Kubernetes' own part (a scheduler that binds pods, a
controller that takes back what pods had) is played by ``PodScheduler``.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.support.claim_judge import CLAIM, MACHINE, MARK, PREPARED, held
from tests.support.controller_processes import DEVMGMT
from tests.support.fleet_manifests import gpu_claim
from tests.support.host_pools import machine
from tests.support.kube_api import ApiAnswer, Cluster
from tests.support.kube_claims import Space

Object = dict[str, Any]
CLAIMS = f"{DEVMGMT}/namespaces/default/deviceclaims"
MACHINES = "/apis/devalloc.io/v1alpha1/namespaces/default/virtualmachines"
WANTED = "devalloc.io/prepared-on"
AWAY_SECONDS = 600.0
NOW = "?gracePeriodSeconds=0"


def ask(request: Callable[[], ApiAnswer]) -> ApiAnswer:
    """However often it takes."""
    deadline = time.monotonic() + AWAY_SECONDS
    while True:
        try:
            answer = request()
            # While the server begins it knows neither all rights nor what its policies look at.
            is_beginning = answer.status in (401, 403, 429) or "not yet synced" in answer.message
            if answer.status < 500 and not is_beginning:
                return answer
            error: object = answer.message
        except (OSError, ValueError, http.client.HTTPException) as broken:
            error = broken
        assert time.monotonic() < deadline, f"the API server does not come back: {error}"
        time.sleep(0.2)


def annotations(obj: Object) -> dict[str, str]:
    by_name: dict[str, str] = obj["metadata"].get("annotations") or {}
    return by_name


def is_held(obj: Object) -> bool:
    """Whether its node has it."""
    return PREPARED in obj["metadata"].get("finalizers", [])


@dataclass
class StormClients:
    """Use from one thread."""

    cluster: Cluster
    space: Space
    rng: random.Random
    did: Counter[str] = field(default_factory=Counter)
    has_machines: bool = True

    def come_and_go(self, count: int, seconds: float, over: threading.Event) -> None:
        """So many claims, machines and ResourceClaims within so many seconds."""
        rng, began, made = self.rng, time.monotonic(), 0
        while made < count and not over.is_set():
            due = began + seconds * made / count
            over.wait(max(0.0, due - time.monotonic()) * rng.uniform(0.5, 1.5))
            chance = rng.random()
            last = self._machine if self.has_machines else self._one
            make = self._one if chance < 0.4 else self._group if chance < 0.6 else last
            made += (make if chance < 0.84 else self._pod)(made)
            claims, machines = self.list(CLAIMS), self.list(MACHINES)
            for _ in range(rng.choice((0, 1, 1, 2)) if len(claims) > 12 else 0):
                has = [claim for claim in claims if held(CLAIM, claim)]
                self._change(rng.choice(has if has and rng.random() < 0.7 else claims))
            if len(machines) > 6:
                self._change_machine(rng.choice(machines))
            if chance >= 0.7 and len(pods := self.list(self.space.pods)) > 4:
                self._end_pod(rng.choice(pods))

    # -- what comes ----------------------------------------------------------------------------------------------------

    def _one(self, number: int) -> int:
        rng = self.rng
        priority = {"priority": str(rng.choice((1, 5)))} if rng.random() < 0.3 else {}
        self._create(CLAIMS, gpu_claim(f"c{number}", count=rng.choice((1, 1, 2, 3)), **priority))
        return 1

    def _group(self, number: int) -> int:
        for member in ("a", "b"):
            self._create(CLAIMS, gpu_claim(f"c{number}{member}", count=self.rng.choice((1, 2)), group=f"g{number}"))
        return 2

    def _machine(self, number: int) -> int:
        names = [f"m{number}{member}" for member in ("a", "b")[: self.rng.choice((0, 1, 1, 2))]]
        objects = [(MACHINES, machine(f"m{number}", self.rng.choice(("1", "2")), "1Gi", *names))]
        objects += [(CLAIMS, gpu_claim(name, count=self.rng.choice((1, 2)))) for name in names]
        for path, obj in objects if self.rng.random() < 0.7 else reversed(objects):
            self._create(path, obj)
        return len(objects)

    def _pod(self, number: int) -> int:
        """With claims of its own, and now and then one of another pod."""
        rng, space = self.rng, self.space
        names = [f"r{number}{member}" for member in ("a", "b")[: rng.choice((1, 2))]]
        others = [pod["spec"]["resourceClaims"][0]["resourceClaimName"] for pod in self.list(space.pods)]
        for name in names:
            self._create(space.claims, space.claim_of(name, "storm", rng.choice((1, 1, 2))))
        if others and rng.random() < 0.25:
            names.append(rng.choice(others))
        self._create(space.pods, space.pod_of(f"p{number}", *names))
        return len(names)

    def _create(self, path: str, obj: Object) -> None:
        answer = ask(lambda: self.cluster.create(path, obj))
        assert answer.ok or answer.status == 409, answer.message  # 409: the answer to the try before was lost
        self.did[f"{obj['kind']}s created"] += 1

    # -- what goes -----------------------------------------------------------------------------------------------------

    def _change(self, claim: Object) -> None:
        rng, metadata, path = self.rng, claim["metadata"], f"{CLAIMS}/{claim['metadata']['name']}"
        has = held(CLAIM, claim)
        if is_held(claim):
            self.let_go(claim, path)
        elif has and rng.random() < 0.3:
            if MARK not in annotations(claim):  # else it is not given yet
                self._hold(claim, path, "prepared")
                if rng.random() < 0.5:
                    self._did("deleted while prepared", ask(lambda: self.cluster.delete(path)))
        elif has and rng.random() < 0.3:
            noted = {**annotations(claim), "devalloc.io/release": "asked"}
            changed = {**claim, "metadata": {**metadata, "annotations": noted}}
            self._did("released", ask(lambda: self.cluster.replace(path, changed)))
        else:
            self._did("deleted", ask(lambda: self.cluster.delete(path)))

    def _change_machine(self, obj: Object) -> None:
        path = f"{MACHINES}/{obj['metadata']['name']}"
        if is_held(obj):
            if obj["metadata"].get("deletionTimestamp"):
                self.stop(obj, path)
            else:
                self._did("machines deleted while they run", ask(lambda: self.cluster.delete(path)))
        elif held(MACHINE, obj) and MARK not in annotations(obj) and self.rng.random() < 0.4:
            self._hold(obj, path, "machines begun")
        else:
            self._did("machines deleted", ask(lambda: self.cluster.delete(path)))

    def _hold(self, obj: Object, path: str, what: str) -> None:
        """As a node does: based on the state that it read."""
        noted = {**annotations(obj), WANTED: "node"}
        changed = {**obj, "metadata": {**obj["metadata"], "finalizers": [PREPARED], "annotations": noted}}
        self._did(what, ask(lambda: self.cluster.replace(path, changed)))

    def let_go(self, obj: Object, path: str) -> None:
        """Its node has nothing of it any more."""
        noted = {k: v for k, v in annotations(obj).items() if k != WANTED}
        changed = {**obj, "metadata": {**obj["metadata"], "finalizers": [], "annotations": noted}}
        self._did("let go", ask(lambda: self.cluster.replace(path, changed)))

    def stop(self, obj: Object, path: str) -> None:
        """A machine's node gives back what is kept for it with the write that says that nothing of it runs."""
        status = {k: v for k, v in obj.get("status", {}).items() if k not in ("allocations", "numaNode")}
        answer = ask(lambda: self.cluster.replace(f"{path}/status", {**obj, "status": {**status, "phase": "Stopped"}}))
        if answer.ok:
            self.let_go(answer.content, path)

    def _end_pod(self, pod: Object) -> None:
        space = self.space
        self._did("pods deleted", ask(lambda: self.cluster.delete(f"{space.pods}/{pod['metadata']['name']}{NOW}")))
        for used in pod["spec"]["resourceClaims"]:
            if self.rng.random() < 0.7:
                path = f"{space.claims}/{used['resourceClaimName']}"
                self._did("ResourceClaims deleted", ask(partial(self.cluster.delete, path)))

    def all_go(self) -> None:
        """Delete all there is; nodes let go of what they have."""
        for path in (self.space.pods, self.space.claims, MACHINES, CLAIMS):
            for obj in self.list(path):
                now = NOW if path == self.space.pods else ""
                ask(partial(self.cluster.delete, f"{path}/{obj['metadata']['name']}{now}"))
        self.nodes_let_go()

    def nodes_let_go(self) -> None:
        for path in (MACHINES, CLAIMS):
            for obj in self.list(path):
                if is_held(obj):
                    (self.stop if path == MACHINES else self.let_go)(obj, f"{path}/{obj['metadata']['name']}")

    def list(self, path: str) -> list[Object]:
        items: list[Object] = ask(lambda: self.cluster.get(path)).content["items"]
        kinds = {CLAIMS: CLAIM, MACHINES: MACHINE}
        return [{"kind": kinds.get(path), **obj} for obj in items]

    def _did(self, what: str, answer: ApiAnswer) -> None:
        self.did[what] += answer.ok


@dataclass
class PodScheduler:
    """What kube-scheduler and kube-controller-manager do for pods with claims that another controller allocates."""

    cluster: Cluster
    space: Space
    did: Counter[str] = field(default_factory=Counter)

    def run(self, over: threading.Event) -> None:
        while not over.wait(0.3):
            self.look()

    def look(self) -> None:
        space = self.space
        claims = {obj["metadata"]["name"]: obj for obj in ask(lambda: self.cluster.get(space.claims)).content["items"]}
        pods = ask(lambda: self.cluster.get(space.pods)).content["items"]  # after the claims that are for them
        for pod in pods:
            if not pod["spec"].get("nodeName"):
                self._schedule(pod, claims)
        there = {pod["metadata"]["uid"] for pod in pods}
        for claim in claims.values():
            self._take_back(claim, there)

    def _schedule(self, pod: Object, claims: dict[str, Object]) -> None:
        metadata = pod["metadata"]
        used = [claims.get(entry["resourceClaimName"]) for entry in pod["spec"]["resourceClaims"]]
        nodes = {_node_of(claim) for claim in used}
        if len(nodes) != 1 or (node := nodes.pop()) is None:
            return
        for claim in used:
            assert claim is not None
            users = claim["status"].get("reservedFor") or []
            if metadata["uid"] in {user["uid"] for user in users}:
                continue
            if claim["metadata"].get("deletionTimestamp"):
                return
            reference = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
            status = {**claim["status"], "reservedFor": [*users, reference]}
            if not self._write(claim, {**claim, "status": status}, "/status"):
                return
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": metadata["name"]}, "target": target}
        path = f"{self.space.pods}/{metadata['name']}/binding"
        self.did["pods begun"] += ask(lambda: self.cluster.create(path, body)).ok

    def _take_back(self, claim: Object, there: set[str]) -> None:
        """From pods that are gone; from a claim that no pod uses any more its devices, too."""
        status, metadata = claim.get("status") or {}, claim["metadata"]
        users = status.get("reservedFor") or []
        left = [user for user in users if user["uid"] in there]
        if left != users:
            now = {**status, "reservedFor": left} if left else {}
            written = self._write(claim, {**claim, "status": now}, "/status")
            if left or written is None:
                return
            claim, metadata = written, written["metadata"]
            self.did["ResourceClaims taken back"] += 1
        is_free = not (claim.get("status") or {}).get("allocation")
        if is_free and (left != users or metadata.get("deletionTimestamp")) and metadata.get("finalizers"):
            self._write(claim, {**claim, "metadata": {**metadata, "finalizers": []}}, "")

    def _write(self, claim: Object, changed: Object, part: str) -> Object | None:
        path = f"{self.space.claims}/{claim['metadata']['name']}{part}"
        answer = ask(lambda: self.cluster.replace(path, changed))
        if answer.ok:
            claim.clear()
            claim.update(answer.content)
        return answer.content if answer.ok else None


def _node_of(claim: Object | None) -> str | None:
    allocation = ((claim or {}).get("status") or {}).get("allocation")
    if not allocation:
        return None
    node: str = allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
    return node
