"""Every state that objects of an API server ever had, from etcd: that remembers all while the API server is away, which
forgets with each restart what was before. ``claim_judge`` judges them.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from typing import Any

from tests.support.claim_judge import (
    CLAIM,
    MACHINE,
    POD,
    POOL,
    PREPARED,
    RECORD,
    RESOURCE_CLAIM,
    HistoryVerdict,
    State,
    why_not,
)
from tests.support.claim_judge import held as held_by
from tests.support.claim_judge import judge as judged
from tests.support.kube_api import Cluster

Object = dict[str, Any]
CLAIMS = "/apis/devmgmtproto.k8s.io/v1alpha1/deviceclaims"
PLACES = {
    "devmgmtproto.k8s.io/deviceclaims": CLAIM,
    "devmgmtproto.k8s.io/devicepools": POOL,
    "devalloc.io/virtualmachines": MACHINE,
    "configmaps/devalloc-system": RECORD,
    "resourceclaims": RESOURCE_CLAIM,
    "pods": POD,
}
"""Where etcd has them, and the kind."""
OURS = (CLAIM, MACHINE, POOL)
"""What etcd has as JSON; for the rest the API server needs ``--storage-media-type=application/json``."""
_ALL = "/registry/"
_MARK = "/registry/devmgmtproto.k8s.io/deviceclaims/default/last-of-all"


class History:
    """Records from when it is made until ``close``."""

    def __init__(self, cluster: Cluster, kinds: Iterable[str] = OURS) -> None:
        self._cluster = cluster
        self._kinds = frozenset(kinds)
        self.states: list[State] = []
        self.times: list[float] = []
        """When each was heard of, by the monotonic clock."""
        self._seen: dict[str, Object] = {}
        self.broken: str | None = None
        """Why it is not whole."""
        self.newest = 0
        """The version up to which all is known."""
        self._closing = False
        reply = json.load(self._ask("/v3/kv/range", _range()))
        for entry in reply.get("kvs", []):
            self._put(entry)
        self.newest = int(reply["header"]["revision"])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _ask(self, path: str, body: Object) -> Any:
        request = urllib.request.Request(f"{self._cluster.etcd}{path}", json.dumps(body).encode())
        return urllib.request.urlopen(request, timeout=600)

    def _run(self) -> None:
        try:
            while not (self._closing and _MARK in self._seen):
                try:
                    self._follow()
                except (OSError, HTTPException):
                    time.sleep(0.1)  # it is started again
        except Exception as error:
            self.broken = f"{type(error).__name__}: {error}"

    def _follow(self) -> None:
        """Until etcd ends it."""
        with self._ask("/v3/watch", {"create_request": {**_range(), "start_revision": self.newest + 1}}) as response:
            for line in response:
                self._take(json.loads(line)["result"])
                if self._closing and _MARK in self._seen:
                    return

    def _take(self, result: Object) -> None:
        if result.get("canceled"):
            raise ValueError(f"the watch was cancelled: {result}")
        for event in result.get("events", []):
            version = int(event["kv"]["mod_revision"])
            if event.get("type") == "DELETE":
                key = base64.b64decode(event["kv"]["key"]).decode()
                if (last := self._seen.pop(key, None)) is not None:
                    self._note(State(version, _kind(key) or "", last, gone=True))
            else:
                self._put(event["kv"])
            self.newest = version

    def _put(self, entry: Object) -> None:
        key = base64.b64decode(entry["key"]).decode()
        if (kind := _kind(key)) not in self._kinds or kind is None:
            return
        obj = json.loads(base64.b64decode(entry["value"]))
        obj["metadata"]["resourceVersion"] = entry["mod_revision"]
        self._seen[key] = obj
        self._note(State(int(entry["mod_revision"]), kind, obj))

    def _note(self, state: State) -> None:
        self.times.append(time.monotonic())
        self.states.append(state)

    def close(self) -> None:
        """When all that was written until now is there."""
        self._closing = True
        mark = {"name": "last-of-all", "namespace": "default"}
        claim = {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": CLAIM, "metadata": mark, "spec": {}}
        path = "/apis/devmgmtproto.k8s.io/v1alpha1/namespaces/default/deviceclaims"
        answer = self._cluster.create(path, {**claim, "spec": {"claims": [{"deviceClass": "gpu"}]}})
        assert answer.ok, answer.message
        self._thread.join(120)
        if self._thread.is_alive():
            self.broken = self.broken or "the last state did not come within two minutes"
        assert self._cluster.delete(f"{path}/last-of-all").ok

    def answered(self) -> dict[str, float]:
        """When each claim got its first answer, devices or a reason, by name."""
        times: dict[str, float] = {}
        for at, state in zip(self.times, [*self.states], strict=False):
            if state.kind == CLAIM and not state.gone:
                obj = state.obj
                if held_by(CLAIM, obj) or why_not(obj):
                    times.setdefault(obj["metadata"]["name"], at)
        return times

    def judge(self) -> HistoryVerdict:
        """Who had what at each resourceVersion."""
        return judged(self.states)


def _range() -> Object:
    """Everything, so that there is one order; in Kubernetes' part of etcd little else happens."""
    end = _ALL[:-1] + chr(ord(_ALL[-1]) + 1)
    return {"key": base64.b64encode(_ALL.encode()).decode(), "range_end": base64.b64encode(end.encode()).decode()}


def _kind(key: str) -> str | None:
    place = key.removeprefix(_ALL)
    return next((kind for prefix, kind in PLACES.items() if place.startswith(f"{prefix}/")), None)


def unanswered(cluster: Cluster) -> list[str]:
    """Claims that have neither devices nor a reason."""
    return [
        claim["metadata"]["name"]
        for claim in cluster.get(CLAIMS).content["items"]
        if not held_by(CLAIM, claim) and not why_not(claim)
    ]


def holders(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """What each claim that has devices has, by name."""
    by_claim = {claim["metadata"]["name"]: held_by(CLAIM, claim) for claim in cluster.get(CLAIMS).content["items"]}
    return {name: held for name, held in by_claim.items() if held}


__all__ = ["PREPARED", "History", "holders", "unanswered"]
