"""The fleet at a glance: nodes, cards and their parts, who holds what, which claims wait and why. Pure.

``devalloc top`` and the page both show what this package computes, so they cannot differ. The number of available
devices comes from ``devalloc.controller.reconcile.availability``, as ``DevicePool.status.availableDevices`` does.

- ``model``: what an overview consists of, in bounded, printable texts
- ``pools``: cards of the two dialects (T1)
- ``nodes``: the state of each node
- ``claims``, ``alarms``: claims, machines and quotas; what is wrong
- ``picture``: racks of nodes, and cards as bars of their parts
- ``cache``: the overview of a store, computed again when something changed
- ``fleet_monitor``: the overview that a controller has, again and again; ``metrics``: what Prometheus gets of it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from devalloc.api import meta
from devalloc.api.adopted_pools import adopted_drivers
from devalloc.api.cordon import (
    FENCED,
    NODE_CORDONED,
    apply_all_cordons,
    is_cordon_reason,
    unknown_nodes,
    unschedulable_nodes,
)
from devalloc.api.decode import decode
from devalloc.api.dedicated_pools import is_dedicated, namespaces_for_devalloc, with_namespace_default
from devalloc.api.kinds import API_KINDS
from devalloc.api.serving import as_served, unserved_with_objects
from devalloc.api.views import ClaimView, device_claims_in
from devalloc.controller.reconcile.availability import CountedPool, FleetCounts, count_fleet
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.machines.schedule.machines import virtual_machines_in
from devalloc.machines.schedule.requester import requesters
from devalloc.store import Object
from devalloc.usage.overview import alarms, claims, pools
from devalloc.usage.overview.claims import summarize_quotas
from devalloc.usage.overview.model import (
    MAX_TEXT,
    STATES,
    UNREADABLE,
    Alarm,
    AmountTexts,
    CardSummary,
    CardSupply,
    ClaimSummary,
    DeviceCounts,
    DeviceHolder,
    DeviceSummary,
    MachineSummary,
    NodeStatus,
    NodeSummary,
    Overview,
    QuotaSummary,
    short_annotation,
    shorten,
)
from devalloc.usage.overview.nodes import node_statuses
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.problem.ordering import natural_key

__all__ = [
    "MAX_TEXT",
    "STATES",
    "UNREADABLE",
    "Alarm",
    "AmountTexts",
    "CardSummary",
    "CardSupply",
    "ClaimSummary",
    "DeviceCounts",
    "DeviceHolder",
    "DeviceSummary",
    "MachineSummary",
    "NodeStatus",
    "NodeSummary",
    "Overview",
    "QuotaSummary",
    "build_overview",
    "in_namespace",
    "node_statuses",
]


@gc_paused()
def build_overview(
    documents: Iterable[Object],
    notes: Sequence[str] = (),
    memo: Memo | None = None,
    unserved: Mapping[str, str] = MappingProxyType({}),
    unanswered: str = "",
) -> Overview:
    """Of all objects that there are. Never raises for their content. ``notes``: what could not be read, and why.
    ``made``: what earlier overviews made of objects that have not changed since. ``unserved``: nodes whose plugin has
    ended, and that as a sentence. ``unanswered``: why devalloc's controller answers no ResourceClaims."""
    memo = memo or Memo()
    documents = [as_served(doc, lambda node: unserved.get(node, "")) for doc in documents] if unserved else [*documents]
    closed = unschedulable_nodes(documents)
    docs = apply_all_cordons(documents)
    counted = count_fleet(docs, memo, requesters())
    users = claims.machine_of_claims(docs)
    holders = pools.device_holders(counted, users)
    by_node: dict[str, list[CardSummary]] = defaultdict(list)
    cordoned: dict[str, str] = {}
    for one in sorted(counted.pools, key=lambda one: natural_key(one.pool.metadata.name)):
        name = one.pool.spec.node_name or ""
        by_node[name].append(pools.pool_card(one, holders))
        cordoned[name] = cordoned.get(name) or _cordoned(one)
    used, rules = pools.slice_device_uses(docs), pools.taint_rules(docs)
    published = pools.slice_pools(docs)
    for pool in published:
        why = closed.get(pool.node, "")  # taints and conditions of a Node are for pods to tolerate
        by_node[shorten(pool.node)].append(
            pools.slice_card(pool, used, rules, NODE_CORDONED if is_cordon_reason(why) else "")
        )
    whys = {name: "; ".join(filter(None, [cordoned.get(name), shorten(closed.get(name, ""))])) for name in by_node}
    nodes = tuple(_node(name, by_node[name], whys[name]) for name in sorted(by_node, key=natural_key))
    chosen = namespaces_for_devalloc(docs)
    theirs = [with_namespace_default(doc, chosen) for doc in claims.resource_claims_in(docs)]
    reasons = claims.last_reasons(docs)
    listed = [claims.summarize_device_claim(doc, users) for doc in device_claims_in(docs)]
    sizes = [(is_dedicated(pool.name), len(pool.devices)) for pool in published if pool.driver == claims.DRIVER]
    adopted = adopted_drivers(doc for doc in docs if doc["kind"] == "DeviceTaintRule")
    aside = claims.dedicated_note(
        sum(n for is_kept, n in sizes if is_kept), sum(n for _, n in sizes), [*map(shorten, adopted)]
    )
    is_lost = pools.loss_finder(published)
    listed += [claims.summarize_resource_claim(doc, reasons, aside, is_lost, unanswered) for doc in theirs]
    bounds, is_said = summarize_quotas(docs)
    return Overview(
        nodes=nodes,
        claims=tuple(sorted(listed, key=claims.claim_order)),
        machines=tuple(
            sorted(
                map(claims.summarize_machine, virtual_machines_in(docs)),
                key=lambda m: (m.namespace, natural_key(m.name)),
            )
        ),
        quotas=tuple(bounds),
        classes=sum(doc["kind"] == "DeviceClass" for doc in docs),
        problems=tuple(_problems(docs, counted, memo)),
        notes=tuple(map(shorten, notes)),
        counts=sum((node.counts for node in nodes), DeviceCounts()),
        cards=sum(node.card_count for node in nodes),
        pending=sum(claim.is_pending for claim in listed),
        allocated=sum(bool(ClaimView(doc).entries) for doc in device_claims_in(docs))
        + sum(map(claims.is_allocated, theirs)),
        is_settled=is_said and all(pools.reported_available(one) == len(one.available) for one in counted.pools),
        alarms=(*alarms.pool_alarms(counted), *alarms.slice_alarms(published, used)),
        lost=sum(len(claim.lost) for claim in listed),
        node_statuses=node_statuses(documents, unserved_with_objects(documents, lambda node: unserved.get(node, ""))),
    )


def in_namespace(whole: Overview, namespace: str) -> Overview:
    """Of claims, machines and quotas those of one namespace; nodes and cards are the cluster's."""
    selected = tuple(each for each in whole.claims if each.namespace == namespace)
    return replace(
        whole,
        claims=selected,
        machines=tuple(each for each in whole.machines if each.namespace == namespace),
        quotas=tuple(each for each in whole.quotas if each.namespace == namespace),
        pending=sum(claim.is_pending for claim in selected),
        allocated=sum(bool(claim.devices) for claim in selected),
        lost=sum(len(claim.lost) for claim in selected),
    )


def _node(name: str, cards: Sequence[CardSummary], cordoned: str) -> NodeSummary:
    counts = sum((card.counts for card in cards), DeviceCounts())
    rack = next((card.rack for card in cards if card.rack), "")
    dialects = tuple(dict.fromkeys(card.dialect for card in cards))
    return NodeSummary(name, cordoned, tuple(cards), counts, dialects, rack)


def _cordoned(one: CountedPool) -> str:
    fenced = short_annotation(one.manifest, meta.FENCED_NODE)
    return f"{FENCED}{fenced}" if fenced else short_annotation(one.manifest, meta.CORDONED_NODE)


def _problems(documents: Sequence[Object], counted: FleetCounts, memo: Memo) -> Iterable[str]:
    """One line for each object of ours that cannot be read, or is on no node."""
    readable = {id(one.manifest) for one in counted.pools}
    for doc in documents:
        if doc["kind"] in API_KINDS and id(doc) not in readable:
            problem = memo.of("problem", doc, partial(_problem, doc))
            if problem:
                yield problem
    for node, name in unknown_nodes(documents).items():
        yield shorten(f"DevicePool {name}: its node {node} is not a Node of the cluster")


def _problem(doc: Object) -> str:
    """Why an object cannot be read; "" if it can."""
    read = decode(doc)
    if read.object is not None:
        return ""
    metadata = doc["metadata"]
    name = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
    why = next((str(problem) for problem in read.problems if problem.is_error), "it cannot be read")
    return shorten(f"{doc['kind']} {name}: {why}")
