"""Removing devalloc from a cluster completely: first release the devices, while the node plugins still run, then stop
the pods, then delete everything else. Before that it checks which objects hold devices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from devalloc.api import meta
from devalloc.api.adopted_pools import POLICY
from devalloc.api.kinds import ALLOCATABLE_KINDS, API_KINDS
from devalloc.api.meta import PUBLISH as PUBLISH_LABEL
from devalloc.install.adoption import read_rules, rights_of_drivers, unadopt
from devalloc.install.apply import (
    DRY_RUN,
    NotInstalled,
    Say,
    delete_object,
    delete_path,
    get_or_none,
    installed_objects,
    refuse_elsewhere,
    refuse_uninstall_of_helm,
    wait_until,
)
from devalloc.install.manifests import (
    DRIVER,
    PUBLISH,
    Object,
    every_option,
    object_path,
    object_title,
    render_manifests,
)
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client

CLAIMS_PATH = "/apis/resource.k8s.io/v1/resourceclaims"
"""Kinds for which nodes set a finalizer, in the order in which to delete them."""


@dataclass(frozen=True, slots=True)
class HoldingObject:
    """An object that has devices of devalloc."""

    kind: str
    title: str
    """Its name in messages, with its node or pods."""
    node: str | None
    """None if the node is unknown."""
    is_prepared: bool
    """Whether a node has prepared its devices and must release them; otherwise they are only allocated."""


def holding_objects(client: Client) -> Iterator[HoldingObject]:
    """All holders, of both dialects. Raises NotInstalled."""
    for name in reversed(ALLOCATABLE_KINDS):
        kind = API_KINDS[name]
        for one in list_objects(client, f"/apis/{kind.api_version}/{kind.plural}"):
            is_prepared = meta.NODE_FINALIZER in one["metadata"].get("finalizers", ())
            status: dict[str, Any] = one.get("status") or {}
            if is_prepared or status.get("allocations") or status.get("nodeName"):
                yield HoldingObject(name, f"{kind.singular} {describe_location(one)}", _node(one), is_prepared)
    for one in list_objects(client, CLAIMS_PATH):
        allocation = (one.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        if any(result["driver"] == DRIVER for result in results):
            users = [user["name"] for user in one["status"].get("reservedFor") or ()]
            title = f"resourceclaim {one['metadata']['namespace']}/{one['metadata']['name']}"
            label = f"{title} of pod {', '.join(users)}" if users else title
            yield HoldingObject("ResourceClaim", label, _selected(allocation), bool(users))


MOST_NAMES = 5
"""How many objects a sentence names."""


def format_names(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def list_objects(client: Client, path: str, **params: str) -> Iterator[Object]:
    """Objects of a collection; none if their kind is not served. Raises NotInstalled."""
    answer = get_or_none(client, path, **params)
    yield from answer["items"] if answer else ()


def describe_location(one: Object) -> str:
    """Its namespace and name, and the node that prepared it."""
    metadata = one["metadata"]
    node = metadata.get("annotations", {}).get(meta.PREPARED_ON)
    return f"{metadata['namespace']}/{metadata['name']}" + (f" on node {node}" if node else "")


def _node(one: Object) -> str | None:
    annotations = one["metadata"].get("annotations", {})
    named = (
        annotations.get(meta.PREPARED_ON),
        (one.get("status") or {}).get("nodeName"),
        annotations.get(meta.ALLOCATED_NODE),
    )
    return next(filter(None, named), None)


def _selected(allocation: Object) -> str | None:
    """The only node for which an allocation of resource.k8s.io is."""
    for term in (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field["key"] == "metadata.name" and len(field.get("values") or ()) == 1:
                return str(field["values"][0])
    return None


_WORKLOAD_KINDS = ("DaemonSet", "Deployment")
_KEPT_KINDS = ("CustomResourceDefinition",)
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
FORCE_SECONDS = 5.0
"""How long to wait for nodes if devices need not be released, in seconds."""
WAKE_SECONDS = 3.0
"""Seconds after which to touch a CRD that does not disappear."""


def uninstall(
    client: Client, namespace: str, say: Say, until: float, *, crds: bool, force: bool, dry_run: bool = False
) -> list[str]:
    """Delete what was installed in this namespace, and its cluster-scoped objects, however it was installed. Returns
    sentences: how much was deleted, and what stays and how to delete it.

    ``crds``: also delete the CRDs, and with them every claim, machine, pool and class. ``force``: even if devices are
    prepared; they stay so on their nodes. ``dry_run``: only report what would be deleted. Raises NotInstalled; if
    something that would stay is in use, or a Helm release owns it, nothing is deleted. A second call continues.
    """
    number = 0

    def count(line: str) -> None:
        nonlocal number
        number += line.removesuffix(DRY_RUN).endswith(" deleted")
        say(line)

    stays = _delete_installed(client, namespace, count, until, crds=crds, force=force, dry_run=dry_run)
    done = f"{number} objects {'would be deleted' if dry_run else 'deleted'}"
    return [
        done if number else "devalloc is not installed on this cluster; nothing to delete",
        *([_CRDS_STAY] if any(one["kind"] in _KEPT_KINDS for one in stays) else []),
        *([_POLICY_STAYS] if any(one["metadata"]["name"] == POLICY for one in stays) else []),
        *_marked_nodes(client),
    ]


def _delete_installed(
    client: Client, namespace: str, say: Say, until: float, *, crds: bool, force: bool, dry_run: bool
) -> list[Object]:
    """As ``uninstall``. Returns the installed objects that stay."""
    refuse_elsewhere(client, namespace)
    there = list(_objects_to_remove(client, namespace))
    refuse_uninstall_of_helm(client, there)
    _refuse_in_use(client, say, crds=crds, force=force)
    if adopted := read_rules(client):
        names = format_names(sorted({f"driver/{rule.driver}" for rule in adopted}))
        if not force:
            raise NotInstalled(
                f"{names} adopted, and without the controller these devices would not be allocated: devalloc unadopt "
                "each first, or use --force"
            )
        unadopt(client, adopted, say, dry_run=dry_run, force=True)
    for one in rights_of_drivers(client):
        delete_object(client, one, say, dry_run=dry_run)
    staying = [one for one in there if one["metadata"]["name"] == POLICY]
    there = [one for one in there if one not in staying]
    for one in staying:
        say(f"{object_title(one)} kept: it refuses nothing now, and API servers do not follow one that is made again")
    if crds:
        _delete_ours(client, say, until, force=force, dry_run=dry_run)
        if not (dry_run or force):  # pods may have requested devices meanwhile
            _refuse_in_use(client, say, crds=False, force=force)
    for one in there:
        if one["kind"] in _WORKLOAD_KINDS:
            delete_object(client, one, say, dry_run=dry_run)
    if not dry_run:
        _wait_for_pods(client, namespace, until)
    for one in list_objects(client, _SLICES, fieldSelector=f"spec.driver={DRIVER}"):
        name = one["metadata"]["name"]
        delete_path(client, f"{_SLICES}/{name}", one, say, f"resourceslice.resource.k8s.io/{name}", dry_run=dry_run)
    last = [one for one in there if one["kind"] in ("Namespace", *(_KEPT_KINDS if crds else ()))]
    for one in there:
        if one["kind"] not in (*_WORKLOAD_KINDS, *_KEPT_KINDS, "Namespace"):
            delete_object(client, one, say, dry_run=dry_run)
    for one in last:
        delete_object(client, one, say, dry_run=dry_run)
    for one in () if dry_run else last:
        _wait_until_gone(client, object_path(one), object_title(one), until)
    return staying if crds else [*staying, *(one for one in there if one["kind"] in _KEPT_KINDS)]


_CRDS_STAY = "the CRDs stay, with all claims, machines, pools and classes; to delete them: devalloc uninstall --crds"
_POLICY_STAYS = (
    f"policy {POLICY} and its binding stay; to delete them: kubectl delete "
    f"validatingadmissionpolicies,validatingadmissionpolicybindings {POLICY}; then restart the API servers before you "
    "install --adoption again"
)
_MACHINES_TAINT = "devalloc.io/machines"
"""The taint that ``docs/install.md`` gives nodes that run machines."""


def _marked_nodes(client: Client) -> Iterator[str]:
    """Sentences about labels and taints that admins gave nodes for devalloc. Raises NotInstalled."""
    nodes = {one["metadata"]["name"]: one for one in list_objects(client, "/api/v1/nodes")}
    labelled = [name for name, one in nodes.items() if PUBLISH_LABEL in one["metadata"].get("labels", {})]
    tainted = [
        name
        for name, one in nodes.items()
        if any(taint["key"] == _MACHINES_TAINT for taint in (one.get("spec") or {}).get("taints") or ())
    ]
    for mark, key, verb, names in (
        ("taint", _MACHINES_TAINT, "taint", tainted),  # before the label, by which a command may name its nodes
        ("label", PUBLISH_LABEL, "label", labelled),
    ):
        if names:
            these = "node {} has" if len(names) == 1 else "nodes {} have"
            chosen = " ".join(names) if len(names) <= MOST_NAMES else f"-l {PUBLISH_LABEL}"
            yield (
                f"{these.format(format_names(sorted(names)))} the {mark} {key}; to remove it: kubectl {verb} nodes "
                f"{chosen} {key}-"
            )


def _refuse_in_use(client: Client, say: Say, *, crds: bool, force: bool) -> None:
    """Raises NotInstalled if a node has devices prepared for something that stays. ``crds``: our claims and machines do
    not stay; the caller waits for their nodes."""
    stays = [
        each for each in holding_objects(client) if each.is_prepared and not (crds and each.kind in ALLOCATABLE_KINDS)
    ]
    if not stays:
        return
    titles = format_names(sorted(each.title for each in stays))
    if not force:
        raise NotInstalled(
            f"devices are in use: {titles}; without devalloc on the nodes, nothing would release them. Delete these "
            "first, or use --force, which leaves the devices as they are"
        )
    say(f"still in use, left as they are on their nodes: {titles}")


def _objects_to_remove(client: Client, namespace: str) -> Iterator[Object]:
    """What ``install`` of any version applied, and objects with the same names that were installed by other means."""
    seen = set()
    for one in installed_objects(client, namespace):
        seen.add(object_path(one))
        yield one
    by_name: dict[str, Object] = {}
    for publish in PUBLISH:
        by_name |= {object_path(one): one for one in reversed(render_manifests(every_option(publish, namespace)))}
    for path, one in by_name.items():
        if path not in seen and (stored := get_or_none(client, path)) is not None:
            yield {**stored, "apiVersion": one["apiVersion"], "kind": one["kind"]}


def _delete_ours(client: Client, say: Say, until: float, *, force: bool, dry_run: bool) -> None:
    """Delete machines, then claims: their nodes stop the machines and release the devices."""
    for kind in (API_KINDS[name] for name in reversed(ALLOCATABLE_KINDS)):  # machines use claims
        path = f"/apis/{kind.api_version}/{kind.plural}"
        for one in list_objects(client, path):
            title_of_one = f"{kind.singular}.{kind.group}/{one['metadata']['name']}"
            delete_path(client, _place(path, one), one, say, title_of_one, dry_run=dry_run)
        if dry_run:
            continue

        def is_empty(path: str = path) -> bool:
            return not list(list_objects(client, path))

        if wait_until(is_empty, min(until, time.monotonic() + FORCE_SECONDS) if force else until):
            continue
        left = list(list_objects(client, path))
        if not force:
            raise NotInstalled(
                f"not deleted yet: {format_names(sorted(map(describe_location, left)))}; check the node plugins there, "
                "or use --force, "
                "which leaves their devices as they are on the nodes"
            )
        for one in left:
            _remove_finalizer(client, _place(path, one), one)
            say(f"{kind.singular}.{kind.group}/{one['metadata']['name']}: finalizer removed; {describe_location(one)}")


def _remove_finalizer(client: Client, path: str, one: Object) -> None:
    """Remove the finalizer of its node."""
    finalizers = [name for name in one["metadata"].get("finalizers", ()) if name != meta.NODE_FINALIZER]
    try:
        client.replace(path, {**one, "metadata": {**one["metadata"], "finalizers": finalizers}})
    except ApiError as error:
        if not error.is_not_found:
            raise NotInstalled(f"cannot remove the finalizer of {path}: {error}; try again") from None


def _wait_for_pods(client: Client, namespace: str, until: float) -> None:
    """Wait until all pods have ended, because a node plugin would publish again."""
    names = "app.kubernetes.io/name in (devalloc-controller,devalloc-node,devalloc-node-pools,devalloc-node-set-aside)"
    path = f"/api/v1/namespaces/{namespace}/pods"

    def are_gone() -> bool:
        return not list(list_objects(client, path, labelSelector=names))

    if not wait_until(are_gone, until):
        left = ", ".join(one["metadata"]["name"] for one in list_objects(client, path, labelSelector=names))
        raise NotInstalled(f"pods do not end: {left}; see: kubectl -n {namespace} describe pods")


def _wait_until_gone(client: Client, path: str, what: str, until: float) -> None:
    while not wait_until(lambda: get_or_none(client, path) is None, min(until, time.monotonic() + WAKE_SECONDS)):
        now = get_or_none(client, path) or {}
        if time.monotonic() > until:
            conditions = now.get("status", {}).get("conditions", ())
            why = "; ".join(each["message"] for each in conditions if each["status"] == "True" and "message" in each)
            raise NotInstalled(f"{what} is still being deleted: {why or 'the server gives no reason'}")
        if now.get("kind") == "CustomResourceDefinition":
            _touch_crd(client, path, now)


def _touch_crd(client: Client, path: str, crd: Object) -> None:
    """Make the API server process the CRD again. It may ignore one that is deleted soon after its creation for five
    minutes: its first try fails, and the second one mistakes its own note about that for a change by another client."""
    annotations = {**crd["metadata"].get("annotations", {}), "devalloc.io/deleting": str(time.time_ns())}
    try:
        client.replace(path, {**crd, "metadata": {**crd["metadata"], "annotations": annotations}})
    except ApiError as error:
        if not (error.is_not_found or error.is_conflict):
            raise NotInstalled(f"cannot write {path}: {error}") from None


def _place(path: str, one: Object) -> str:
    """The path of an object in a list of all namespaces."""
    root, _, plural = path.rpartition("/")
    return f"{root}/namespaces/{one['metadata']['namespace']}/{plural}/{one['metadata']['name']}"
