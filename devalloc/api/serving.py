"""Nodes whose plugin does not run, as people see them; and the Lease by which a plugin shows on a cluster that it runs.

Kubernetes says of a Node whether its kubelet runs. The plugin that runs machines is a service of its own, which can end
while the Node is Ready: so it renews a Lease, and lets go of it as it ends. Nothing is decided by these. What a node
last wrote of its machines stays in the store of one host, and only those who read for people see it otherwise; on a
cluster the controller writes on machines what such readers see (``devalloc.machines.unserved_machines``), as the node
lifecycle controller of Kubernetes does on pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from devalloc.api.conditions import LAST_READY, READY, find_condition, with_condition, without_conditions
from devalloc.api.cordon import pool_node
from devalloc.api.host_pool_names import node_of_host_pool
from devalloc.api.meta import PUBLISHED_BY, parse_time
from devalloc.api.reasons import Reason
from devalloc.api.views import ClaimView, MachineView, as_mapping

Object = dict[str, Any]

RENEW_SECONDS = 30.0
SILENT_SECONDS = 120
"""After which a plugin counts as ended: it may miss some renewals, and clocks of hosts differ."""
_PREFIX = "devalloc-node."


def lease_name(node: str) -> str:
    """The name of the Lease of a node's plugin."""
    return f"{_PREFIX}{node}"


def node_of_lease(lease: Mapping[str, Any]) -> str | None:
    """The node whose plugin renews a Lease; None if it is another Lease."""
    name = str(as_mapping(lease.get("metadata")).get("name") or "")
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else None


def node_lease(node: str, namespace: str, holder: str | None, now: datetime) -> Object:
    """The Lease as its plugin writes it. ``holder``: the process; None if it ends."""
    renewed = now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec: Object = {"renewTime": renewed, "leaseDurationSeconds": SILENT_SECONDS}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": lease_name(node), "namespace": namespace},
        "spec": spec if holder is None else {**spec, "holderIdentity": holder},
    }


def silence(lease: Mapping[str, Any], now: datetime) -> str:
    """Why a plugin counts as ended; empty if it runs, or if that cannot be told."""
    if (age := _age(lease, now)) is None:
        return ""
    spec = as_mapping(lease.get("spec"))
    when = f"{str(spec['renewTime'])[:19]}Z"
    if not spec.get("holderIdentity"):
        return f"it ended at {when}"
    return f"it has not reported since {when}" if age > SILENT_SECONDS else ""


def is_ahead(lease: Mapping[str, Any], now: datetime) -> bool:
    """Whether a Lease was renewed so far in the future that its time tells nothing: a clock is wrong."""
    age = _age(lease, now)
    return age is not None and age < -SILENT_SECONDS


def _age(lease: Mapping[str, Any], now: datetime) -> float | None:
    """Seconds since it was renewed; None if it does not say when."""
    try:
        return (now - parse_time(str(as_mapping(lease.get("spec")).get("renewTime") or ""))).total_seconds()
    except ValueError:
        return None


def unserved_text(node: str, why: str = "") -> str:
    """That no plugin serves a node, and what to do. ``why``: what is known of it on a cluster; "" for an embedded
    store."""
    if why:
        return f"no node plugin serves node {node} now ({why}): on that host, `systemctl restart devalloc-node`"
    return f"no node plugin serves node {node} now: start it again (`devalloc node`, `devalloc up`)"


_LIVE_PHASES = ("Pending", "Starting", "Running", "Paused", "Stopping")
SHOWN_FIELDS = ("phase", "reason", "message", "conditions")
"""Fields of a status that are shown otherwise than they are stored."""


def as_served(obj: Object, why_unserved: Callable[[str], str]) -> Object:
    """An object as people should see it: a machine of a node that no plugin serves is not known to run.
    ``why_unserved``: of a node, as ``unserved_text``; empty if it is served."""
    if obj.get("kind") != "VirtualMachine":
        return obj
    view = MachineView(obj)
    node, phase = view.holder, view.status.get("phase")
    if not node or phase not in _LIVE_PHASES or not (why := why_unserved(node)):
        return obj
    return {**obj, "status": unserved_status(view, why)}


_MAX_MESSAGE = 4096


def unserved_status(view: MachineView, why: str, now: str = "") -> Object:
    """The status of a machine of a node that no plugin serves: it may run or not. ``why``: as ``unserved_text``.
    ``now``: RFC 3339; "" if that is not known."""
    status, reason = dict(view.status), Reason.NODE_NOT_SERVED.value
    message = f"{why}; the machine was {status.get('phase')}"[:_MAX_MESSAGE]
    ready = view.condition(READY)
    if ready:
        at = now or str(ready.get("lastTransitionTime") or "")
        content = "Unknown", reason, message
        conditions = with_condition(status.get("conditions"), READY, content, at, view.metadata.get("generation"))
        if view.spec.get("guestReports") is True and not is_of_unserved(ready):
            conditions = [*without_conditions(conditions, [LAST_READY]), {**ready, "type": LAST_READY}]
        status["conditions"] = conditions
    return {**status, "phase": "Unknown", "reason": reason, "message": message}


def is_of_unserved(ready: Mapping[str, Any]) -> bool:
    """Whether a condition Ready is not its plugin's, but that of ``unserved_status``."""
    return ready.get("status") == "Unknown" and ready.get("reason") == Reason.NODE_NOT_SERVED.value


def served_conditions(conditions: object) -> list[Any]:
    """The conditions of a machine as they were before its node was served no more; without Ready where that is not
    known."""
    if not is_of_unserved(find_condition(conditions, READY)):
        return without_conditions(conditions, [LAST_READY])
    last = find_condition(conditions, LAST_READY)
    left = without_conditions(conditions, [READY, LAST_READY])
    return [*left, {**last, "type": READY}] if last else left


def held_nodes(obj: Object) -> list[str]:
    """The nodes that have prepared an object, or whose plugin has published what it has for machines."""
    if obj["kind"] == "DevicePool":
        is_ours = obj["metadata"].get("labels", {}).get(PUBLISHED_BY) is not None
        node = pool_node(obj) if is_ours and node_of_host_pool(obj) else None
    else:
        node = (MachineView if obj["kind"] == "VirtualMachine" else ClaimView)(obj).holder
    return [node] if node else []


HELD_KINDS = ("DevicePool", "DeviceClaim", "VirtualMachine")
"""Kinds whose objects can be on a node."""


def unserved_with_objects(objects: Iterable[Object], why_unserved: Callable[[str], str]) -> dict[str, str]:
    """The nodes that no plugin serves though they have prepared claims, machines, or capacity for machines, and that
    as a sentence."""
    nodes = sorted({node for obj in objects if obj["kind"] in HELD_KINDS for node in held_nodes(obj)})
    return {node: why for node in nodes if (why := why_unserved(node))}
