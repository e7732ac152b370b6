"""The fleet at a glance: nodes, their cards and what these are cut into, who holds what, who waits and why. Pure.

What is shown to people (``devalloc top``, the page) is made here, so that they cannot differ. What is available of a
DevicePool and who holds it is told by ``availability``, as ``DevicePool.status.availableDevices`` is. ``facts`` is what
an overview consists of; ``pools`` and ``slices`` make cards of the two dialects (T1), ``claims``, ``machines`` and
``quotas`` the rest of it, in ``words`` that can be printed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from devalloc.api import meta
from devalloc.api.aside import is_aside
from devalloc.api.cordon import NODE_CORDONED, closed_nodes, is_cordon, unknown_nodes, with_all_cordons
from devalloc.api.decode import decode
from devalloc.api.kinds import KINDS
from devalloc.controller.availability import Counted, CountedPool, count
from devalloc.controller.claims import allocations, claims_among
from devalloc.controller.overview import alarms, claims, machines, pools, slices
from devalloc.controller.overview.facts import (
    STATES,
    Alarm,
    Amounts,
    Card,
    Claim,
    Counts,
    Device,
    Holder,
    Machine,
    Node,
    Overview,
    Quota,
    Supply,
)
from devalloc.controller.overview.quotas import quotas
from devalloc.controller.overview.words import MAX_TEXT, UNREADABLE, annotation, short
from devalloc.controller.placing.machines import machines_among
from devalloc.controller.reading import Made
from devalloc.store import Object
from devalloc_solver.collector import quiet_collector
from devalloc_solver.naming import natural

__all__ = [
    "MAX_TEXT",
    "STATES",
    "UNREADABLE",
    "Alarm",
    "Amounts",
    "Card",
    "Claim",
    "Counts",
    "Device",
    "Holder",
    "Machine",
    "Node",
    "Overview",
    "Quota",
    "Supply",
    "overview",
    "within",
]


@quiet_collector()
def overview(documents: Iterable[Object], notes: Sequence[str] = (), made: Made | None = None) -> Overview:
    """Of all objects that there are. Never raises for their content. ``notes``: what could not be read, and why.
    ``made``: what earlier overviews made of objects that have not changed since."""
    made = made or Made()
    documents = list(documents)
    closed = closed_nodes(documents)
    docs = with_all_cordons(documents)
    counted = count(docs, made)
    users = machines.users(docs)
    holders = pools.holders(counted, users)
    by_node: dict[str, list[Card]] = defaultdict(list)
    cordoned: dict[str, str] = {}
    for one in sorted(counted.pools, key=lambda one: natural(one.pool.metadata.name)):
        name = one.pool.spec.node_name or ""
        by_node[name].append(pools.card(one, holders))
        cordoned[name] = cordoned.get(name) or _cordoned(one)
    used, rules = slices.uses(docs), slices.rules_among(docs)
    published = slices.pools(docs)
    for pool in published:
        why = closed.get(pool.node, "")  # taints and conditions of a Node are for pods to tolerate
        by_node[short(pool.node)].append(slices.card(pool, used, rules, NODE_CORDONED if is_cordon(why) else ""))
    whys = {name: "; ".join(filter(None, [cordoned.get(name), short(closed.get(name, ""))])) for name in by_node}
    nodes = tuple(_node(name, by_node[name], whys[name]) for name in sorted(by_node, key=natural))
    theirs, told = claims.resource_claims_among(docs), claims.reasons(docs)
    found = [claims.device_claim(doc, users) for doc in claims_among(docs)]
    sizes = [(is_aside(pool.name), len(pool.devices)) for pool in published if pool.driver == claims.DRIVER]
    aside = claims.set_aside(sum(n for is_kept, n in sizes if is_kept), sum(n for _, n in sizes))
    found += [claims.resource_claim(doc, told, aside) for doc in theirs]
    bounds, is_said = quotas(docs)
    return Overview(
        nodes=nodes,
        claims=tuple(sorted(found, key=claims.order)),
        machines=tuple(
            sorted(map(machines.machine, machines_among(docs)), key=lambda m: (m.namespace, natural(m.name)))
        ),
        quotas=tuple(bounds),
        classes=sum(doc["kind"] == "DeviceClass" for doc in docs),
        problems=tuple(_problems(docs, counted, made)),
        notes=tuple(map(short, notes)),
        counts=sum((node.counts for node in nodes), Counts()),
        cards=sum(len(node.cards) for node in nodes),
        pending=sum(claim.is_pending for claim in found),
        allocated=sum(bool(allocations(doc)) for doc in claims_among(docs)) + sum(map(claims.is_allocated, theirs)),
        is_settled=is_said and all(pools.status_says(one) == len(one.available) for one in counted.pools),
        alarms=(*alarms.of_pools(counted), *alarms.of_slices(published, used)),
    )


def within(whole: Overview, namespace: str) -> Overview:
    """Of claims, machines and quotas those of one namespace; nodes and cards are the cluster's."""
    found = tuple(each for each in whole.claims if each.namespace == namespace)
    return replace(
        whole,
        claims=found,
        machines=tuple(each for each in whole.machines if each.namespace == namespace),
        quotas=tuple(each for each in whole.quotas if each.namespace == namespace),
        pending=sum(claim.is_pending for claim in found),
        allocated=sum(bool(claim.devices) for claim in found),
    )


def _node(name: str, cards: Sequence[Card], cordoned: str) -> Node:
    counts = sum((card.counts for card in cards), Counts())
    return Node(name, cordoned, tuple(cards), counts, tuple(dict.fromkeys(card.dialect for card in cards)))


def _cordoned(one: CountedPool) -> str:
    return annotation(one.manifest, meta.CORDONED_NODE)


def _problems(documents: Sequence[Object], counted: Counted, made: Made) -> Iterable[str]:
    """One line for each object of ours that cannot be read, or is on no node."""
    readable = {id(one.manifest) for one in counted.pools}
    for doc in documents:
        if doc["kind"] in KINDS and id(doc) not in readable:
            problem = made.of("problem", doc, partial(_problem, doc))
            if problem:
                yield problem
    for node, name in unknown_nodes(documents).items():
        yield short(f"DevicePool {name}: its node {node} is no Node of the cluster")


def _problem(doc: Object) -> str:
    """Why an object cannot be read; "" if it can."""
    read = decode(doc)
    if read.object is not None:
        return ""
    metadata = doc["metadata"]
    name = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
    why = next((str(problem) for problem in read.problems if problem.is_error), "it cannot be read")
    return short(f"{doc['kind']} {name}: {why}")
