"""The fleet in numbers, for Prometheus."""

from __future__ import annotations

from collections import Counter as CountOf
from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from devalloc.api.cordon import is_cordon_reason
from devalloc.api.reasons import find_reason
from devalloc.controller.reconcile.searches import OTHER_NAMESPACES
from devalloc.usage.overview import STATES, Overview
from devalloc.usage.overview.cache import CachedOverview
from devalloc.usage.overview.model import Dialect, NodeState

MAX_NAMESPACES = 50
"""Values that have a label of their own; all others share one, which bounds the number of series."""
MAX_NODES, OTHER_NODES = 50, "(others)"
"""Lost nodes that have a label of their own, and the label of all others."""
UNKNOWN_REASON, UNANSWERED_REASON = "Other", "Unanswered"
"""Labels of a reason that is not in the table of ``Reason``, and of no reason yet."""
CORDONED = "cordoned"


class FleetCollector(Collector):
    """What the page shows, in numbers."""

    def __init__(
        self, ready: Callable[[], bool], leads: Callable[[], bool], seen: Callable[[], CachedOverview | None]
    ) -> None:
        """``ready``: whether /readyz says so. ``seen``: the fleet at the last look, while this process leads."""
        self._ready = ready
        self._leads = leads
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        """Of the last look; nothing but whether it is ready of one that does not lead."""
        yield GaugeMetricFamily("devalloc_ready", "1: /readyz answers 200.", value=float(self._ready()))
        seen = self._seen()
        if seen is None or not self._leads():
            return
        yield GaugeMetricFamily(
            "devalloc_seen_timestamp_seconds",
            "When the fleet was last read for these metrics.",
            value=seen.at.timestamp(),
        )
        owners = GaugeMetricFamily(
            "devalloc_devices_with_several_owners",
            "Devices that several claims hold but cannot share, or hold more of than exists. Alert on more than 0.",
            labels=["dialect"],
        )
        devices = GaugeMetricFamily(
            "devalloc_devices_by_state", "Devices of both dialects, each in one state.", labels=["dialect", "state"]
        )
        for dialect in get_args(Dialect):
            alarms = [alarm for alarm in seen.overview.alarms if alarm.dialect == dialect]
            owners.add_metric([dialect], len({device for alarm in alarms for device in alarm.devices}))
            for state, number in _states(seen.overview, dialect).items():
                devices.add_metric([dialect, state], number)
        gone = GaugeMetricFamily(
            "devalloc_lost_devices",
            "Devices that claims have and that no pool publishes any more. Alert on more than 0.",
            labels=["kind"],
        )
        for kind in ("DeviceClaim", "ResourceClaim"):
            gone.add_metric([kind], sum(len(claim.lost) for claim in seen.overview.claims if claim.kind == kind))
        yield owners
        yield devices
        yield gone
        lost = GaugeMetricFamily(
            "devalloc_lost_node_objects",
            "Machines and claims of a node whose kubelet does not report, and that is not fenced. The "
            f"{MAX_NODES} nodes with most have a label, the rest are {OTHER_NODES}.",
            labels=["node"],
        )
        unserved = GaugeMetricFamily(
            "devalloc_unserved_node_objects",
            "Machines and claims of a node whose plugin has ended, although its kubelet reports. The "
            f"{MAX_NODES} nodes with most have a label, the rest are {OTHER_NODES}.",
            labels=["node"],
        )
        by_state: tuple[tuple[NodeState, GaugeMetricFamily], ...] = (("Lost", lost), ("NotServed", unserved))
        for state, family in by_state:
            for node, number in _held_by_nodes(seen.overview, state).items():
                family.add_metric([node], number)
            yield family
        pending = GaugeMetricFamily(
            "devalloc_pending_claims",
            f"Claims without devices. The {MAX_NAMESPACES} namespaces with most have a label, "
            f"the rest are {OTHER_NAMESPACES}.",
            labels=["kind", "namespace", "reason"],
        )
        for labels, number in sorted(_pending(seen.overview).items()):
            pending.add_metric(labels, number)
        yield pending


def _states(overview: Overview, dialect: str) -> CountOf[str]:
    """Devices by state; ``cordoned`` are those that are unavailable for this reason."""
    counts: CountOf[str] = CountOf(dict.fromkeys((*STATES, CORDONED), 0))
    for card in (card for node in overview.nodes for card in node.cards if card.dialect == dialect):
        for device in card.devices:
            is_cordoned = device.state == "unavailable" and is_cordon_reason(device.why)
            counts[CORDONED if is_cordoned else device.state] += 1
    return counts


def _held_by_nodes(overview: Overview, state: NodeState) -> CountOf[str]:
    """Machines and claims by node that has a state: however many nodes have it, there are few labels."""
    held = {one.name: one.machines + one.claims for one in overview.node_statuses if one.state == state}
    counts = {name: number for name, number in held.items() if number}
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    named = CountOf(dict(ordered[:MAX_NODES]))
    if rest := sum(number for _, number in ordered[MAX_NODES:]):
        named[OTHER_NODES] = rest
    return named


def _pending(overview: Overview) -> CountOf[tuple[str, str, str]]:
    """By kind, namespace and reason: however many namespaces and reasons people make, there are few labels."""
    claims = [claim for claim in overview.claims if claim.is_pending]
    by_namespace = sorted(CountOf(claim.namespace for claim in claims).items(), key=lambda each: (-each[1], each[0]))
    named = {namespace for namespace, _ in by_namespace[:MAX_NAMESPACES]}
    return CountOf(
        (
            claim.kind,
            claim.namespace if claim.namespace in named else OTHER_NAMESPACES,
            (find_reason(claim.reason) or UNKNOWN_REASON) if claim.reason else UNANSWERED_REASON,
        )
        for claim in claims
    )
