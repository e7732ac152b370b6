"""Bringing manifests to a cluster, and what is there of earlier ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from devalloc.install.kustomize import Object
from devalloc.install.manifests import LABEL, Options, collection, manifests, path_of, title
from devalloc.store.kubernetes.apierror import ApiError
from devalloc.store.kubernetes.client import Client

Say = Callable[[str], None]
MANAGER = "devalloc"
"""Whose fields they are, for server-side apply."""
PAUSE = 0.2
DRY_RUN = " (dry run)"
"""After what would become of an object."""
_PATHS = 3
"""How many fields that would change are named."""
_BINDING = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}
_BINDINGS = ("devalloc-controller", "devalloc-node")
"""Their subjects say in which namespace devalloc is, however it was installed."""
_SERVED = {"resourceVersion", "managedFields", "generation", "creationTimestamp", "uid"}


class NotInstalled(Exception):
    """Something could not be written, or is not as it should be; the text says what, and what to do."""


def refuse_elsewhere(client: Client, namespace: str) -> None:
    """Raises NotInstalled where devalloc is in another namespace of the cluster: roles, bindings and policies are there
    once, and would be taken from it."""
    for name in _BINDINGS:
        binding = found(client, path_of({**_BINDING, "metadata": {"name": name}})) or {}
        for subject in binding.get("subjects", ()):
            if (other := subject.get("namespace")) not in (None, namespace):
                raise NotInstalled(
                    f"devalloc is installed in namespace {other}, and a cluster has it once: say --namespace {other}; "
                    "to have it elsewhere, uninstall it there first"
                )


def refuse_helm(client: Client, objects: Iterable[Object]) -> None:
    """Raises NotInstalled where a Helm release owns one of them: of two owners each would undo what the other one
    changes, and the next ``helm upgrade`` would fail with conflicts."""
    for one in objects:
        metadata = (found(client, path_of(one)) or {"metadata": {}})["metadata"]
        if metadata.get("labels", {}).get("app.kubernetes.io/managed-by") == "Helm":
            annotations = metadata.get("annotations", {})
            release = annotations.get("meta.helm.sh/release-name", "devalloc")
            place = annotations.get("meta.helm.sh/release-namespace", "devalloc-system")
            raise NotInstalled(
                f"{title(one)} belongs to the Helm release {release} in namespace {place}: use helm upgrade {release} "
                f"-n {place}; to go on without Helm, helm uninstall {release} -n {place} first, which keeps the CRDs "
                "with all claims and machines"
            )


def install(client: Client, objects: Sequence[Object], say: Say, until: float, *, dry_run: bool = False) -> None:
    """Apply all in their order; says of each what became of it. CRDs are served before what comes after them.

    ``until``: of the monotonic clock. ``dry_run``: the API server says what would become of them, and keeps nothing.
    Raises NotInstalled; what was applied until then stays, and doing it again goes on.
    """
    crds: list[Object] = []
    for one in objects:
        if crds and one["kind"] != "CustomResourceDefinition":
            _wait_for_crds(client, crds, until)
            crds = []
        outcome, stored = _applied(client, one, dry_run=dry_run)
        say(f"{title(one)} {outcome}")
        crds += [stored] if one["kind"] == "CustomResourceDefinition" and not dry_run else []
    _wait_for_crds(client, crds, until)


def not_wanted(client: Client, objects: Iterable[Object], namespace: str) -> list[Object]:
    """What an earlier ``install`` applied and is no more among the objects: of an earlier version, or of a node that
    published otherwise. CRDs are not among it: claims would go with them. Raises NotInstalled."""
    wanted = {path_of(one) for one in objects}
    return [
        one
        for one in installed(client, namespace)
        if path_of(one) not in wanted and one["kind"] not in ("CustomResourceDefinition", "Namespace")
    ]


def installed(client: Client, namespace: str) -> Iterator[Object]:
    """What is there of us: what ``install`` applied, whichever version it was. In the reverse order of creation.
    Raises NotInstalled."""
    for api_version, kind, namespaced in _kinds():
        path = collection(api_version, kind, namespace if namespaced else None)
        listed = found(client, path, labelSelector="=".join(LABEL))
        for item in listed["items"] if listed else ():
            managers = {entry.get("manager") for entry in item["metadata"].get("managedFields", ())}
            if MANAGER in managers:
                yield {"apiVersion": api_version, "kind": kind, **item}


def delete(client: Client, one: Object, say: Say, *, dry_run: bool = False) -> None:
    """Raises NotInstalled."""
    delete_at(client, path_of(one), one, say, title(one), dry_run=dry_run)


def delete_at(client: Client, path: str, one: Object, say: Say, what: str, *, dry_run: bool = False) -> None:
    """Raises NotInstalled."""
    try:
        if not dry_run:
            client.delete(path, one["metadata"]["uid"])
    except ApiError as error:
        raise NotInstalled(f"{what} cannot be deleted: {error}") from None
    say(f"{what} deleted{DRY_RUN if dry_run else ''}")


def wait_until(true: Callable[[], bool], until: float) -> bool:
    """Ask again and again; False where it is not true in time."""
    while not true():
        if time.monotonic() > until:
            return False
        threading.Event().wait(PAUSE)
    return True


def found(client: Client, path: str, **params: str) -> Object | None:
    """The object or list; None where there is none, or nobody knows its kind. Raises NotInstalled."""
    try:
        return client.get(path, params)
    except ApiError as error:
        if error.status == 404:
            return None
        raise NotInstalled(str(error) if error.is_unreachable else f"{path} cannot be read: {error}") from None


def _kinds() -> Iterator[tuple[str, str, bool]]:
    """API version, kind and whether it is in a namespace, of all that is ever installed; last created first."""
    every = manifests(Options(version="any", service_monitor=True, resource_claims=True, permits=True))
    kinds = {(one["apiVersion"], one["kind"]): "namespace" in one["metadata"] for one in every}
    yield from ((*key, namespaced) for key, namespaced in reversed(kinds.items()))


def _applied(client: Client, one: Object, *, dry_run: bool) -> tuple[str, Object]:
    before = found(client, path_of(one))
    if dry_run and before is None:  # its namespace or its kind may not be there either
        return f"created{DRY_RUN}", one
    try:
        after = client.apply(path_of(one), one, MANAGER, {"dryRun": "All"} if dry_run else None)
    except ApiError as error:
        hint = ""
        if error.status == 403:
            hint = "; whoever installs needs the rights of a cluster's administrator"
        elif one["kind"] == "ServiceMonitor" and error.status == 404:
            hint = "; the Prometheus operator is not installed here"
        raise NotInstalled(f"{title(one)} cannot be applied: {error}{hint}") from None
    if before is None:
        return "created", after
    told, suffix = (_content(before), _content(after)), DRY_RUN if dry_run else ""
    if told[0] == told[1]:
        return f"unchanged{suffix}", after
    paths = list(_differing(*told)) if dry_run else []
    more = f" and {len(paths) - _PATHS} more" if len(paths) > _PATHS else ""
    return f"configured{suffix}" + (f": {', '.join(paths[:_PATHS])}{more}" if paths else ""), after


def _differing(before: object, after: object, path: str = "") -> Iterator[str]:
    """Paths of fields that differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from _differing(before.get(name), after.get(name), f"{path}.{name}" if path else str(name))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, pair in enumerate(zip(before, after, strict=True)):
            yield from _differing(*pair, f"{path}[{place}]")
    elif before != after:
        yield path


def _content(stored: Object) -> Object:
    metadata = {name: value for name, value in stored["metadata"].items() if name not in _SERVED}
    return {name: value for name, value in stored.items() if name != "status"} | {"metadata": metadata}


def _wait_for_crds(client: Client, crds: Iterable[Object], until: float) -> None:
    for crd in crds:
        spec = crd["spec"]
        served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"

        def is_served(crd: Object = crd, served: str = served) -> bool:
            now = found(client, path_of(crd)) or {}
            conditions = {each["type"]: each["status"] for each in now.get("status", {}).get("conditions", ())}
            return conditions.get("Established") == "True" and found(client, served, limit="1") is not None

        if not wait_until(is_served, until):
            raise NotInstalled(f"{title(crd)} is not served in time; kubectl describe crd {crd['metadata']['name']}")
