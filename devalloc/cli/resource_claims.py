"""ResourceClaims and ResourceClaimTemplates of Kubernetes, for `explain` and `capacity`: in manifests, or of a cluster.

On a cluster, a claim with devalloc's label gets devices that are set aside for devalloc, as the controller sees them.
For any other claim, all slices count, with their taints and those of DeviceTaintRules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from devalloc.api.cordon import is_node
from devalloc.cli import target
from devalloc.cli.command import CommandFailed
from devalloc.cli.target import StoreTarget
from devalloc.cli.terminal import print_note

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
    from devalloc.controller.reconcile.stored_claims import ignored_reason
    from devalloc_solver.dialects.api_groups import RESOURCE_CLAIMS, api_group_of

    if place.is_cluster:
        return _load_cluster_objects(place)
    print_note(f"warning: {ignored_reason(RESOURCE_CLAIMS)}")
    with target.open_target(place) as store:
        objects = store.list().objects
    return [one for one in objects if api_group_of(one) == RESOURCE_CLAIMS or is_node(one)]


def _load_cluster_objects(place: StoreTarget) -> list[Object]:
    from devalloc.controller.reconcile.resource_claims.cluster_state import RESOURCES
    from devalloc.store import Forbidden
    from devalloc.store.kubernetes import KubernetesStore
    from devalloc.store.kubernetes.resources import ApiResource

    template = ApiResource(TEMPLATE, "resource.k8s.io", "v1", "resourceclaimtemplates", True, False)
    resources = [one for one in RESOURCES if one.kind != "Pod"]
    with closing(
        KubernetesStore(target.connect_cluster(place.kubeconfig), resources=[*resources, template])
    ) as cluster:
        try:
            return cluster.list([one.store_kind for one in (*resources, template)]).objects
        except Forbidden as error:
            raise CommandFailed(f"{error}; ask a user who may list these objects in the whole cluster") from None


def documents_about(claim: Object, objects: Sequence[Object]) -> list[Object]:
    """What decides about a pending claim of a cluster, without other claims that wait."""
    from devalloc.controller.reconcile.resource_claims.pending import is_for_devalloc

    others = _others(claim, objects)
    if not is_for_devalloc(claim):
        return others
    documents = _state_of(others).documents().values()
    return [*documents, *(one for one in others if one["kind"] == "Node")]


def none_set_aside(claim: Object, objects: Sequence[Object]) -> str:
    """Why a claim for devalloc gets nothing although devices are published; "" if that is not why."""
    from devalloc.controller.reconcile.resource_claims.pending import is_for_devalloc

    return _state_of(_others(claim, objects)).none_set_aside() if is_for_devalloc(claim) else ""


def _others(claim: Object, objects: Sequence[Object]) -> list[Object]:
    """All but the claim, other claims that wait, and templates."""
    waiting = {id(one) for one in of_kind(objects, CLAIM) if not _is_allocated(one)}
    return [*_without_claim(claim, (one for one in objects if one["kind"] != TEMPLATE and id(one) not in waiting))]


def _state_of(objects: Sequence[Object]) -> ClusterState:
    from devalloc.controller.reconcile.resource_claims.cluster_state import ClusterState

    state = ClusterState()
    state.look(objects)
    return state
