"""ResourceClaims and ResourceClaimTemplates of Kubernetes, for `explain` and `capacity`: in manifests, or of a cluster.

On a cluster, a claim with devalloc's label gets devices that are set aside for devalloc, as the controller sees them.
For any other claim, all slices count, with their taints and those of DeviceTaintRules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from devalloc.api.adopted_pools import adoption_rules, pools_of_rules
from devalloc.api.cordon import is_node
from devalloc.api.dedicated_pools import ALLOCATOR_KEY, is_for_devalloc, namespaces_for_devalloc, with_namespace_default
from devalloc.api.findings import Finding
from devalloc.api.meta import GROUP, POD_CLAIM_NAME
from devalloc.cli import target
from devalloc.cli.command import CommandFailed
from devalloc.cli.target import StoreTarget
from devalloc.store import Forbidden

if TYPE_CHECKING:
    from devalloc.controller.reconcile.resource_claims.cluster_state import ClusterState

Object = dict[str, Any]
CLAIM, TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"
_WORDS = {
    **dict.fromkeys(("resourceclaim", "resourceclaims"), CLAIM),
    **dict.fromkeys(("resourceclaimtemplate", "resourceclaimtemplates"), TEMPLATE),
}


def resource_kind(word: str) -> str | None:
    """The kind of resource.k8s.io that a word means, in any case and with or without its group; None for any other."""
    return _WORDS.get(word.lower().partition(".")[0])


def named_object(objects: Iterable[Any], kind: str, namespace: str, name: str) -> Object | None:
    """The claim or template of that name; None if there is none."""
    return next((one for one in of_kind(objects, kind) if _key(one) == (namespace, name)), None)


def of_kind(objects: Iterable[Any], kind: str) -> Iterator[Object]:
    """The objects of a kind of resource.k8s.io that have a name."""
    from devalloc_solver.dialects.api_groups import RESOURCE_CLAIMS, api_group_of

    for one in objects:
        if (
            isinstance(one, dict)
            and one.get("kind") == kind
            and api_group_of(one) == RESOURCE_CLAIMS
            and _has_name(one)
        ):
            yield one


def _has_name(content: Object) -> bool:
    metadata = content.get("metadata")
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str)


def _key(content: Object) -> tuple[str, str]:
    return str(content["metadata"].get("namespace") or "default"), content["metadata"]["name"]


def as_claim(content: Object) -> Object:
    """A claim itself, or the claim that a pod gets from a template."""
    from devalloc_solver.dialects.resource_k8s.templates import claim_of_template

    return claim_of_template(content) if content["kind"] == TEMPLATE else content


def with_claim_of(template: Object, objects: Iterable[Any]) -> list[Any]:
    """The objects without templates, and with a claim that is made of one; see ``_without_claim``."""
    others = (one for one in objects if not any(of_kind([one], TEMPLATE)))
    return [*_without_claim(as_claim(template), others), as_claim(template)]


def with_claims_of_pods(objects: Sequence[Any]) -> list[Any]:
    """The objects, with the claims that Kubernetes makes for the pods among them in the place of these pods and of the
    templates that they name. All claims of such a pod are on one node. A pod whose template is not there stays."""
    templates = {_key(one): one for one in of_kind(objects, TEMPLATE)}
    there = {_key(one): _group_of(one) for one in of_kind(objects, CLAIM)}
    groups: dict[tuple[str, str], str] = {}
    used: set[tuple[str, str]] = set()
    given: list[Any] = []
    for one in objects:
        entries = _template_entries(one)
        named = [(_key(one)[0], str(entry["resourceClaimTemplateName"])) for entry in entries]
        if not entries or not templates.keys() >= {*named}:
            given.append(one)
            continue
        used.update(named)
        made = [_claim_of_pod(one, entry, templates[key]) for entry, key in zip(entries, named, strict=True)]
        earlier_of = [
            {_key(claim), _made_for(one, entry)} & there.keys() for claim, entry in zip(made, entries, strict=True)
        ]
        new = [claim for claim, earlier in zip(made, earlier_of, strict=True) if not earlier]
        others = sorted({*_named_claims(one)} & there.keys() | set().union(*earlier_of))
        if len(new) + len(others) > 1:
            group = next((g for each in others if (g := there[each] or groups.get(each))), _key(one)[1])
            groups.update({each: group for each in others if not there[each] and each not in groups})
            new = [_in_group(claim, group) for claim in new]
        given += new
    given = [
        _in_group(one, groups[_key(one)]) if any(_key(c) in groups for c in of_kind([one], CLAIM)) else one
        for one in given
    ]
    return [one for one in given if not any(_key(each) in used for each in of_kind([one], TEMPLATE))]


def _annotations(content: Object) -> Object:
    annotations = content["metadata"].get("annotations")
    return annotations if isinstance(annotations, dict) else {}


def _group_of(claim: Object) -> str | None:
    group = _annotations(claim).get(GROUP)
    return group if isinstance(group, str) and group else None


def _in_group(claim: Object, group: str) -> Object:
    """A claim that is on one node with others; one that says so itself, or cannot be read, as it is."""
    metadata = claim["metadata"]
    if not isinstance(metadata.get("annotations") or {}, dict):
        return claim
    return {**claim, "metadata": {**metadata, "annotations": {**_annotations(claim), GROUP: _group_of(claim) or group}}}


def _named_claims(pod: Object) -> Iterator[tuple[str, str]]:
    """The claims that a pod has by name."""
    for entry in pod["spec"]["resourceClaims"]:
        if isinstance(entry, dict) and isinstance(name := entry.get("resourceClaimName"), str):
            yield _key(pod)[0], name


def _template_entries(content: Any) -> list[Object]:
    """The claims of a pod that has not ended which are to be made of templates."""
    if not (isinstance(content, dict) and content.get("kind") == "Pod" and _has_name(content)):
        return []
    spec, status = content.get("spec"), content.get("status")
    entries = spec.get("resourceClaims") if isinstance(spec, dict) else None
    has_ended = isinstance(status, dict) and status.get("phase") in ("Succeeded", "Failed")
    return [
        entry
        for entry in (entries if isinstance(entries, list) and not has_ended else ())
        if isinstance(entry, dict) and entry.get("resourceClaimTemplateName") and isinstance(entry.get("name"), str)
    ]


def _made_for(pod: Object, entry: Object) -> tuple[str, str]:
    """The claim that Kubernetes has made for an entry of a pod; without a name if there is none."""
    status = pod.get("status")
    made = status.get("resourceClaimStatuses") if isinstance(status, dict) else None
    own = (each for each in (made if isinstance(made, list) else ()) if isinstance(each, dict))
    name = next((each.get("resourceClaimName") for each in own if each.get("name") == entry["name"]), None)
    return _key(pod)[0], str(name or "")


def _claim_of_pod(pod: Object, entry: Object, template: Object) -> Object:
    """The claim that a pod gets from a template, under a name that says whose it is. Annotations that are no map are
    left for the reader of claims to report."""
    claim, (namespace, name) = as_claim(template), _key(pod)
    annotations = claim["metadata"].get("annotations") or {}
    if isinstance(annotations, dict):
        annotations = {**annotations, POD_CLAIM_NAME: entry["name"]}
    own = {"name": f"{name}-{entry['name']}", "namespace": namespace, "annotations": annotations}
    return {**claim, "metadata": {**claim["metadata"], **own}}


def _without_claim(claim: Object, objects: Iterable[Any]) -> Iterator[Any]:
    """The objects but the claim. If the claim is of a template, one of its name that is allocated counts, under another
    name."""
    for one in objects:
        same = named_object([one], CLAIM, *_key(claim))
        if same is None:
            yield one
        elif _is_allocated(same) and not _is_allocated(claim):
            yield {**same, "metadata": {**same["metadata"], "name": f"resourceclaim/{same['metadata']['name']}"}}


def _is_allocated(claim: Object) -> bool:
    status = claim.get("status")
    return isinstance(status, dict) and bool(status.get("allocation"))


# -- of a cluster or store ---------------------------------------------------------------------------------------------


def load_resource_objects(place: StoreTarget) -> list[Object]:
    """All of a cluster or store that decides about ResourceClaims. Raises CommandFailed, StoreError."""
    from devalloc_solver.dialects.api_groups import RESOURCE_CLAIMS, api_group_of

    if place.is_cluster:
        return _load_cluster_objects(place)
    with target.open_target(place) as store:
        objects = store.list().objects
    return [_without_label(one) for one in objects if api_group_of(one) == RESOURCE_CLAIMS or is_node(one)]


def _without_label(content: Object) -> Object:
    """An object of a store, where the label that chooses an allocator on a cluster says nothing."""
    labels = content["metadata"].get("labels") or {}
    if ALLOCATOR_KEY not in labels:
        return content
    others = {name: value for name, value in labels.items() if name != ALLOCATOR_KEY}
    return {**content, "metadata": {**content["metadata"], "labels": others}}


def _load_cluster_objects(place: StoreTarget) -> list[Object]:
    from devalloc.controller.reconcile.resource_claims.cluster_state import RESOURCES
    from devalloc.store.kubernetes import KubernetesStore
    from devalloc.store.kubernetes.resources import ApiResource

    template = ApiResource(TEMPLATE, "resource.k8s.io", "v1", "resourceclaimtemplates", True, False)
    resources = [one for one in RESOURCES if one.kind != "Pod"]
    with closing(
        KubernetesStore(target.connect_cluster(place.kubeconfig), resources=[*resources, template])
    ) as cluster:
        try:
            objects = cluster.list([one.store_kind for one in (*resources, template)]).objects
        except Forbidden as error:
            raise CommandFailed(f"{error}; ask a user who may list these objects in the whole cluster") from None
    return _with_namespace_defaults(objects)


def _with_namespace_defaults(objects: Sequence[Object]) -> list[Object]:
    """The objects with the labels that claims, and claims of templates, have by their namespace."""
    chosen = namespaces_for_devalloc(one for one in objects if one["kind"] == "Namespace")
    changed = []
    for one in objects:
        if one["kind"] == CLAIM:
            one = with_namespace_default(one, chosen)
        elif one["kind"] == TEMPLATE:
            metadata = {**(one["spec"].get("metadata") or {}), "namespace": one["metadata"]["namespace"]}
            labels = with_namespace_default({"metadata": metadata}, chosen)["metadata"].get("labels") or {}
            one = {
                **one,
                "spec": {**one["spec"], "metadata": {**(one["spec"].get("metadata") or {}), "labels": labels}},
            }
        changed.append(one)
    return changed


def documents_about(claim: Object, objects: Sequence[Object]) -> list[Object]:
    """What decides about a pending claim of a cluster, without other claims that wait. If no device is for devalloc,
    and no other one matches a claim for it, all slices: they show why none matches."""
    others = _others(claim, objects)
    if not is_for_devalloc(claim):
        return others
    state = _state_of(others)
    if state.offers_nothing and not state.not_adopted([claim]):
        return others
    return [*state.documents(), *(one for one in others if one["kind"] == "Node")]


def documents_to_explain(claim: Object, objects: Sequence[Object]) -> list[Object]:
    """What decides about a claim of a cluster. One that has devices may have any: all slices count for it."""
    return _others(claim, objects) if _is_allocated(claim) else documents_about(claim, objects)


def explain_lack(claim: Object, objects: Sequence[Object], reason: str, finding: Finding) -> tuple[str, Finding]:
    """The reason and finding of a claim that gets nothing, with the devices that match it and are not for devalloc."""
    if not is_for_devalloc(claim):
        return reason, finding
    return _state_of(_others(claim, objects)).explain_lack(reason, finding, [claim])


def _others(claim: Object, objects: Sequence[Object]) -> list[Object]:
    """All but the claim, other claims that wait, and templates."""
    waiting = {id(one) for one in of_kind(objects, CLAIM) if not _is_allocated(one)}
    return [*_without_claim(claim, (one for one in objects if one["kind"] != TEMPLATE and id(one) not in waiting))]


def _state_of(objects: Sequence[Object]) -> ClusterState:
    from devalloc.controller.reconcile.resource_claims.cluster_state import ClusterState

    state = ClusterState(count_seconds=None)
    rules = adoption_rules(one for one in objects if one["kind"] == "DeviceTaintRule")
    state.look(objects, pools_of_rules(rule for rule in rules if rule.adopted_at and not rule.is_ending))
    return state
