"""The room of nodes for pods, counted as kube-scheduler counts it: CPU, memory, ephemeral storage, huge pages, extended
resources and the number of pods.

Source: ``PodRequests`` of k8s.io/component-helpers/resource, and kube-scheduler's plugin NodeResourcesFit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api.quantity import Quantity, QuantityError

Object = dict[str, Any]
Amounts = Mapping[str, int]
"""Amounts by resource, in nano units."""

PODS = "pods"
"""The resource that counts pods."""
_NANO = 10**9
_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Extended resources that kube-scheduler takes from the DeviceClass of that name."""
MAX_SHAPES = 10_000
"""Different requests of pods that are remembered; when there are more, all are forgotten."""
MAX_SETS = 1000
"""Sets of nodes that are remembered for one round; when there are more, all are forgotten."""
_POD_LEVEL = ("cpu", "memory", "hugepages-")


@dataclass(frozen=True, slots=True)
class Shortage:
    """The first resource that a node lacks for a pod, in nano units."""

    resource: str
    free: int
    wanted: int

    def __str__(self) -> str:
        if self.resource == PODS:
            return "it runs as many pods as it may"
        free, wanted = map(Quantity.capped, (max(self.free, 0), self.wanted))
        return f"{self.resource} {free} free, {wanted} wanted"


def pod_requests(pod: Mapping[str, Any]) -> dict[str, int]:
    """Compute what a pod takes of its node, the pod itself included. While it is resized in place, that is the most of
    what it asks for, what its kubelet has promised, and what it has. An amount that does not parse counts as nothing:
    the API server accepts none."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    statuses = {
        each.get("name"): each
        for kind in ("initContainerStatuses", "containerStatuses")
        for each in status.get(kind) or ()
    }
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    infeasible = conditions.get("PodResizePending", {}).get("reason") == "Infeasible"

    def requested(container: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return (container.get("resources") or {}).get("requests")

    def promised(container: Mapping[str, Any]) -> Mapping[str, Any] | None:
        promise = (statuses.get(container.get("name")) or {}).get("allocatedResources")
        return promise if promise is not None or infeasible else requested(container)

    def actual(container: Mapping[str, Any]) -> Mapping[str, Any] | None:
        has = ((statuses.get(container.get("name")) or {}).get("resources") or {}).get("requests")
        return has if has is not None else promised(container)

    wanted = _sum_containers(spec, requested)
    granted = [_amounts(status.get("allocatedResources")), _amounts(requested(status))]
    by_pod = status.get("allocatedResources") is not None and requested(status) is not None
    sums = granted if by_pod else [_sum_containers(spec, promised), _sum_containers(spec, actual)]
    pod_wide = _amounts(requested(spec))
    if pod_wide and status.get("resources") is not None:
        pod_wide = _most(*granted) if infeasible else _most(pod_wide, *granted)
    if not infeasible:
        sums = [wanted, *sums]
    total: dict[str, int] = defaultdict(int, _most(*sums))
    total |= {name: amount for name, amount in pod_wide.items() if name.startswith(_POD_LEVEL)}
    _add(total, _amounts(spec.get("overhead")))
    total[PODS] = _NANO
    return {name: amount for name, amount in total.items() if amount > 0}


def _sum_containers(
    spec: Mapping[str, Any], requests: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
) -> dict[str, int]:
    """The most that containers take together: all that run on, or an init container beside the sidecars before it."""
    total: dict[str, int] = defaultdict(int)
    for container in spec.get("containers") or ():
        _add(total, _amounts(requests(container)))
    sidecars: dict[str, int] = defaultdict(int)
    starting: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        needs = _amounts(requests(container))
        if container.get("restartPolicy") == "Always":
            _add(total, needs)
            _add(sidecars, needs)
            needs = {}
        while_it_runs = defaultdict(int, sidecars)
        _add(while_it_runs, needs)
        starting = _most(starting, while_it_runs)
    return _most(total, starting)


def _most(*amounts: Amounts) -> dict[str, int]:
    names = set().union(*amounts)
    return {name: max(each.get(name, 0) for each in amounts) for name in names}


def _amounts(content: Mapping[str, Any] | None) -> dict[str, int]:
    amounts = {}
    for name, value in (content or {}).items():
        try:
            amounts[name] = Quantity.parse(value).nano
        except QuantityError:
            continue
    return amounts


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] += amount


class NodeRoom:
    """What is free on each node, and how often something of it came free. Not thread-safe.

    An update costs what changed: objects that are the very same as before are not read again.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Object] = {}
        self._allocatable: dict[str, dict[str, int]] = {}
        """Of nodes whose kubelet has reported something."""
        self._pods: dict[tuple[str, str], tuple[Object, str, dict[str, int]]] = {}
        """By namespace and name: the object, its node, and what it takes there."""
        self._used: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._shapes: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
        self._gains: dict[str, int] = defaultdict(int)
        self._names: frozenset[str] = frozenset()
        """Of resources that some node has."""
        self._by_class: frozenset[str] = frozenset()
        self.decisive: tuple[frozenset[str], frozenset[str]] = self._names, self._by_class
        """All that ``countable`` depends on, beside the requests."""
        self.edition = 0
        """Another one once ``ledger`` has other amounts."""

    def update(self, nodes: Iterable[Object], pods: Iterable[Object], classes: Iterable[Object]) -> None:
        """Read the objects as they are now. ``pods``: all that have not finished."""
        self._by_class = frozenset(
            name for each in classes if (name := (each.get("spec") or {}).get("extendedResourceName"))
        )
        self._update_nodes({content["metadata"]["name"]: content for content in nodes})
        if self.decisive != (self._names, self._by_class):
            self.decisive = self._names, self._by_class
            self.edition += 1
        there = {}
        for pod in pods:
            if (pod.get("spec") or {}).get("nodeName"):
                there[pod["metadata"]["namespace"], pod["metadata"]["name"]] = pod
        for key in [key for key in self._pods if key not in there]:
            self._leave(key)
        for key, pod in there.items():
            if (before := self._pods.get(key)) is None or before[0] is not pod:
                self._come(key, pod)

    def _update_nodes(self, nodes: dict[str, Object]) -> None:
        allocatable = dict(self._allocatable)
        for name in self._nodes.keys() - nodes.keys():
            self._allocatable.pop(name, None)
            self._gains[name] += 1
        for name, content in nodes.items():
            before = self._nodes.get(name)
            if before is content:
                continue
            if before is None or _decisive(before) != _decisive(content):
                self._gains[name] += 1
            reported = (content.get("status") or {}).get("allocatable")
            self._allocatable.pop(name, None)
            if reported:
                self._allocatable[name] = _amounts(reported)
        self._nodes = nodes
        if allocatable != self._allocatable:
            self.edition += 1
            self._names = frozenset[str]().union(*self._allocatable.values())

    def _leave(self, key: tuple[str, str]) -> None:
        _, node, taken = self._pods.pop(key)
        used = self._used[node]
        for name, amount in taken.items():
            used[name] -= amount
            if not used[name]:  # pods name resources as they like
                del used[name]
        if not used:
            del self._used[node]
        self._gains[node] += 1
        self.edition += 1

    def _come(self, key: tuple[str, str], pod: Object) -> None:
        node, taken = pod["spec"]["nodeName"], self._share(pod_requests(pod))
        if (before := self._pods.get(key)) is not None:
            if before[1:] == (node, taken):
                self._pods[key] = pod, node, taken
                return
            self._leave(key)
        self._pods[key] = pod, node, taken
        _add(self._used[node], taken)
        self.edition += 1

    def _share(self, taken: dict[str, int]) -> dict[str, int]:
        """An equal map: most pods take what others take."""
        if len(self._shapes) >= MAX_SHAPES:
            self._shapes.clear()
        return self._shapes.setdefault(tuple(sorted(taken.items())), taken)

    def countable(self, requests: Amounts) -> dict[str, int]:
        """What of a pod's requests decides where it fits: pods may name thousands of resources that no node has, of
        which one says as much as all."""
        lacking = (name for name in requests if name not in self._names and not _is_of_class(name, self._by_class))
        return {name: amount for name, amount in requests.items() if name in self._names} | {
            name: requests[name] for name in [min(lacking, default=PODS)] if name in requests
        }

    def gains(self, node: str) -> int:
        """A number that grows whenever a pod leaves the node, or the node itself changes."""
        return self._gains[node]

    def is_as_before(self, content: Object) -> bool:
        """Whether a Node, or a pod that has a node, differs from the last update in nothing that counts: kubelets
        report more than that all the time."""
        name = content["metadata"]["name"]
        if content["kind"] == "Node":
            node = self._nodes.get(name)
            return node is not None and _decisive(node) == _decisive(content)
        pod = self._pods.get((content["metadata"].get("namespace") or "", name))
        return pod is not None and pod[1:] == ((content.get("spec") or {}).get("nodeName"), pod_requests(content))

    def ledger(self) -> RoomLedger:
        """What is free now, to plan with."""
        return RoomLedger(self._allocatable, self._used, self._by_class)


class RoomLedger:
    """The free amounts of nodes, less what a plan has given away."""

    def __init__(
        self, allocatable: Mapping[str, Amounts], used: Mapping[str, Amounts], by_class: Collection[str] = ()
    ) -> None:
        """``by_class``: extended resources that devices of a DeviceClass provide."""
        self._allocatable = allocatable
        self._used = used
        self._by_class = by_class
        self._planned: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    @property
    def planned(self) -> dict[str, Amounts]:
        """What the plan has given away so far."""
        return {node: {**amounts} for node, amounts in self._planned.items()}

    def shortage(self, node: str, requests: Amounts) -> Shortage | None:
        """What the node lacks for a pod; None if it has room, or has not reported yet what it has."""
        for name in sorted(requests):
            free = self.free(node, name)
            if free is not None and requests[name] > free:
                return Shortage(name, free, requests[name])
        return None

    def free(self, node: str, resource: str) -> int | None:
        """What is free of a resource; None if the node has not reported, or devices of a class provide it, which
        kube-scheduler allocates."""
        there = self._allocatable.get(node)
        if there is None or (resource not in there and _is_of_class(resource, self._by_class)):
            return None
        used, planned = self._used.get(node) or {}, self._planned.get(node) or {}
        return there.get(resource, 0) - used.get(resource, 0) - planned.get(resource, 0)

    def resources(self, nodes: Iterable[str]) -> set[str]:
        """All that these nodes have some of: pods may name any others, which are not counted there."""
        return set[str]().union(*(self._allocatable.get(node) or () for node in nodes))

    def place(self, node: str, requests: Amounts) -> Shortage | None:
        """Plan a pod on the node, unless it lacks room."""
        if (lacks := self.shortage(node, requests)) is None:
            _add(self._planned[node], requests)
        return lacks

    def fitting(self, node: str, pods: Sequence[Amounts]) -> list[int]:
        """The places in ``pods`` of those that fit on the node together, if the first come first."""
        trial = RoomLedger(self._allocatable, self._used, self._by_class)
        _add(trial._planned[node], self._planned.get(node) or {})
        return [place for place, requests in enumerate(pods) if trial.place(node, requests) is None]


class NodesByRoom:
    """Which nodes have room for something, looked up by each resource: pods may have thousands of different sizes.

    The ledger must not change meanwhile.
    """

    def __init__(self, ledger: RoomLedger, nodes: Collection[str]) -> None:
        self._ledger = ledger
        self._nodes = frozenset(nodes)
        self._sorted: dict[str, tuple[list[int], list[str], frozenset[str]]] = {}
        """By resource: free amounts in order, their nodes, and the nodes without a limit."""
        self._with: dict[tuple[str, int], frozenset[str]] = {}
        """Nodes that have what a resource's so-manieth node has, or more."""

    def having(self, requests: Amounts) -> frozenset[str]:
        """The nodes that have room for these."""
        return self._nodes.intersection(*(self._having(*each) for each in requests.items()))

    def _having(self, resource: str, amount: int) -> frozenset[str]:
        if resource not in self._sorted:
            free = {node: self._ledger.free(node, resource) for node in self._nodes}
            limited = sorted((amount, node) for node, amount in free.items() if amount is not None)
            unlimited = frozenset(node for node, amount in free.items() if amount is None)
            self._sorted[resource] = [amount for amount, _ in limited], [node for _, node in limited], unlimited
        amounts, nodes, unlimited = self._sorted[resource]
        place = resource, bisect_left(amounts, amount)
        if place not in self._with:
            if len(self._with) >= MAX_SETS:
                self._with.clear()
            self._with[place] = unlimited.union(nodes[place[1] :])
        return self._with[place]


def _is_of_class(resource: str, by_class: Collection[str]) -> bool:
    """Whether devices of a class provide it, which kube-scheduler allocates."""
    return resource in by_class or resource.startswith(_CLASS_PREFIX)


def _decisive(node: Object) -> tuple[Any, ...]:
    """All of a node that may let a pod run there that could not before."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = [each.get("status") for each in status.get("conditions") or () if each.get("type") == "Ready"]
    labels = node["metadata"].get("labels")
    return labels, spec.get("taints"), spec.get("unschedulable"), status.get("allocatable"), ready
