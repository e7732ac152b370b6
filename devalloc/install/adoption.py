"""Adopting the devices of other drivers, and giving them back: what an admin does, and what there is to know first.

The controller does the rest (``devalloc.controller.reconcile.resource_claims.adoption``): it allocates once the rule is
safe, and lets a deleted rule go once it has stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.adopted_pools import (
    FINALIZER,
    MANAGED_BY,
    POLICY,
    RULES,
    AdoptionRule,
    adoption_rules,
    rights_manifests,
    rights_name,
    rule_manifest,
)
from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC, is_dedicated
from devalloc.api.views import as_mapping, as_mappings
from devalloc.install.apply import NotInstalled, get_or_none, wait_until
from devalloc.install.manifests import object_collection_path, object_path, object_title
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc_solver.dialects.resource_k8s.matching import MatchCounts
from devalloc_solver.dialects.resource_k8s.templates import claim_of_template

Object = dict[str, Any]
Say = Callable[[str], None]

_API = "/apis/resource.k8s.io/v1"
_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_NAMED = 5
"""How many objects a sentence names."""
_IMPLICIT_RESOURCE = "deviceclass.resource.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class ClusterClaims:
    """What a cluster has of resource.k8s.io, as far as adopting depends on it."""

    slices: Sequence[Object]
    claims: Sequence[Object]
    templates: Sequence[Object] = ()
    classes: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    chosen: frozenset[str] = frozenset()
    """Namespaces whose claims are devalloc's unless they say otherwise."""
    _counts: MatchCounts = field(default_factory=MatchCounts)

    def selects(self, claim: Object, slices: Sequence[Object]) -> bool:
        """Whether a claim selects a device of these slices."""
        self._counts.look((*slices, *self.classes))
        return bool(self._counts.matching(claim))

    def is_ours(self, claim: Object) -> bool:
        label = (claim["metadata"].get("labels") or {}).get(ALLOCATOR_KEY)
        return label == DEVALLOC or (label is None and claim["metadata"].get("namespace") in self.chosen)


@dataclass(frozen=True, slots=True)
class AdoptedUse:
    """What is used of the pools of a rule."""

    devices: int
    in_use: int
    by_namespace: dict[str, int]
    """Devices that claims hold."""
    pools: int
    nodes: int
    without_node: int
    """Devices that no single node has: they stay out."""


def check_installed(client: Client) -> None:
    """Raises NotInstalled if the cluster lacks what adopting needs."""
    if get_or_none(client, RULES, limit="1") is None:
        raise NotInstalled(
            "the cluster serves no DeviceTaintRules of resource.k8s.io/v1: adopting needs Kubernetes 1.37"
        )
    for path in (f"{_POLICIES}/{POLICY}", f"{_BINDINGS}/{POLICY}"):
        if get_or_none(client, path) is None:
            raise NotInstalled(
                f"the policy {POLICY} is not installed, and without it devices would be allocated twice: "
                "devalloc install --resource-claims --adoption"
            )


def read_claims(client: Client, *, with_pods: bool = True) -> ClusterClaims:
    """Raises NotInstalled."""

    def listed(path: str) -> list[Object]:
        try:
            return [one for page in client.list(path) for one in page["items"]]
        except ApiError as error:
            raise NotInstalled(f"cannot list {path.rpartition('/')[2]}: {error}") from None

    namespaces = listed("/api/v1/namespaces")
    chosen = (each for each in namespaces if (each["metadata"].get("labels") or {}).get(ALLOCATOR_KEY) == DEVALLOC)
    return ClusterClaims(
        slices=_of_kind("ResourceSlice", listed(f"{_API}/resourceslices")),
        claims=_of_kind("ResourceClaim", listed(f"{_API}/resourceclaims")),
        templates=_of_kind("ResourceClaimTemplate", listed(f"{_API}/resourceclaimtemplates")) if with_pods else (),
        classes=_of_kind("DeviceClass", listed(f"{_API}/deviceclasses")) if with_pods else (),
        pods=listed("/api/v1/pods") if with_pods else (),
        chosen=frozenset(each["metadata"]["name"] for each in chosen),
    )


def read_rules(client: Client) -> list[AdoptionRule]:
    """The rules that adopt. Raises NotInstalled."""
    answer = get_or_none(client, RULES, labelSelector="=".join(MANAGED_BY))
    return adoption_rules(answer["items"] if answer else ())


def find_use(there: ClusterClaims, driver: str, pool: str | None = None) -> AdoptedUse:
    """What claims hold of a driver, or of one pool of it."""
    slices = _slices_of(there, driver, pool)
    results = [
        (str(claim["metadata"]["namespace"]), (each["pool"], each["device"]))
        for claim in there.claims
        for each in _held(claim)
        if each["driver"] == driver and pool in (None, each["pool"])
    ]
    placed = [each["spec"] for each in slices if each["spec"].get("nodeName")]
    count = sum(len(spec.get("devices") or ()) for spec in placed)
    return AdoptedUse(
        devices=count,
        in_use=len({device for _, device in results}),
        by_namespace=dict(Counter(namespace for namespace, _ in results).most_common()),
        pools=len({spec["pool"]["name"] for spec in placed}),
        nodes=len({spec["nodeName"] for spec in placed}),
        without_node=sum(len(each["spec"].get("devices") or ()) for each in slices) - count,
    )


def check_target(there: ClusterClaims, driver: str, pools: Iterable[str]) -> None:
    """Raises NotInstalled if the driver publishes no such pools, or devalloc sets them aside by itself."""
    published = {each["spec"]["pool"]["name"] for each in there.slices if each["spec"]["driver"] == driver}
    drivers = sorted({each["spec"]["driver"] for each in there.slices})
    if not published:
        there_are = f"drivers here: {_named(drivers)}" if drivers else "no driver has published a ResourceSlice"
        raise NotInstalled(f"driver {driver} has published no ResourceSlice; {there_are}")
    for pool in pools:
        if pool not in published:
            raise NotInstalled(f"driver {driver} has no pool {pool}; its pools: {_named(sorted(published))}")
        if is_dedicated(pool):
            raise NotInstalled(f"pool {pool} is set aside for devalloc already, by its node")


def find_concerns(there: ClusterClaims, driver: str, pools: Sequence[str]) -> list[str]:
    """What will be other than before once kube-scheduler no longer allocates these pools, a sentence each."""
    slices = [one for pool in pools or (None,) for one in _slices_of(there, driver, pool)]
    claims = [one for one in there.claims if not there.is_ours(one) and there.selects(one, slices)]
    templates = [claim_of_template(one) for one in there.templates]
    templates = [one for one in templates if not there.is_ours(one) and there.selects(one, slices)]
    waiting = [one for one in claims if not (one.get("status") or {}).get("allocation")]
    concerns = []
    holding = [one for one in claims if any(each["driver"] == driver for each in _held(one))]
    if holding:
        keep = "keeps its devices" if len(holding) == 1 else "keep their devices"
        concerns.append(f"{_count(holding, 'claim')} of kube-scheduler {keep}: {_titles(holding)}")
    asking = [*(("claim", one) for one in waiting), *(("template", one) for one in templates)]
    groups: tuple[tuple[Callable[[Object], bool], str], ...] = (
        (
            lambda request: bool(request.get("adminAccess")) and not _tolerates(request),
            "has admin access without a toleration of devalloc.io/allocator, so it will wait: add the toleration",
        ),
        (
            lambda request: not request.get("adminAccess") and _tolerates(request),
            "tolerates the taint devalloc.io/allocator, so kube-scheduler will try in vain: label it, or limit the "
            "toleration",
        ),
        (
            lambda request: not request.get("adminAccess") and request.get("allocationMode") == "All",
            "asks for all devices without the label, so it will wait",
        ),
    )
    for applies, words in groups:
        if matching := [(kind, one) for kind, one in asking if any(map(applies, _requests(one)))]:
            concerns += [f"{kind} {_title(one)} {words}" for kind, one in matching[:_NAMED]]
            concerns += [f"{len(matching) - _NAMED} more like these"] if len(matching) > _NAMED else []
            asking = [pair for pair in asking if pair not in matching]
    asking = [(kind, one) for kind, one in asking if not all(each.get("adminAccess") for each in _requests(one))]
    if asking:
        them, their = ("it", "its") if len(asking) == 1 else ("them", "their")
        concerns.append(
            f"{_count(asking, 'claim or template', 'claims and templates')} without the label will wait: "
            f"{_titles([one for _, one in asking])}; label {them} devalloc.io/allocator=devalloc, or {their} namespace"
        )
    if extended := [pod for pod in there.pods if _asks_for_extended(pod, there, slices)]:
        ask = "asks" if len(extended) == 1 else "ask"
        concerns.append(
            f"{_count(extended, 'pod')} {ask} for an extended resource, which only kube-scheduler allocates, so new "
            f"ones will wait: {_titles(extended)}"
        )
    if outside := sum(find_use(there, driver, pool).without_node for pool in pools or (None,)):
        concerns.append(f"{outside} devices are of no single node: no allocator will give them while these are adopted")
    return concerns


def adopt(client: Client, driver: str, pools: Sequence[str], namespace: str, say: Say, *, dry_run: bool) -> None:
    """Write the right and the rules. ``pools``: none for all. Raises NotInstalled."""
    try:
        rules = [rule_manifest(driver, pool) for pool in pools or (None,)]
    except ValueError as error:
        raise NotInstalled(str(error)) from None
    there = {(rule.driver, rule.pool): rule for rule in read_rules(client)}
    for rule in rules:
        selector = rule["spec"]["deviceSelector"]
        before = there.get((driver, selector.get("pool")))
        if before is not None and before.is_ending:
            raise NotInstalled(f"{before.title} is being given back; try again when `devalloc adopt` shows it no more")
    for body in rights_manifests(driver, namespace):
        _create(client, object_collection_path(body), body, object_title(body), say, dry_run=dry_run)
    for body in rules:
        if (driver, body["spec"]["deviceSelector"].get("pool")) in there:
            say(f"{object_title(body)} unchanged")
        else:
            _create(client, RULES, body, object_title(body), say, dry_run=dry_run)


def unadopt(client: Client, rules: Iterable[AdoptionRule], say: Say, *, dry_run: bool, force: bool) -> None:
    """Delete rules; the controller lets them go. ``force``: do not wait for it. Raises NotInstalled."""
    for rule in rules:
        path = f"{RULES}/{rule.name}"
        what = f"devicetaintrule.resource.k8s.io/{rule.name}"
        if dry_run:
            say(f"{what} deleted (dry run)")
            continue
        try:
            client.delete(path, rule.uid)
            if force and (left := get_or_none(client, path)) is not None:
                finalizers = [one for one in left["metadata"].get("finalizers") or () if one != FINALIZER]
                client.replace(path, {**left, "metadata": {**left["metadata"], "finalizers": finalizers}})
        except ApiError as error:
            if not error.is_not_found:
                raise NotInstalled(f"cannot delete {what}: {error}") from None
        say(f"{what} deleted")


def remove_rights(client: Client, driver: str) -> None:
    """Take away the right to allocate devices of a driver, unless something of it is adopted. Raises NotInstalled."""
    if any(rule.driver == driver for rule in read_rules(client)):
        return
    for body in rights_manifests(driver, "any"):
        if (stored := get_or_none(client, object_path(body))) is not None:
            with suppress(ApiError):
                client.delete(object_path(body), stored["metadata"]["uid"])


def wait_for_rules(
    client: Client, names: Iterable[str], until: float, is_done: Callable[[AdoptionRule | None], bool]
) -> list[AdoptionRule]:
    """Wait until it is done for the rules of these names, each None once it is gone; the rules that are late. Raises
    NotInstalled."""
    names, late = list(names), list[AdoptionRule]()

    def are_done() -> bool:
        there = {rule.name: rule for rule in read_rules(client)}
        late[:] = [there[name] for name in names if name in there and not is_done(there[name])]
        return all(is_done(there.get(name)) for name in names)

    wait_until(are_done, until)
    return late


def rights_of_drivers(client: Client) -> Iterator[Object]:
    """The roles and bindings that ``adopt`` wrote. Raises NotInstalled."""
    prefix = rights_name("")
    for body in rights_manifests("any", "any"):
        answer = get_or_none(client, object_collection_path(body), labelSelector="=".join(MANAGED_BY))
        for one in answer["items"] if answer else ():
            if one["metadata"]["name"].startswith(prefix):
                yield {"apiVersion": body["apiVersion"], "kind": body["kind"], **one}


def deadline(timeout: float) -> float:
    """On the monotonic clock."""
    return time.monotonic() + timeout


def _create(client: Client, path: str, body: Object, what: str, say: Say, *, dry_run: bool) -> None:
    suffix = " (dry run)" if dry_run else ""
    try:
        client.create(path, body, {"dryRun": "All"} if dry_run else None)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            hint = "; adopting needs cluster administrator rights" if error.status == 403 else ""
            raise NotInstalled(f"cannot create {what}: {error}{hint}") from None
        say(f"{what} unchanged{suffix}")
        return
    say(f"{what} created{suffix}")


def _of_kind(kind: str, items: Iterable[Object]) -> list[Object]:
    """Items of a list have no kind of their own."""
    return [{"apiVersion": "resource.k8s.io/v1", **one, "kind": kind} for one in items]


def _slices_of(there: ClusterClaims, driver: str, pool: str | None) -> list[Object]:
    return [
        one
        for one in there.slices
        if one["spec"]["driver"] == driver
        and pool in (None, one["spec"]["pool"]["name"])
        and not is_dedicated(one["spec"]["pool"]["name"])
    ]


def _held(claim: Object) -> Iterator[Object]:
    """The devices that a claim has, and does not only look at."""
    allocation = as_mapping(as_mapping(claim.get("status")).get("allocation"))
    for each in as_mappings(as_mapping(allocation.get("devices")).get("results")):
        if not each.get("adminAccess"):
            yield dict(each)


def _requests(claim: Object) -> Iterator[Object]:
    for each in as_mappings(as_mapping(as_mapping(claim.get("spec")).get("devices")).get("requests")):
        exactly = as_mapping(each.get("exactly"))
        yield from map(dict, [exactly] if exactly else as_mappings(each.get("firstAvailable")))


def _tolerates(request: Object) -> bool:
    """Whether a request tolerates the taint of rules that adopt."""
    return any(
        (not each.get("key") or each["key"] == ALLOCATOR_KEY)
        and each.get("effect") in (None, "", "NoSchedule")
        and (each.get("operator") == "Exists" or each.get("value") == DEVALLOC)
        for each in as_mappings(request.get("tolerations"))
    )


def _asks_for_extended(pod: Object, there: ClusterClaims, slices: Sequence[Object]) -> bool:
    containers = [*pod["spec"].get("containers", ()), *(pod["spec"].get("initContainers") or ())]
    names = {
        name
        for one in containers
        for name in as_mapping(as_mapping(one.get("resources")).get("requests"))
        if "/" in name
    }
    if not names:
        return False
    for one in there.classes:
        name = one["metadata"]["name"]
        if names & {one["spec"].get("extendedResourceName"), f"{_IMPLICIT_RESOURCE}{name}"}:
            request = {"name": "r", "exactly": {"deviceClassName": name, "allocationMode": "ExactCount", "count": 1}}
            claim = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": "r", "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            }
            if there.selects(claim, slices):
                return True
    return False


def _title(one: Object) -> str:
    return f"{one['metadata'].get('namespace') or 'default'}/{one['metadata']['name']}"


def _titles(objects: Sequence[Object]) -> str:
    return _named([_title(one) for one in objects])


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _count(objects: Sequence[Any], what: str, several: str = "") -> str:
    return f"1 {what}" if len(objects) == 1 else f"{len(objects)} {several or what + 's'}"
