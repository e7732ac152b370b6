"""What `solve`, `explain`, `capacity` and `snapshot` answer for: manifests, what a store has, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.output import note
from devalloc.cli.place import Place
from devalloc.cli.verb import BadInput

if TYPE_CHECKING:
    from devalloc.cli.documents import Documents
    from devalloc.store import Store
    from devalloc.store.key import Key
    from devalloc_solver.gate import AdminNamespaces

Object = dict[str, Any]


class NothingRead(BadInput):
    """There is no manifest to answer for, and what is wrong was shown."""

    def show(self, file: Any = None) -> None:
        if self.message:
            super().show(file)


@dataclass(frozen=True, slots=True)
class Contents:
    """Objects, and which of them are of manifests."""

    all: list[Any]
    documents: Documents
    is_of_store: bool
    """There are objects of a store among them."""
    admin_namespaces: AdminNamespaces = "all"
    """Where claims may have admin access: on a cluster in namespaces with a label (S14)."""

    @property
    def code(self) -> int:
        """The exit code so far."""
        return self.documents.exit_code

    def of_files(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answers that were asked for: those of the claims and machines of the manifests, if there are any."""
        if not self.documents.all or not self.is_of_store:
            return answer
        names = {kind: self._names(kind) for kind in ("DeviceClaim", "VirtualMachine")}
        if not any(names.values()):
            return answer  # what a class, a quota or a pool would change for those that are there
        parts = {
            part: [one for one in answer[part] if (one["namespace"], one["name"]) in names[kind]]
            for part, kind in (("claims", "DeviceClaim"), ("machines", "VirtualMachine"))
            if part in answer
        }
        return {**answer, **parts}

    def has_errors(self, answer: dict[str, Any]) -> bool:
        """Whether something of the manifests was left out."""
        from devalloc.api.problems import Problem

        if not self.documents.all:
            return False
        errors = [Problem(**one) for one in answer["problems"] if one.get("severity", "error") == "error"]
        return any(not self.is_of_store or self.documents.is_about(error) for error in errors)

    def _names(self, kind: str) -> set[tuple[str, str]]:
        contents: list[Any] = [document.content for document in self.documents.all]
        heads = [one["metadata"] for one in contents if _is_of_kind(one, kind)]
        return {(str(head.get("namespace") or "default"), str(head.get("name"))) for head in heads}


def with_store_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--with-store, --no-store: passed as ``with_store: bool | None``."""
    return click.option(
        "--with-store/--no-store",
        "with_store",
        default=None,
        show_default=False,
        help="With -f: answer as if the manifests were applied to the store, or for the manifests alone. By default "
        "with the cluster that --kubeconfig names, or with the store, if there is one and the manifests bring no pools "
        "of their own.",
    )(function)


def contents(files: tuple[str, ...], namespace: str, place: Place, with_store: bool | None = None) -> Contents:
    """What to answer for. Shows what is wrong with the manifests. Raises Failed, BadInput."""
    from devalloc.api.cordon import is_node
    from devalloc.cli.documents import Documents, read
    from devalloc.controller.applying import laid_over
    from devalloc.controller.snapshot import as_seen

    if not files:
        if with_store is False:
            raise BadInput("--no-store: give manifests with -f")
        stored, admin, said = _stored(place)
        for line in said:
            note(line)
        return Contents(
            as_seen(stored, with_nodes=place.is_cluster),
            Documents((), (), ()),
            is_of_store=True,
            admin_namespaces=admin,
        )
    documents = read(files, namespace, verb="solve")
    given = [document.content for document in documents.all]
    if not given:
        if documents.exit_code:
            raise NothingRead(_claims_are_named(files))
        with_store = False
    if with_store is None:
        with_store = _is_meant(place, given)
    if not with_store:
        return Contents(given, documents, is_of_store=False)
    readable = {document.source for document in documents.good}
    stored, admin, said = _stored(place)
    for line in said:
        note(line)
    rest = [one.content for one in documents.all if one.source not in readable]
    wrong = set(map(_key, rest))  # the answer is for what the manifests say, though it is wrong
    stored = [obj for obj in stored if _key(obj) not in wrong]
    # Only the cluster itself says how its Nodes are.
    objects, refused = laid_over(stored, [one.content for one in documents.good if not is_node(one.content)])
    for key, why in refused:
        note(f"warning: {key} {why}; the answer is for the claim as it is")
    seen = as_seen(objects, with_nodes=place.is_cluster)
    return Contents([*seen, *rest], documents, is_of_store=True, admin_namespaces=admin)


def _claims_are_named(files: tuple[str, ...]) -> str:
    """What to say of a file that is not there and has the name of a claim, most likely; "" of others."""
    (name, *others) = files
    if others or Path(name).exists() or "/" in name or "." in name or name == "-":
        return ""
    verb = click.get_current_context().info_name
    if verb != "solve":
        return ""
    return f"to solve all claims of the store, leave {name!r} out; for the claim of that name: devalloc explain {name}"


def _key(content: Any) -> Key | None:
    from devalloc.store.errors import Invalid
    from devalloc.store.key import Key

    try:
        return Key.of(content) if isinstance(content, dict) else None
    except Invalid:
        return None


def _is_of_kind(content: Any, kind: str) -> bool:
    return isinstance(content, dict) and content.get("kind") == kind and isinstance(content.get("metadata"), dict)


def _is_meant(place: Place, given: Sequence[Any]) -> bool:
    """Whether manifests are to be answered with what the store has, where nobody says so. A cluster was named, so it
    is; a store may just be there, and manifests with pools are a fleet of their own, as every example is."""
    from devalloc.cli.storage import store_path
    from devalloc_solver.dialects import RESOURCE_CLAIMS, group_of

    if any(group_of(one) == RESOURCE_CLAIMS for one in given):
        if place.is_cluster:
            note("warning: manifests of resource.k8s.io are answered alone, without what the cluster has")
        return False
    if place.is_cluster:
        return True
    has_pools = any(isinstance(one, dict) and one.get("kind") == "DevicePool" for one in given)
    return not has_pools and store_path(place.store).exists()


def _stored(place: Place) -> tuple[list[Object], AdminNamespaces, list[str]]:
    from devalloc.cli.place import opened

    with opened(place) as store:
        return decided_on(store, is_cluster=place.is_cluster)


def decided_on(store: Store, *, is_cluster: bool) -> tuple[list[Object], AdminNamespaces, list[str]]:
    """All objects that an answer depends on, where claims may have admin access, and what to say of objects that cannot
    be read. Raises StoreError."""
    if not is_cluster:
        return store.list().objects, "all", []
    from devalloc.store import Forbidden
    from devalloc.store.kubernetes.resources import AROUND, OURS

    ours = [each.kind for each in OURS]
    try:
        return store.list([*ours, *(each.kind for each in AROUND)]).objects, "labelled", []
    except Forbidden:
        said = "warning: quotas, namespaces and Nodes of the cluster may not be read here, so they do not count"
        return store.list(ours).objects, "all", [said]
