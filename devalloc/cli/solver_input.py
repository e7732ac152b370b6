"""The input of `solve`, `explain`, `capacity` and `snapshot`: manifests, the objects of a store, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.api.cordon import apply_all_cordons, is_node, is_readable_node
from devalloc.api.owner_names import POD
from devalloc.api.problems import Problem
from devalloc.cli.command import BadInput
from devalloc.cli.documents import ManifestDocuments, is_pod_with_claims, print_problems, read_manifests
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.resource_claims import TEMPLATE, of_kind
from devalloc.cli.target import open_target
from devalloc.cli.terminal import print_note
from devalloc.controller.manifest_apply import overlay_manifests
from devalloc.controller.reconcile.stored_claims import solver_documents
from devalloc.programs.settings import store_path
from devalloc.store import Forbidden, Store
from devalloc.store.errors import Invalid, Key
from devalloc_solver.dialects.api_groups import RESOURCE_CLAIMS, api_group_of

if TYPE_CHECKING:
    from devalloc_solver.pipeline.admission import AdminNamespaces

Object = dict[str, Any]


class NoManifests(BadInput):
    """No manifest could be read, and its problems were already shown."""

    def show(self, file: Any = None) -> None:
        if self.message:
            super().show(file)


@dataclass(frozen=True, slots=True)
class SolverInput:
    """Objects, and which of them come from manifests."""

    all: list[Any]
    documents: ManifestDocuments
    is_of_store: bool
    """Whether some of them come from a store."""
    admin_namespaces: AdminNamespaces = "all"
    """The namespaces whose claims may have admin access; on a cluster, those with a label (S14)."""
    claims_of_pods: Mapping[tuple[str, str], Sequence[tuple[str, str]]] = field(default_factory=dict)
    """The claims of each pod of the manifests, which are among the objects."""

    @property
    def given(self) -> list[Any]:
        """The objects of the manifests."""
        return [document.content for document in self.documents.all]

    @property
    def code(self) -> int:
        """The exit code so far."""
        return self.documents.exit_code

    def of_files(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answers that the user asked for: those of the manifests' claims and machines, if there are any."""
        if not self.documents.all or not self.is_of_store:
            return answer
        names = {kind: self._names(kind) for kind in ("DeviceClaim", "VirtualMachine")}
        if not any(names.values()):
            return answer  # what a class, a quota or a pool would change for the store's claims
        parts = {
            part: [one for one in answer[part] if (one["namespace"], one["name"]) in names[kind]]
            for part, kind in (("claims", "DeviceClaim"), ("machines", "VirtualMachine"))
            if part in answer
        }
        return {**answer, **parts}

    def has_errors(self, answer: dict[str, Any]) -> bool:
        """Whether an object of the manifests was left out."""
        if not self.documents.all:
            return False
        errors = [Problem(**one) for one in answer["problems"] if one.get("severity", "error") == "error"]
        return any(not self.is_of_store or self.documents.is_about(error) for error in errors)

    def _names(self, kind: str) -> set[tuple[str, str]]:
        heads = [one["metadata"] for one in self.given if _is_of_kind(one, kind)]
        return {(str(head.get("namespace") or "default"), str(head.get("name"))) for head in heads}


def load_solver_input(
    files: tuple[str, ...], namespace: str, place: StoreTarget, with_store: bool | None = None
) -> SolverInput:
    """Read the objects to work on, and show problems of the manifests. Raises CommandFailed, BadInput."""
    if not files:
        if with_store is False:
            raise BadInput("--no-store: give manifests with -f")
        stored, admin, warnings = _objects_of_target(place)
        for line in warnings:
            print_note(line)
        return SolverInput(
            solver_documents(stored, with_nodes=place.is_cluster),
            ManifestDocuments((), (), ()),
            is_of_store=True,
            admin_namespaces=admin,
        )
    documents = read_manifests(files, namespace, verb="solve")
    given = [document.content for document in documents.all]
    if not given:
        if documents.exit_code:
            raise NoManifests(_claim_name_hint(files))
        with_store = False
    if with_store is None:
        with_store = _uses_store(place, given)
    if not with_store:
        return _with_claims_of_pods(documents)
    if any(api_group_of(one) == RESOURCE_CLAIMS or is_pod_with_claims(one) for one in given):
        print_note("warning: ResourceClaims, their templates and pods do not count beside a store; use --no-store")
    readable = {document.source for document in documents.good}
    stored, admin, warnings = _objects_of_target(place)
    for line in warnings:
        print_note(line)
    rest = [one.content for one in documents.all if one.source not in readable]
    wrong = set(map(_key, rest))  # the manifests count, even if they are invalid
    stored = [obj for obj in stored if _key(obj) not in wrong]
    # Only the cluster itself knows the state of its Nodes.
    objects, refused = overlay_manifests(stored, [one.content for one in documents.good if not is_node(one.content)])
    for key, why in refused:
        print_note(f"warning: {key} {why}; the answer is for the claim as it is")
    seen = solver_documents(objects, with_nodes=place.is_cluster)
    return SolverInput([*seen, *rest], documents, is_of_store=True, admin_namespaces=admin)


def _with_claims_of_pods(documents: ManifestDocuments) -> SolverInput:
    """The manifests alone."""
    contents = [document.content for document in documents.all]
    if not any(map(_is_of_kubernetes, contents)):
        return SolverInput(_with_nodes(contents), documents, is_of_store=False)
    from devalloc.cli.pod_claims import with_claims_of_pods  # reads ResourceClaims, which takes long to load

    pods = with_claims_of_pods(contents, of_kind([document.content for document in documents.good], TEMPLATE))
    problems = [documents.place(problem) for problem in pods.problems]
    print_problems(problems)
    documents = replace(documents, problems=[*documents.problems, *problems])
    return SolverInput(_with_nodes(pods.objects), documents, is_of_store=False, claims_of_pods=pods.of_pod)


def _is_of_kubernetes(one: Any) -> bool:
    """Whether it is a pod, or an object of resource.k8s.io."""
    return isinstance(one, dict) and (one.get("kind") == POD or api_group_of(one) == RESOURCE_CLAIMS)


def _with_nodes(given: Sequence[Any]) -> list[Any]:
    """Manifests with what is cordoned made unavailable in their pools, also by Nodes among them, as on a cluster."""
    readable = [one for one in given if isinstance(one, dict) and (not is_node(one) or is_readable_node(one))]
    changed = {id(before): after for before, after in zip(readable, apply_all_cordons(readable), strict=True)}
    return [changed.get(id(one), one) for one in given]


def _claim_name_hint(files: tuple[str, ...]) -> str:
    """Advice if a missing file is most likely the name of a claim; "" otherwise."""
    (name, *others) = files
    if others or Path(name).exists() or "/" in name or "." in name or name == "-":
        return ""
    verb = click.get_current_context().info_name
    if verb != "solve":
        return ""
    return f"to solve all claims of the store, leave {name!r} out; for one claim: devalloc explain {name}"


def _key(content: Any) -> Key | None:
    try:
        return Key.of(content) if isinstance(content, dict) else None
    except Invalid:
        return None


def _is_of_kind(content: Any, kind: str) -> bool:
    return isinstance(content, dict) and content.get("kind") == kind and isinstance(content.get("metadata"), dict)


def _uses_store(place: StoreTarget, given: Sequence[Any]) -> bool:
    """Whether to combine manifests with the store if neither option was given. A cluster that was named is always
    included. A store may just happen to exist, and manifests with pools are a fleet of their own, as in the examples.
    """
    if any(api_group_of(one) == RESOURCE_CLAIMS for one in given):
        if place.is_cluster:
            print_note("warning: the answer for manifests of resource.k8s.io ignores the objects of the cluster")
        return False
    if place.is_cluster:
        return True
    has_pools = any(isinstance(one, dict) and one.get("kind") == "DevicePool" for one in given)
    return not has_pools and store_path(place.store).exists()


def _objects_of_target(place: StoreTarget) -> tuple[list[Object], AdminNamespaces, list[str]]:
    with open_target(place) as store:
        return objects_for_solver(store, is_cluster=place.is_cluster)


def objects_for_solver(store: Store, *, is_cluster: bool) -> tuple[list[Object], AdminNamespaces, list[str]]:
    """All objects on which an answer depends, the namespaces with admin access, and warnings about objects that cannot
    be read. Raises StoreError."""
    if not is_cluster:
        return store.list().objects, "all", []
    from devalloc.store.kubernetes.resources import CORE_KINDS, OWN_KINDS

    ours = [each.kind for each in OWN_KINDS]
    try:
        return store.list([*ours, *(each.kind for each in CORE_KINDS)]).objects, "labelled", []
    except Forbidden:
        warning = "warning: no permission to read quotas, namespaces and Nodes of the cluster, so they do not count"
        return store.list(ours).objects, "all", [warning]
