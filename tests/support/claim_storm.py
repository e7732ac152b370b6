"""Claims that come and go while two controllers are killed, stand still, and lose the API server."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.claim_history import PREPARED, History, Verdict
from tests.support.controllers import DEVMGMT, Process, controllers, leads
from tests.support.fleets import gpu_claim, gpu_pool
from tests.support.kube import Answer, Cluster
from tests.support.waiting import until

Object = dict[str, Any]
CLAIMS = f"{DEVMGMT}/namespaces/default/deviceclaims"
NODES, CARDS, DEVICES = 4, 2, 4
LEASE = 6.0
WANTED = "devalloc.io/prepared-on"
SETTLE_SECONDS = 150.0


@dataclass
class Tally:
    """What was done, and what came of it."""

    did: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    unanswered: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    """Claims that wait though there is room for them."""
    ends: Counter[int] = field(default_factory=Counter)
    """Exit codes of controllers."""
    broken: str | None = None
    """Why the history is not whole."""
    slowest: float = 0.0
    """Seconds until all was answered, when it was quiet again."""

    @property
    def wrong(self) -> list[str]:
        return [*self.verdict.wrong, *self.unanswered, *self.idle, *([self.broken] if self.broken else [])]

    def __str__(self) -> str:
        did = ", ".join(f"{number} {what}" for what, number in sorted(self.did.items()))
        return (
            f"{did}; {self.verdict.states} states of claims with {self.verdict.grants} grants; controllers ended with "
            f"{dict(self.ends)}; quiet after {self.slowest:.0f} s: {len(self.wrong)} wrong"
        )


class Storm:
    """On an API server of its own, with the class gpu and no other claims or pools."""

    def __init__(
        self, cluster: Cluster, folder: Path, seed: int, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._people, self._chaos = random.Random(seed), random.Random(seed + 1)
        self._say = say
        self._over = threading.Event()
        self._tally = Tally()
        self._failure: BaseException | None = None

    def run(self, claims: int, seconds: float, *, away: float = 0.0) -> Tally:
        """So many claims within so many seconds; ``away``: half-way the API server is away for so long besides. Raises
        what broke the storm itself."""
        for node in range(NODES):
            for card in range(CARDS):
                pool = gpu_pool(f"storm-{node}-{card}", devices=DEVICES, node=f"storm-{node}")
                assert self._cluster.create(f"{DEVMGMT}/devicepools", pool).ok
        history = History(self._cluster)
        with controllers(self._cluster, self._folder, 2, lease=f"{LEASE:.0f}s") as processes:
            until(lambda: leads(self._cluster, processes), "one leads")
            threads = [
                threading.Thread(target=self._guarded, args=(work, *more), daemon=True)
                for work, *more in (
                    (self._come_and_go, claims, seconds),
                    (self._disturb, processes, seconds, away),
                    (self._keep_running, processes),
                )
            ]
            for thread in threads:
                thread.start()
            for thread in threads[:2]:
                thread.join()
            self._settle(processes)
            self._over.set()
            threads[2].join()
            for process in processes:
                process.start()
                self._tally.ends.update([*process.codes, process.end()])
        if self._failure is not None:
            raise self._failure
        history.close()
        self._tally.broken, self._tally.verdict = history.broken, history.judge()
        return self._tally

    def _guarded(self, work: Callable[..., None], *more: Any) -> None:
        try:
            work(*more)
        except BaseException as error:
            self._failure = self._failure or error
            self._over.set()

    # -- those who want devices, and the nodes that have them ----------------------------------------------------------

    def _come_and_go(self, claims: int, seconds: float) -> None:
        rng, began, made = self._people, time.monotonic(), 0
        while made < claims and not self._over.is_set():
            due = began + seconds * made / claims
            self._over.wait(max(0.0, due - time.monotonic()) * rng.uniform(0.5, 1.5))
            if rng.random() < 0.25:
                for member in ("a", "b"):
                    self._create(gpu_claim(f"c{made}{member}", count=rng.choice((1, 2)), group=f"g{made}"))
                made += 2
            else:
                priority = {"priority": str(rng.choice((1, 5)))} if rng.random() < 0.3 else {}
                self._create(gpu_claim(f"c{made}", count=rng.choice((1, 1, 2, 3)), **priority))
                made += 1
            there = self._list()["items"]
            for _ in range(rng.choice((0, 1, 1, 2)) if len(there) > 12 else 0):
                held = [claim for claim in there if _devices(claim)]
                self._change(rng, rng.choice(held if held and rng.random() < 0.7 else there))

    def _change(self, rng: random.Random, claim: Object) -> None:
        metadata, has = claim["metadata"], (claim.get("status") or {}).get("allocations")
        path, prepared = f"{CLAIMS}/{metadata['name']}", PREPARED in metadata.get("finalizers", [])
        if prepared:  # its node lets go
            annotations = {k: v for k, v in metadata.get("annotations", {}).items() if k != WANTED}
            changed = {**claim, "metadata": {**metadata, "finalizers": [], "annotations": annotations}}
            self._did("unprepared", self._ask(lambda: self._cluster.replace(path, changed)))
        elif has and rng.random() < 0.3:  # as a node does: based on the state that it read
            annotations = {**metadata.get("annotations", {}), WANTED: "node"}
            changed = {**claim, "metadata": {**metadata, "finalizers": [PREPARED], "annotations": annotations}}
            self._did("prepared", self._ask(lambda: self._cluster.replace(path, changed)))
            if rng.random() < 0.5:
                self._did("deleted while prepared", self._ask(lambda: self._cluster.delete(path)))
        elif has and rng.random() < 0.3:
            annotations = {**metadata.get("annotations", {}), "devalloc.io/release": "asked"}
            changed = {**claim, "metadata": {**metadata, "annotations": annotations}}
            self._did("released", self._ask(lambda: self._cluster.replace(path, changed)))
        else:
            self._did("deleted", self._ask(lambda: self._cluster.delete(path)))

    def _create(self, claim: Object) -> None:
        answer = self._ask(lambda: self._cluster.create(CLAIMS, claim))
        assert answer.ok or answer.status == 409, answer.message  # 409: the answer to the try before was lost
        self._did("created", answer, always=True)

    def _did(self, what: str, answer: Answer, *, always: bool = False) -> None:
        if answer.ok or always:
            self._tally.did[what] += 1

    def _ask(self, request: Callable[[], Answer]) -> Answer:
        """However often it takes."""
        deadline = time.monotonic() + 600
        while True:
            try:
                answer = request()
                if answer.status < 500 and answer.status not in (401, 403, 429):  # those while the server begins
                    return answer
                error: object = answer.message
            except (OSError, ValueError) as broken:
                error = broken
            assert time.monotonic() < deadline, f"the API server does not come back: {error}"
            time.sleep(0.2)

    def _list(self) -> Object:
        return self._ask(lambda: self._cluster.get(CLAIMS)).content

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _disturb(self, processes: list[Process], seconds: float, away: float) -> None:
        rng, began = self._chaos, time.monotonic()
        until_ = began + seconds
        kinds = ["kill the leader", "stop the leader", "restart the API server", "kill one", "stop one briefly"]
        order = list(kinds)
        while not self._over.wait(rng.uniform(1.0, 5.0)) and time.monotonic() < until_:
            if away and time.monotonic() > began + seconds / 2:
                self._say(f"API server away for {away:.0f} s")
                self._restart(away)
                self._tally.did["API server away for long"] += 1
                away = 0.0
            if not order:
                order = rng.sample(kinds, len(kinds))
            what = order.pop(0)
            leader = self._leader(processes)
            one = leader or rng.choice(processes)
            self._say(f"{what}: {one.name}")
            if what == "kill the leader":
                one.signal(signal.SIGKILL)
            elif what == "kill one":
                rng.choice(processes).signal(signal.SIGKILL)
            elif what == "restart the API server":
                self._restart(rng.uniform(0.0, 3.0))
            else:
                still = LEASE + rng.uniform(1.0, 4.0) if what == "stop the leader" else rng.uniform(0.2, LEASE)
                one.signal(signal.SIGSTOP)
                self._over.wait(still)
                one.signal(signal.SIGCONT)
            self._tally.did[what] += 1

    def _leader(self, processes: list[Process]) -> Process | None:
        try:
            return leads(self._cluster, processes)
        except (OSError, ValueError):
            return None

    def _restart(self, pause: float) -> None:
        assert self._cluster.server is not None
        self._cluster.server.kill()
        self._over.wait(pause)
        self._cluster.server.start(self._cluster)

    def _keep_running(self, processes: list[Process]) -> None:
        """As a Deployment does."""
        while not self._over.wait(0.5):
            for process in processes:
                process.start()

    # -- when it is quiet again ----------------------------------------------------------------------------------------

    def _settle(self, processes: list[Process]) -> None:
        for process in processes:
            process.signal(signal.SIGCONT)
        for claim in self._list()["items"]:
            if PREPARED in claim["metadata"].get("finalizers", []):
                self._change(self._people, claim)
        began = time.monotonic()
        while time.monotonic() < began + SETTLE_SECONDS and self._failure is None:
            claims = self._list()["items"]
            self._tally.unanswered, self._tally.idle = _unanswered(claims), _idle(claims)
            self._tally.slowest = time.monotonic() - began
            if not self._tally.unanswered and not self._tally.idle:
                return
            time.sleep(0.5)


def _devices(claim: Object) -> list[Object]:
    return (claim.get("status") or {}).get("allocations") or []


def _unanswered(claims: list[Object]) -> list[str]:
    """Those that have neither devices nor a reason."""
    return [
        f"{claim['metadata']['name']} has no answer"
        for claim in claims
        if not _devices(claim) and "devalloc.io/reason" not in claim["metadata"].get("annotations", {})
    ]


def _idle(claims: list[Object]) -> list[str]:
    """Those that wait alone, and of which one node has as many free devices as they want."""
    free = Counter({f"storm-{node}": CARDS * DEVICES for node in range(NODES)})
    free.subtract(entry["devicePoolName"].rpartition("-")[0] for claim in claims for entry in _devices(claim))
    most = max(free.values())
    return [
        f"{claim['metadata']['name']} waits though a node has {most} free devices"
        for claim in claims
        if not _devices(claim)
        and "devalloc.io/group" not in claim["metadata"].get("annotations", {})
        and claim["spec"]["claims"][0]["requests"]["count"] <= most
    ]
