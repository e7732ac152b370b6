"""Keeps this node's ResourceSlices as its inventory has the pools: after changes of its own, after changes of others,
after a restart; with no write where nothing differs.

Only slices of this node and driver are looked at: the list is narrowed to them, as the rights of a node demand. Slices
have fixed names, so that two instances of the plugin write the same objects and never double a pool. The kubelet wipes
the slices of a node when it starts and when a driver stays away; the watch sees that, and they are written again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from devalloc.api.dedicated_pools import dedicated_pool_name
from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem, errors
from devalloc.inventory.discover import Discovery
from devalloc.inventory.watch import EventSource, InventoryWatcher, WatchSettings
from devalloc.store.kubernetes.api_error import ApiError, Object
from devalloc.store.kubernetes.client import Client, path_segment
from devalloc.worker import FAILED, UNTRIED, Again, Pace, Why, Worker, repeat
from devalloc_node.kube.slices import SliceFeatures, SlicePool, object_name, slices_of_pool

SLICES = "/apis/resource.k8s.io/v1/resourceslices"

_COUNTER = {"probe": {"value": "1"}}


def probe_features(client: Client, driver: str, node: str) -> SliceFeatures:
    """Ask by creating a slice that is not stored. Raises ApiError."""
    taint = {"key": "devalloc.io/probe", "effect": "NoSchedule"}
    device = {"name": "probe", "taints": [taint]}
    consumed = {"counterSet": "probe", "counters": _COUNTER, "compatibilityGroups": ["probe"]}
    try:
        stored = _stored_slice(client, driver, node, {"devices": [{**device, "consumesCounters": [consumed]}]})[
            "devices"
        ][0]
    except ApiError as error:
        if error.status != 422:
            raise
        # 1.34 wants counters in the slice of their devices, which ours are not.
        stored = _stored_slice(client, driver, node, {"devices": [device]})["devices"][0]
    counters = stored.get("consumesCounters") or []
    return SliceFeatures(
        counters=bool(counters),
        taints=bool(stored.get("taints")),
        groups=bool(counters and counters[0].get("compatibilityGroups")),
    )


def slice_object(driver: str, node: str, pool: Object, name: str, content: Object) -> Object:
    """A ResourceSlice of this node. ``pool``: its name, generation and resourceSliceCount."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, **content},
    }


def _stored_slice(client: Client, driver: str, node: str, content: Object) -> Any:
    pool = {"name": "probe", "generation": 1, "resourceSliceCount": 1}
    body = slice_object(driver, node, pool, object_name(node, driver, "probe"), content)
    try:
        return client.create(SLICES, body, {"dryRun": "All"})["spec"]
    except ApiError as error:
        if error.status == 404:
            raise ApiError(
                404, error.reason, "the cluster does not serve resource.k8s.io/v1: Kubernetes 1.34 or newer is needed"
            ) from None
        raise


log = logging.getLogger(__name__)

RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
"""The pause after an error, or after a repair of what others changed, doubled for each that follows at once: two
versions of the plugin that disagree must not write in turns."""
FEATURES_SECONDS = 600.0
"""How long an answer to what the API server keeps counts: of several servers one may have been started with others."""


@dataclass(frozen=True, slots=True)
class PublishStatus:
    """How it stands."""

    slices: int = 0
    """How many there are."""
    writes: int = 0
    """Created, replaced and deleted since the start."""
    problems: tuple[Problem, ...] = ()
    """What could not be told."""
    error: str | None = None
    """Why the last attempt failed; None when all is as it should be."""


class SlicePublisher:
    """Publishes the pools of one node. Safe for threads."""

    def __init__(self, client: Client, driver: str, node: str, *, failed: Callable[[], None] = lambda: None) -> None:
        """``failed`` is called for each attempt that failed; it is made again."""
        self._client = client
        self._failed = failed
        self._driver = driver
        self._node = node
        self._features: SliceFeatures | None = None
        self._ask_features_at = 0.0
        self._owner: Object | None = None
        self._generations: dict[str, int] = {}
        """The last one of each pool, which survives that the slices are wiped."""
        self._writes = 0
        self._conflict = False

        self._wanted: tuple[DevicePool, ...] | None = None
        self._published = PublishStatus()
        self._changed = threading.Condition()
        self._attempted: tuple[DevicePool, ...] | None = None
        """What was wanted at the last attempt."""
        pace = Pace(RETRY_SECONDS, MAX_RETRY_SECONDS)
        self._worker: Worker[None, object] = Worker("cannot publish the ResourceSlices", self._work, pace=pace)
        self._written: dict[str, tuple[str, int]] = {}
        """UID and resource version of the slices as we saw or wrote them last."""

    @property
    def published(self) -> PublishStatus:
        return self._published

    def set(self, pools: Sequence[DevicePool]) -> None:
        """What the node has now. Returns at once; the slices follow."""
        self._wanted = tuple(pools)
        self._worker.add(None)

    @property
    def loops(self) -> tuple[Callable[[threading.Event], None], Callable[[threading.Event], None]]:
        """To be run in threads of their own until the event is set. Nothing is written before the first ``set``, and
        the slices stay when the loops end: the next instance goes on with them."""
        return self._worker.run, self._watch

    def wait(self, condition: Callable[[PublishStatus], bool], seconds: float) -> bool:
        """Wait until what is published is so; False when it is not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self._published), seconds)

    # -- one pass ------------------------------------------------------------------------------------------------------

    def publish(self, pools: Sequence[DevicePool]) -> PublishStatus:
        """Make the slices say that these are the node's pools, once. Raises ApiError."""
        features = self._present_features()
        self._owner = None  # a node that was deleted and came back is another one
        wanted = [slices_of_pool(pool, features) for pool in pools]
        existing: dict[str, list[Object]] = {}
        listed = self._client.get(SLICES, self._selector())["items"]
        self._written = {content["metadata"]["name"]: _version(content) for content in listed}
        for content in listed:
            existing.setdefault(content["spec"]["pool"]["name"], []).append(content)
        gone = [SlicePool(name, ()) for name in sorted(existing.keys() - {pool.name for pool in wanted})]
        dropped: list[Problem] = []
        refused = []
        self._conflict = False
        for pool in [*gone, *wanted]:
            try:
                dropped += self._publish_pool(pool, existing.get(pool.name, []))
            except ApiError as error:
                if not error.status:
                    raise
                self._conflict = self._conflict or error.is_conflict
                refused.append(f"pool {pool.name}: {error}")  # one that is refused does not hold up the others
        if dropped:
            self._features = None  # a feature was switched off since we asked: ask again
            refused.append("the API server dropped some of the written fields")
        return PublishStatus(
            slices=sum(len(pool.slices) for pool in wanted),
            writes=self._writes,
            problems=tuple(problem for pool in wanted for problem in pool.problems) + tuple(dropped),
            error="; ".join(refused) or None,
        )

    def _present_features(self) -> SliceFeatures:
        if self._features is None or time.monotonic() >= self._ask_features_at:
            self._features = probe_features(self._client, self._driver, self._node)
            self._ask_features_at = time.monotonic() + FEATURES_SECONDS
        return self._features

    def _publish_pool(self, pool: SlicePool, existing: list[Object]) -> list[Problem]:
        """Write what differs of one pool; what the server did not keep of it."""
        self._remember(pool.name, existing)
        generation = self._generations[pool.name]
        names = [object_name(pool.name, self._driver, f"{index:03d}") for index in range(len(pool.slices))]
        there = {content["metadata"]["name"]: content for content in existing}
        current = {name: there[name] for name in names if name in there}
        obsolete = [content for name, content in there.items() if name not in names]

        header: Object = {"name": pool.name, "generation": generation, "resourceSliceCount": len(names)}
        differ = [
            name
            for name, content in zip(names, pool.slices, strict=True)
            if name not in current or not _is_same_spec(current[name]["spec"], header, content)
        ]
        if len(differ) == 1 and differ[0] in current and not obsolete:
            changed = differ  # one write changes it from one whole pool to another
        elif differ or obsolete:
            header["generation"] = generation + 1
            changed = names
        else:
            changed = []
        self._generations[pool.name] = header["generation"]
        self._delete(obsolete)
        dropped = []
        for name, content in zip(names, pool.slices, strict=True):
            stored = current[name] if name not in changed else self._write(name, header, content, current.get(name))
            self._written[name] = _version(stored)
            if not _is_same_spec(stored["spec"], header, content):
                message = f"the API server dropped fields of ResourceSlice {name}; probing its features again"
                dropped.append(Problem(message, kind="DevicePool", name=pool.name))
        return dropped

    def _remember(self, pool: str, existing: Sequence[Object]) -> None:
        seen = [content["spec"]["pool"]["generation"] for content in existing]
        self._generations[pool] = max([self._generations.get(pool, 0), *seen])

    def _write(self, name: str, header: Object, content: Object, old: Object | None) -> Object:
        body = slice_object(self._driver, self._node, header, name, content)
        self._writes += 1
        if old is None:
            if owner := self._node_reference():
                body["metadata"]["ownerReferences"] = [owner]
            return self._client.create(SLICES, body)
        body["metadata"] = old["metadata"]
        body["spec"] = {**content, **{key: body["spec"][key] for key in ("driver", "nodeName", "pool")}}
        _with_old_times(body["spec"], old["spec"])
        return self._client.replace(f"{SLICES}/{path_segment(name)}", body)

    def _delete(self, contents: Sequence[Object]) -> None:
        for content in contents:
            metadata = content["metadata"]
            self._written.pop(metadata["name"], None)
            self._writes += 1
            self._client.delete(
                f"{SLICES}/{path_segment(metadata['name'])}", metadata["uid"], metadata["resourceVersion"]
            )

    def _node_reference(self) -> Object | None:
        """The node as the slices' owner, so that they go when it is deleted; None where it may not be read."""
        if self._owner is None:
            try:
                node = self._client.get(f"/api/v1/nodes/{path_segment(self._node)}")
            except ApiError as error:
                if error.status != 403:
                    raise
                log.warning("cannot read node %s, so its slices will not be deleted with it: %s", self._node, error)
                return None
            self._owner = {
                "apiVersion": "v1",
                "kind": "Node",
                "name": self._node,
                "uid": node["metadata"]["uid"],
                "controller": True,
            }
        return self._owner

    # -- loops ---------------------------------------------------------------------------------------------------------

    def _work(self, key: None, why: Why) -> Again | None:
        """Publish what there is to publish."""
        if (wanted := self._wanted) is None:
            return None
        is_new, self._attempted = wanted is not self._attempted, wanted
        if why is Why.ADDED and not is_new:
            if not self._worker.failures(None):  # else it has its pause
                self._worker.add(None, RETRY_SECONDS)  # slices are wiped one by one
            return UNTRIED
        before, published = self._published, self._attempt(wanted)
        if published.error is not None:
            self._failed()
        with self._changed:
            self._published = published
            self._changed.notify_all()
        if published.error is not None:
            return FAILED
        return None if is_new or published.writes == before.writes else FAILED  # after a repair it is looked at again

    def _attempt(self, pools: Sequence[DevicePool]) -> PublishStatus:
        before = self._published
        try:
            published = self.publish(pools)
            if self._conflict:  # with another instance, most likely: look at what it did
                published = self.publish(pools)
        except ApiError as error:
            published = replace(before, writes=self._writes, error=str(error))
        except (KeyError, TypeError, ValueError) as error:
            text = f"unreadable answer of the API server: {type(error).__name__} {error}"
            published = replace(before, writes=self._writes, error=text)
        if published.error not in (None, before.error):
            log.error("ResourceSlices of node %s: %s", self._node, published.error)
        if published.problems != before.problems:
            for problem in published.problems:
                log.warning("%s", problem)
        if published.writes != before.writes:
            log.info("ResourceSlices of node %s: %d, %d writes", self._node, published.slices, published.writes)
        return published

    def _watch(self, stop: threading.Event) -> None:
        """Look whether the slices are still what we wrote. Ends when the server lets go of the watch."""
        version = ""

        def watch() -> float | None:
            nonlocal version
            try:
                if not version:
                    listed = self._client.get(SLICES, self._selector())
                    version = listed["metadata"]["resourceVersion"]
                    self._worker.add(None)
                for event in self._client.watch(SLICES, self._selector(), version, stop):
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK" and self._is_foreign(event):
                        self._worker.add(None)
                if time.monotonic() >= self._ask_features_at:
                    self._worker.add(None)
            except (ApiError, KeyError, TypeError, ValueError) as error:
                log.debug("watching slices: %s", error)
                version = ""
                self._ask_features_at = 0.0  # a server that was started anew may have others
                return None
            return 0.0

        repeat(stop, watch, RETRY_SECONDS, "cannot watch the ResourceSlices")

    def _is_foreign(self, event: Object) -> bool:
        """Whether it is not the echo of what we wrote. While we write, it is looked at again afterwards."""
        content = event["object"]
        written = self._written.get(content["metadata"]["name"])
        uid, version = _version(content)
        if event["type"] == "DELETED":
            return written is not None and written[0] == uid
        return written is None or written[0] != uid or written[1] < version

    def _selector(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._node},spec.driver={self._driver}"}


def _version(content: Object) -> tuple[str, int]:
    return content["metadata"]["uid"], int(content["metadata"]["resourceVersion"])


def _is_same_spec(spec: Object, header: Object, content: Object) -> bool:
    """Whether a stored slice says this; when a taint was added is the server's to say."""
    stored = {key: value for key, value in spec.items() if key not in ("driver", "nodeName", "pool")}
    if "devices" in stored:
        stored["devices"] = [_without_times(device) for device in stored["devices"]]
    return spec["pool"] == header and stored == content


def _without_times(device: Object) -> Object:
    if "taints" not in device:
        return device
    taints = [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in device["taints"]]
    return {**device, "taints": taints}


def _with_old_times(spec: Object, old: Object) -> None:
    """A taint that stays keeps the time since when it is there."""
    times = {
        (device["name"], taint["key"], taint.get("value")): taint["timeAdded"]
        for device in old.get("devices", [])
        for taint in device.get("taints", [])
        if "timeAdded" in taint
    }
    if not times or "devices" not in spec:
        return

    def timed(device: Object, taint: Object) -> Object:
        added = times.get((device["name"], taint["key"], taint.get("value")))
        return taint if added is None else {**taint, "timeAdded": added}

    spec["devices"] = [
        {**device, "taints": [timed(device, taint) for taint in device["taints"]]} if "taints" in device else device
        for device in spec["devices"]
    ]


@dataclass(frozen=True, slots=True)
class PoolNames:
    """The names under which the pools of a node are published: they tell who allocates their devices."""

    aside: bool = False
    """The devices are set aside for devalloc's controller."""
    held: Callable[[], Iterable[str]] = tuple
    """The pools of what is prepared, as its claims call them."""

    def named(self, pools: Iterable[DevicePool]) -> list[DevicePool]:
        """The pools by these names."""
        held = frozenset(self.held())
        return [self._named(pool, held) for pool in pools]

    def _named(self, pool: DevicePool, held: frozenset[str]) -> DevicePool:
        """As long as something of a pool is prepared it has the name by which claims hold it: only what is free changes
        hands (T1)."""
        free, theirs = pool.metadata.name, dedicated_pool_name(pool.metadata.name)
        wanted, other = (theirs, free) if self.aside else (free, theirs)
        name = other if other in held else wanted
        return pool.model_copy(update={"metadata": pool.metadata.model_copy(update={"name": name})})


class NodeSlices:
    """Loops to be run in threads of their own, and a rescan."""

    def __init__(
        self,
        client: Client,
        driver: str,
        node: str,
        discover: Callable[[], Discovery],
        events: EventSource,
        *,
        resync: float = 60.0,
        failed: Callable[[], None] = lambda: None,
        names: PoolNames | None = None,
    ) -> None:
        """``resync``: seconds between looks at the devices without any event. ``failed``: called for each look or
        publication that failed."""
        self._names = names or PoolNames()
        self.publisher = SlicePublisher(client, driver, node, failed=failed)
        settings = WatchSettings(resync=resync)
        self._watcher = InventoryWatcher(discover, self._publish, source=events, settings=settings, failed=failed)

    @property
    def loops(self) -> tuple[Callable[[threading.Event], None], ...]:
        return self._watcher.run, *self.publisher.loops

    def rescan(self) -> None:
        """Look at the devices now and publish them. From any thread or signal handler."""
        self._watcher.rescan(republish=True)

    def _publish(self, discovery: Discovery) -> None:
        faults = errors(discovery.problems)
        if faults and not discovery.pools:
            # A host that cannot be read is not a host without devices.
            raise RuntimeError(f"found no devices, and left the published slices as they are: {faults[0]}")
        self.publisher.set(self._names.named(discovery.pools))
