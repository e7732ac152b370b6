"""Every state that DeviceClaims of an API server ever had, and who had what in each.

This is to judge controllers by, so it shares nothing with them: plain HTTP, plain JSON, and a few lines of counting.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.support.kube import Cluster

Object = dict[str, Any]
CLAIMS = "/apis/devmgmtproto.k8s.io/v1alpha1/deviceclaims"
REASON = "devalloc.io/reason"
_PREFIX = b"/registry/devmgmtproto.k8s.io/deviceclaims/"
_RANGE = {
    "key": base64.b64encode(_PREFIX).decode(),
    "range_end": base64.b64encode(_PREFIX[:-1] + bytes([_PREFIX[-1] + 1])).decode(),
}
MARK = f"{_PREFIX.decode()}default/last-of-all"
PREPARED = "devalloc.io/node"
"""The finalizer by which a node says that it has a claim's devices."""


@dataclass
class Verdict:
    """What a history shows."""

    states: int = 0
    grants: int = 0
    doubles: list[str] = field(default_factory=list)
    """Devices that two claims had at one resourceVersion."""
    moved: list[str] = field(default_factory=list)
    """Claims whose devices became others without being taken back first."""
    torn: list[str] = field(default_factory=list)
    """Claims whose devices were taken back while their node had them prepared."""

    @property
    def wrong(self) -> list[str]:
        return [*self.doubles, *self.moved, *self.torn]


class History:
    """Records from when it is made until ``close``: from etcd, which remembers all while the API server is away (that
    forgets with each restart what was before)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.events: list[tuple[str, Object]] = []
        self.times: list[float] = []
        """When each was heard of, by the monotonic clock."""
        self._seen: dict[str, Object] = {}
        self.broken: str | None = None
        """Why it is not whole."""
        found = json.load(self._ask("/v3/kv/range", _RANGE))
        for entry in found.get("kvs", []):
            self._put(entry)
        self._begin = int(found["header"]["revision"]) + 1
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _ask(self, path: str, body: Object) -> Any:
        request = urllib.request.Request(f"{self._cluster.etcd}{path}", json.dumps(body).encode())
        return urllib.request.urlopen(request, timeout=600)

    def _run(self) -> None:
        try:
            with self._ask("/v3/watch", {"create_request": {**_RANGE, "start_revision": self._begin}}) as response:
                for line in response:
                    self._take(json.loads(line)["result"])
                    if self._closing and MARK in self._seen:
                        return
        except Exception as error:
            self.broken = f"{type(error).__name__}: {error}"

    def _take(self, result: Object) -> None:
        if result.get("canceled"):
            raise OSError(f"the watch was cancelled: {result}")
        for event in result.get("events", []):
            if event.get("type") == "DELETE":
                last = self._seen.pop(base64.b64decode(event["kv"]["key"]).decode())
                version = event["kv"]["mod_revision"]
                gone = {**last, "metadata": {**last["metadata"], "resourceVersion": version}}
                self._note("DELETED", gone)
            else:
                self._put(event["kv"])

    def _put(self, entry: Object) -> None:
        obj = json.loads(base64.b64decode(entry["value"]))
        obj["metadata"]["resourceVersion"] = entry["mod_revision"]
        self._seen[base64.b64decode(entry["key"]).decode()] = obj
        self._note("MODIFIED", obj)

    def _note(self, type_: str, obj: Object) -> None:
        self.times.append(time.monotonic())
        self.events.append((type_, obj))

    def close(self) -> None:
        """When all that was written until now is there."""
        self._closing = True
        mark = {"name": "last-of-all", "namespace": "default"}
        claim = {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DeviceClaim", "metadata": mark, "spec": {}}
        path = "/apis/devmgmtproto.k8s.io/v1alpha1/namespaces/default/deviceclaims"
        answer = self._cluster.create(path, {**claim, "spec": {"claims": [{"deviceClass": "gpu"}]}})
        assert answer.ok, answer.message
        self._thread.join(120)
        assert self._cluster.delete(f"{path}/last-of-all").ok

    def answered(self) -> dict[str, float]:
        """When each claim got its first answer, devices or a reason, by name."""
        found: dict[str, float] = {}
        for at, (type_, obj) in zip(self.times, [*self.events], strict=False):
            if type_ != "DELETED" and (_held(obj) or REASON in obj["metadata"].get("annotations", {})):
                found.setdefault(obj["metadata"]["name"], at)
        return found

    def judge(self) -> Verdict:
        """Who had what at each resourceVersion. Whole devices only."""
        verdict = Verdict()
        claims: dict[tuple[str, str], tuple[str, ...]] = {}
        owners: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for type_, obj in self.events:
            metadata = obj["metadata"]
            key = (metadata["namespace"], metadata["name"])
            before = claims.pop(key, ())
            for device in before:
                owners[device].discard(key)
            now = () if type_ == "DELETED" else _held(obj)
            verdict.states += 1
            verdict.grants += bool(now) and not before
            if before and now and before != now:
                verdict.moved.append(f"{key} at {metadata['resourceVersion']}: {before} became {now}")
            if before and not now and type_ != "DELETED" and PREPARED in metadata.get("finalizers", []):
                verdict.torn.append(f"{key} at {metadata['resourceVersion']}: {before}")
            claims[key] = now
            for device in now:
                owners[device].add(key)
                if len(owners[device]) > 1:
                    verdict.doubles.append(f"{device} at {metadata['resourceVersion']}: {sorted(owners[device])}")
        return verdict


def _held(claim: Object) -> tuple[str, ...]:
    entries = (claim.get("status") or {}).get("allocations") or []
    return tuple(sorted(f"{entry['devicePoolName']}/{entry['deviceName']}" for entry in entries))


def unanswered(cluster: Cluster) -> list[str]:
    """Claims that have neither devices nor a reason."""
    return [
        claim["metadata"]["name"]
        for claim in cluster.get(CLAIMS).content["items"]
        if not _held(claim) and REASON not in claim["metadata"].get("annotations", {})
    ]


def holders(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """What each claim that has devices has, by name."""
    found = {claim["metadata"]["name"]: _held(claim) for claim in cluster.get(CLAIMS).content["items"]}
    return {name: held for name, held in found.items() if held}
