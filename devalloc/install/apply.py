"""Apply manifests to a cluster, and find what earlier versions left there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from devalloc.api.adopted_pools import POLICY, RULES
from devalloc.install.manifests import (
    LABEL,
    NAMESPACE,
    Object,
    collection_path,
    every_option,
    object_path,
    object_title,
    render_manifests,
)
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client

Say = Callable[[str], None]
MANAGER = "devalloc"
"""Field manager for server-side apply."""
PAUSE_SECONDS = 0.2
DRY_RUN = " (dry run)"
"""Suffix of the results of a dry run."""
_PATHS = 3
"""How many changed fields a message names."""
_BINDING = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}
_BINDINGS = ("devalloc-controller", "devalloc-node")
"""Their subjects name the namespace of devalloc, however it was installed."""
_SERVED = {"resourceVersion", "managedFields", "generation", "creationTimestamp", "uid"}


class NotInstalled(Exception):
    """The installation failed; the text says why, and what to do."""


def refuse_elsewhere(client: Client, namespace: str) -> None:
    """Raises NotInstalled if devalloc is installed in another namespace: a cluster has its roles, bindings and policies
    only once, and a second installation would take them over."""
    for name in _BINDINGS:
        binding = get_or_none(client, object_path({**_BINDING, "metadata": {"name": name}})) or {}
        for subject in binding.get("subjects", ()):
            if (other := subject.get("namespace")) not in (None, namespace):
                raise NotInstalled(
                    f"devalloc is already installed in namespace {other}, and a cluster can have only one: use "
                    f"--namespace {other}, or uninstall it there first"
                )


def refuse_helm(client: Client, objects: Iterable[Object]) -> None:
    """Raises NotInstalled if a Helm release owns one of the objects: two owners would undo each other's changes, and
    the next ``helm upgrade`` would fail with conflicts."""
    stored = ((one, get_or_none(client, object_path(one)) or {"metadata": {}}) for one in objects)
    if owned := _owned_by_helm(client, ({**one, "metadata": there["metadata"]} for one, there in stored)):
        release, place = _helm_release(owned)
        raise NotInstalled(
            f"{_title_with_release(owned)}: use helm upgrade {release} -n {place}; to continue without Helm, first run "
            f"helm uninstall {release} -n {place}, which keeps the CRDs with all claims and machines"
        )


def refuse_uninstall_of_helm(client: Client, there: Iterable[Object]) -> None:
    """Raises NotInstalled if a Helm release owns one of the stored objects: Helm would have a release without them."""
    if owned := _owned_by_helm(client, there):
        release, place = _helm_release(owned)
        raise NotInstalled(
            f"{_title_with_release(owned)}: use helm uninstall {release} -n {place}; devalloc uninstall --crds then "
            "deletes the CRDs, which Helm keeps"
        )


def _owned_by_helm(client: Client, there: Iterable[Object]) -> Object | None:
    """The first of the stored objects that belongs to a Helm release. Those that Helm leaves when it deletes a release
    still name it."""
    binding = {**_BINDING, "metadata": {"name": _BINDINGS[-1]}}
    for one in filter(_names_helm, there):
        if not stays_installed(one) or _names_helm(get_or_none(client, object_path(binding)) or binding):
            return one
    return None


def stays_installed(one: Object) -> bool:
    """Whether an upgrade, and Helm, never delete the object: with a CRD its claims would go, and API servers need that
    policy for good (``deploy/adoption``)."""
    return bool(one["kind"] == "CustomResourceDefinition" or one["metadata"].get("name") == POLICY)


def _names_helm(one: Object) -> bool:
    return bool(one["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") == "Helm")


def _helm_release(one: Object) -> tuple[str, str]:
    """The release of an object, and its namespace."""
    annotations = one["metadata"].get("annotations", {})
    release = annotations.get("meta.helm.sh/release-name", "devalloc")
    return release, annotations.get("meta.helm.sh/release-namespace", NAMESPACE)


def _title_with_release(one: Object) -> str:
    release, place = _helm_release(one)
    return f"{object_title(one)} belongs to the Helm release {release} in namespace {place}"


def refuse_unserved_parameters(client: Client, objects: Iterable[Object]) -> None:
    """Raises NotInstalled if the cluster has no DeviceTaintRules, which are the parameters of a policy: an API server
    refuses all that a policy is about whose parameters it does not know, here every allocation of a ResourceClaim."""
    if any(one["metadata"]["name"] == POLICY for one in objects) and get_or_none(client, RULES, limit="1") is None:
        raise NotInstalled(
            "--adoption needs DeviceTaintRules of resource.k8s.io/v1, which Kubernetes serves since 1.37: leave it "
            "out, or use --no-adoption"
        )


def install_objects(
    client: Client, objects: Sequence[Object], say: Say, until: float, *, dry_run: bool = False
) -> None:
    """Apply all objects in their order, and report the result of each. Waits until CRDs are served before it continues.

    ``until``: deadline on the monotonic clock. ``dry_run``: the API server only computes the results. Raises
    NotInstalled; objects that were already applied stay, and a second call continues.
    """
    crds: list[Object] = []
    for one in objects:
        if crds and one["kind"] != "CustomResourceDefinition":
            _wait_for_crds(client, crds, until)
            crds = []
        outcome, stored = _apply_object(client, one, dry_run=dry_run)
        say(f"{object_title(one)} {outcome}")
        crds += [stored] if one["kind"] == "CustomResourceDefinition" and not dry_run else []
    _wait_for_crds(client, crds, until)


def obsolete_objects(client: Client, objects: Iterable[Object], namespace: str) -> list[Object]:
    """Objects of an earlier ``install_objects`` that are no longer wanted, because the version or the way to publish
    has changed. Never CRDs, because claims would be deleted with them, nor the policy that API servers need for good
    (``deploy/adoption``). Raises NotInstalled."""
    wanted = {object_path(one) for one in objects}
    return [
        one
        for one in installed_objects(client, namespace)
        if object_path(one) not in wanted and one["kind"] != "Namespace" and not stays_installed(one)
    ]


def installed_objects(client: Client, namespace: str) -> Iterator[Object]:
    """The objects that ``install_objects`` of any version applied, the last one first. Raises NotInstalled."""
    for api_version, kind, where in _installed_kinds():
        path = collection_path(api_version, kind, namespace if where == NAMESPACE else where)
        listed = get_or_none(client, path, labelSelector="=".join(LABEL))
        for item in listed["items"] if listed else ():
            managers = {entry.get("manager") for entry in item["metadata"].get("managedFields", ())}
            if MANAGER in managers:
                yield {"apiVersion": api_version, "kind": kind, **item}


def delete_object(client: Client, one: Object, say: Say, *, dry_run: bool = False) -> None:
    """Raises NotInstalled."""
    delete_path(client, object_path(one), one, say, object_title(one), dry_run=dry_run)


def delete_path(client: Client, path: str, one: Object, say: Say, what: str, *, dry_run: bool = False) -> None:
    """Raises NotInstalled."""
    try:
        if not dry_run:
            client.delete(path, one["metadata"]["uid"])
    except ApiError as error:
        raise NotInstalled(f"cannot delete {what}: {error}") from None
    say(f"{what} deleted{DRY_RUN if dry_run else ''}")


def wait_until(true: Callable[[], bool], until: float) -> bool:
    """Poll until it is true; False if the time is up."""
    while not true():
        if time.monotonic() > until:
            return False
        threading.Event().wait(PAUSE_SECONDS)
    return True


def get_or_none(client: Client, path: str, **params: str) -> Object | None:
    """The object or list; None if it or its kind does not exist. Raises NotInstalled."""
    try:
        return client.get(path, params)
    except ApiError as error:
        if error.status == 404:
            return None
        raise NotInstalled(str(error) if error.is_unreachable else f"cannot read {path}: {error}") from None


def _installed_kinds() -> Iterator[tuple[str, str, str | None]]:
    """API version, kind and namespace of everything that can be installed, as by default; last created first."""
    every = render_manifests(every_option())
    yield from reversed(
        dict.fromkeys((one["apiVersion"], one["kind"], one["metadata"].get("namespace")) for one in every)
    )


def _apply_object(client: Client, one: Object, *, dry_run: bool) -> tuple[str, Object]:
    before = get_or_none(client, object_path(one))
    if dry_run and before is None:  # its namespace or kind may not exist yet, either
        return f"created{DRY_RUN}", one
    try:
        after = client.apply(object_path(one), one, MANAGER, {"dryRun": "All"} if dry_run else None)
    except ApiError as error:
        hint = ""
        if error.status == 403:
            hint = "; the installation needs cluster administrator rights"
        elif one["kind"] in ("ServiceMonitor", "PrometheusRule") and error.status == 404:
            hint = "; the Prometheus operator is not installed"
        raise NotInstalled(f"cannot apply {object_title(one)}: {error}{hint}") from None
    if before is None:
        return "created", after
    contents, suffix = (_content(before), _content(after)), DRY_RUN if dry_run else ""
    if contents[0] == contents[1]:
        return f"unchanged{suffix}", after
    paths = list(_differing_paths(*contents)) if dry_run else []
    more = f" and {len(paths) - _PATHS} more" if len(paths) > _PATHS else ""
    return f"configured{suffix}" + (f": {', '.join(paths[:_PATHS])}{more}" if paths else ""), after


def _differing_paths(before: object, after: object, path: str = "") -> Iterator[str]:
    """Paths of fields that differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from _differing_paths(before.get(name), after.get(name), f"{path}.{name}" if path else str(name))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, pair in enumerate(zip(before, after, strict=True)):
            yield from _differing_paths(*pair, f"{path}[{place}]")
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
            now = get_or_none(client, object_path(crd)) or {}
            conditions = {each["type"]: each["status"] for each in now.get("status", {}).get("conditions", ())}
            return conditions.get("Established") == "True" and get_or_none(client, served, limit="1") is not None

        if not wait_until(is_served, until):
            raise NotInstalled(
                f"{object_title(crd)} is not served in time; see: kubectl describe crd {crd['metadata']['name']}"
            )
