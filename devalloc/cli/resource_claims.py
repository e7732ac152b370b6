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
from devalloc.cli import target
from devalloc.cli.command import CommandFailed
from devalloc.cli.options.places import StoreTarget
from devalloc.store import Forbidden
from devalloc_solver.dialects.api_groups import RESOURCE_CLAIMS, api_group_of

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
    return next((one for one in of_kind(objects, kind) if key_of(one) == (namespace, name)), None)


def of_kind(objects: Iterable[Any], kind: str) -> Iterator[Object]:
    """The objects of a kind of resource.k8s.io that have a name."""
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


def key_of(content: Object) -> tuple[str, str]:
    """Namespace and name of an object that has a name."""
    return str(content["metadata"].get("namespace") or "default"), content["metadata"]["name"]


def as_claim(content: Object) -> Object:
    """A claim itself, or the claim that a pod gets from a template."""
    from devalloc_solver.dialects.resource_k8s.templates import claim_of_template

    return claim_of_template(content) if content["kind"] == TEMPLATE else content


def with_claim_of(template: Object, objects: Iterable[Any]) -> list[Any]:
    """The objects without templates, and with a claim that is made of one; see ``_without_claim``."""
    others = (one for one in objects if not any(of_kind([one], TEMPLATE)))
    return [*_without_claim(as_claim(template), others), as_claim(template)]


def _without_claim(claim: Object, objects: Iterable[Any]) -> Iterator[Any]:
    """The objects but the claim. If the claim is of a template, one of its name that is allocated counts, under another
    name."""
    for one in objects:
        same = named_object([one], CLAIM, *key_of(claim))
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
