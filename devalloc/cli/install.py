"""``devalloc install``: onto a Kubernetes cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.clusters import administered, install_namespace_option, kubeconfig_option
from devalloc.cli.options import duration
from devalloc.cli.verb import BadInput, Failed, verb

if TYPE_CHECKING:
    from devalloc.install.kustomize import Object
    from devalloc.install.manifests import Options

_PUBLISH = ("slices", "pools", "both")
_PARTS = ("namespace", "crds", "rbac", "policies", "network", "controller", "node", "monitoring")


@verb("install")
@kubeconfig_option
@install_namespace_option
@click.option(
    "--dry-run",
    type=click.Choice(["server", "client"]),
    is_flag=False,
    flag_value="server",
    help="Change nothing. Compare with the cluster, and say what would become of each object; --dry-run=client prints "
    "the manifests as YAML, and asks no cluster.",
)
@click.option("--reset", is_flag=True, help="Do not reuse the options of the last installation.")
@click.option("--force", is_flag=True, help="Also where a part would go that claims, pods or machines depend on.")
@click.option(
    "--publish",
    type=click.Choice(_PUBLISH),
    help="What nodes publish their devices as: ResourceSlices for pods, without a controller; DevicePools for "
    "VirtualMachines; or by the node's label devalloc.io/publish: pools, host, none, or else slices [default: both].",
)
@click.option(
    "--image-prefix",
    metavar="PREFIX",
    help="What stands before devalloc-controller and devalloc-node, such as registry.example.com/team/.",
)
@click.option(
    "--version", metavar="TAG", help="The tag of the images, of this installation alone [default: this devalloc's]."
)
@click.option("--kubelet-dir", metavar="DIR", help="The kubelets' --root-dir [default: /var/lib/kubelet].")
@click.option(
    "--service-monitor/--no-service-monitor", default=None, help="A ServiceMonitor for the Prometheus operator, too."
)
@click.option(
    "--resource-claims/--no-resource-claims",
    default=None,
    help="The controller allocates ResourceClaims with the label devalloc.io/allocator=devalloc, jointly, from nodes "
    "with the label devalloc.io/publish=set-aside.",
)
@click.option(
    "--permits/--no-permits",
    default=None,
    help="The controller gives permits to machines that are scaled, at port 10299 of its pods; nodes ask there "
    "(devalloc node --scaling).",
)
@click.option(
    "--machines-in-edit/--no-machines-in-edit",
    default=None,
    help="Who may edit a namespace makes VirtualMachines there, too; otherwise those who have the ClusterRole "
    "devalloc-machines.",
)
@click.option(
    "--workers-only/--no-workers-only",
    default=None,
    help="Nothing on nodes of the control plane: no privileged pod runs there, and their devices are not published.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(_PARTS),
    help="Only this part, and delete nothing of earlier installations; may be given several times.",
)
@click.option(
    "--timeout", type=duration, default="2m", metavar="DURATION", help="How long is waited for CRDs to be served."
)
def install(
    kubeconfig: Path | None,
    namespace: str,
    dry_run: str | None,
    reset: bool,
    force: bool,
    only: tuple[str, ...],
    timeout: float,
    **chosen: str | bool | None,
) -> int:
    """Install devalloc on a Kubernetes cluster, or bring what is there to this version.

    Says of each object whether it was created, configured or unchanged (server-side apply, field manager `devalloc`).
    What an earlier installation had and this one has not is deleted, but for CRDs, and refused while somebody depends
    on it. Doing it twice changes nothing.

    Options that are not given are those of the last installation (all but --version), which the cluster keeps; --reset
    forgets them, --no-permits and the like switch one off.

    \b
    devalloc install --image-prefix registry.example.com/devalloc/
    devalloc install --dry-run
    devalloc install --dry-run=client | less
    """
    given = {name: value for name, value in chosen.items() if value is not None}
    if dry_run == "client":
        from devalloc.api.yamldump import dump_yaml

        click.echo(dump_yaml(_manifests(given, namespace, only)), nl=False)
        return 0
    from devalloc.install import apply, upgrade

    _manifests(given, namespace, only)  # what makes no sense is told before a cluster is asked
    client = administered(kubeconfig)
    try:
        kept: dict[str, Any] = {}
        if set(only) != {"crds"}:
            apply.refuse_elsewhere(client, namespace)
            kept = {} if reset else upgrade.last_options(client, namespace)
        reused = {name: value for name, value in kept.items() if name not in given}
        if reused:
            click.echo(f"as in the last installation: {_as_options(reused)} (--reset: none of them)", err=True)
        objects = _manifests(kept | given, namespace, only)
        apply.refuse_helm(client, objects)
        going = [] if only else apply.not_wanted(client, objects, namespace)
        if not force:
            upgrade.refuse_held(client, objects, going)
        noted = upgrade.record(client) if only else None
        if not only or noted:
            objects = upgrade.recorded(objects, _options(kept | given, namespace), noted)
        apply.install(client, objects, click.echo, time.monotonic() + timeout, dry_run=dry_run is not None)
        for one in going:
            apply.delete(client, one, click.echo, dry_run=dry_run is not None)
    except apply.NotInstalled as error:
        raise Failed(str(error)) from error
    if not (only or dry_run):
        prefix = (kept | given).get("image_prefix")
        source = f"images come from {prefix}" if prefix else "images come from docker.io/library (see --image-prefix)"
        click.echo(f"next: kubectl -n {namespace} get pods; {source}", err=True)
    return 0


def _options(chosen: Mapping[str, Any], namespace: str) -> Options:
    from devalloc.install.manifests import Options

    return Options(namespace=namespace, **chosen)


def _manifests(chosen: Mapping[str, Any], namespace: str, only: tuple[str, ...]) -> list[Object]:
    """Raises BadInput."""
    from devalloc.install.manifests import manifests

    try:
        return manifests(_options(chosen, namespace), only)
    except ValueError as error:
        raise BadInput(str(error)) from error


def _as_options(chosen: Mapping[str, Any]) -> str:
    """As somebody would type them."""
    words = []
    for name, value in sorted(chosen.items()):
        option = name.replace("_", "-")
        words.append(f"--{option if value else f'no-{option}'}" if isinstance(value, bool) else f"--{option} {value}")
    return " ".join(words)
