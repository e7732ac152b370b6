"""Faults in a storm: controllers killed, stopped or delayed; an API server that is away, slow, refuses or forgets; etcd
restarted."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.support.controller_processes import NAMESPACE, Process, leader_process
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kube_api import Cluster, ServerProcess
from tests.support.storm_clients import ask

FLOWS = "/apis/flowcontrol.apiserver.k8s.io/v1"
FIRST = 4
"""How many of the disturbances every storm has."""
FLOW_NAME = "storm-nobody"
"""The priority level in which nothing is let in."""


@dataclass(frozen=True)
class Controller:
    """One process, and its way to the API server."""

    process: Process
    way: FaultyProxy


@dataclass
class StormFaults:
    """Use from one thread."""

    cluster: Cluster
    controllers: list[Controller]
    rng: random.Random
    over: threading.Event
    lease: float
    """Seconds."""
    account: str
    """The service account of the controllers."""
    say: Callable[[str], None] = lambda text: None
    did: Counter[str] = field(default_factory=Counter)

    def disturb(self, seconds: float, away: float) -> None:
        """For so long; ``away``: half-way the API server is away for so long besides."""
        began = time.monotonic()
        acts: dict[str, Callable[[], None]] = {
            "kill the leader": lambda: self._leader().process.signal(signal.SIGKILL),
            "stop the leader": self._stop_leader,
            "restart the API server": lambda: self._restart(self.cluster.server, self.rng.uniform(0.0, 3.0)),
            "have the leader heard late": self._hold,
            "restart etcd": lambda: self._restart(self.cluster.keeper, self.rng.uniform(0.0, 2.0)),
            "have all forgotten": self._forget,
            "refuse by 429": self._refuse,
            "be slow": self._slow,
            "kill one": lambda: self.rng.choice(self.controllers).process.signal(signal.SIGKILL),
            "stop one briefly": self._stop_briefly,
            "other settings": self._other_settings,
        }
        # What comes first is done however little time there is.
        order = self.rng.sample([*acts][FIRST:], len(acts) - FIRST) + self.rng.sample([*acts][:FIRST], FIRST)
        due = FIRST
        longest = 5.0 if seconds > 60 else 2.0
        while not self.over.wait(self.rng.uniform(0.5, longest)):
            if due <= 0 and time.monotonic() > began + seconds:
                return
            due -= 1
            if away and time.monotonic() > began + seconds / 2:
                self.say(f"API server away for {away:.0f} s")
                self._restart(self.cluster.server, away)
                self.did["API server away for long"] += 1
                away = 0.0
            order = order or self.rng.sample([*acts], len(acts))
            what = order.pop()
            self.say(what)
            acts[what]()
            self.did[what] += 1

    def heal(self) -> None:
        """From here on nothing is in the way."""
        for one in self.controllers:
            one.way.delay = 0.0
            one.way.let_go()
            one.process.signal(signal.SIGCONT)
            if not one.process.options:
                one.process.options = ("--resource-claims",)
                one.process.signal(signal.SIGTERM)
        ask(lambda: self.cluster.delete(f"{FLOWS}/flowschemas/{FLOW_NAME}"))

    def _leader(self) -> Controller:
        try:
            leader = leader_process(self.cluster, [one.process for one in self.controllers])
        except (OSError, ValueError):
            leader = None
        leaders = [one for one in self.controllers if one.process is leader]
        return leaders[0] if leaders else self.rng.choice(self.controllers)

    def _longer_than_the_lease(self) -> float:
        return self.lease + self.rng.uniform(1.0, 4.0)

    def _stop_leader(self) -> None:
        process = self._leader().process
        process.signal(signal.SIGSTOP)
        self.over.wait(self._longer_than_the_lease())
        process.signal(signal.SIGCONT)

    def _stop_briefly(self) -> None:
        process = self._leader().process
        process.signal(signal.SIGSTOP)
        self.over.wait(self.rng.uniform(0.2, self.lease))
        process.signal(signal.SIGCONT)

    def _hold(self) -> None:
        """What it sends arrives when another one leads, and it may be gone by then."""
        leader = self._leader()
        leader.way.hold()
        self.over.wait(self.rng.uniform(0.0, 1.0))
        if self.rng.random() < 0.5:
            leader.process.signal(signal.SIGKILL)
        self.over.wait(self._longer_than_the_lease())
        leader.way.let_go()

    def _restart(self, server: ServerProcess | None, pause: float) -> None:
        assert server is not None
        server.kill()
        self.over.wait(pause)
        server.start(self.cluster)

    def _forget(self) -> None:
        """No watch can go on where it was: 410."""
        self.cluster.compact()
        self._restart(self.cluster.server, 0.0)

    def _slow(self) -> None:
        delay = self.rng.uniform(0.1, 0.5)
        for one in self.controllers:
            one.way.delay = delay
        self.over.wait(self.rng.uniform(4.0, 8.0))
        for one in self.controllers:
            one.way.delay = 0.0

    def _refuse(self) -> None:
        """As an API server does that has too much to do (priority and fairness)."""
        for path, body in (("prioritylevelconfigurations", _level()), ("flowschemas", _flows(self.account))):
            answer = ask(partial(self.cluster.create, f"{FLOWS}/{path}", body))
            assert answer.ok or answer.status == 409, answer.message
        self.over.wait(self.rng.uniform(2.0, 6.0))
        ask(lambda: self.cluster.delete(f"{FLOWS}/flowschemas/{FLOW_NAME}"))

    def _other_settings(self) -> None:
        """One answers ResourceClaims, the other does not, or the other way round."""
        one = self.rng.choice(self.controllers)
        one.process.options = () if one.process.options else ("--resource-claims",)
        one.process.signal(signal.SIGCONT)
        one.process.signal(signal.SIGTERM)


def _level() -> dict[str, Any]:
    limited = {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0}
    spec = {"type": "Limited", "limited": {**limited, "limitResponse": {"type": "Reject"}}}
    return _of("PriorityLevelConfiguration", spec)


def _flows(account: str) -> dict[str, Any]:
    who = {"kind": "ServiceAccount", "serviceAccount": {"namespace": NAMESPACE, "name": account}}
    what = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    rules = [{"subjects": [who], "resourceRules": [what]}]
    return _of(
        "FlowSchema",
        {"priorityLevelConfiguration": {"name": FLOW_NAME}, "matchingPrecedence": 2, "rules": rules},
    )


def _of(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": FLOW_NAME},
        "spec": spec,
    }
