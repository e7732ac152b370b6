"""``devalloc install``: onto a Kubernetes cluster."""

from __future__ import annotations

import time
from pathlib import Path

import click

from devalloc.cli.clusters import administered, install_namespace_option, kubeconfig_option
from devalloc.cli.options import duration
from devalloc.cli.verb import BadInput, Failed, verb

_PUBLISH = ("slices", "pools", "both")
_PARTS = ("namespace", "crds", "rbac", "policies", "network", "controller", "node", "monitoring")


@verb("install")
@kubeconfig_option
@install_namespace_option
@click.option("--dry-run", is_flag=True, help="Print the manifests as YAML; no cluster is asked.")
@click.option(
    "--publish",
    type=click.Choice(_PUBLISH),
    default="both",
    help="What nodes publish their devices as: ResourceSlices for pods, without a controller; DevicePools for "
    "VirtualMachines; or by the node's label devalloc.io/publish: pools, host, none, or else slices.",
)
@click.option(
    "--image-prefix",
    default="",
    metavar="PREFIX",
    help="What stands before devalloc-controller and devalloc-node, such as registry.example.com/team/.",
)
@click.option(
    "--version", "tag", default="", metavar="TAG", help="The tag of the images [default: that of this devalloc]."
)
@click.option("--kubelet-dir", default="/var/lib/kubelet", metavar="DIR", help="The kubelets' --root-dir.")
@click.option("--service-monitor", is_flag=True, help="A ServiceMonitor for the Prometheus operator, too.")
@click.option(
    "--resource-claims",
    is_flag=True,
    help="The controller allocates ResourceClaims with the label devalloc.io/allocator=devalloc, jointly, from nodes "
    "with the label devalloc.io/publish=set-aside.",
)
@click.option(
    "--permits",
    is_flag=True,
    help="The controller gives permits to machines that are scaled, at port 10299 of its pods; nodes ask there "
    "(devalloc node --scaling).",
)
@click.option(
    "--machines-in-edit",
    is_flag=True,
    help="Who may edit a namespace makes VirtualMachines there, too; otherwise those who have the ClusterRole "
    "devalloc-machines.",
)
@click.option(
    "--workers-only",
    is_flag=True,
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
    dry_run: bool,
    publish: str,
    image_prefix: str,
    tag: str,
    kubelet_dir: str,
    service_monitor: bool,
    resource_claims: bool,
    permits: bool,
    machines_in_edit: bool,
    workers_only: bool,
    only: tuple[str, ...],
    timeout: float,
) -> int:
    """Install devalloc on a Kubernetes cluster, or bring what is there to this version.

    Says of each object whether it was created, configured or unchanged (server-side apply, field manager `devalloc`).
    What an earlier installation had and this one has not is deleted, but for CRDs. Doing it twice changes nothing.

    \b
    devalloc install --dry-run | less
    devalloc install --image-prefix registry.example.com/devalloc/
    """
    from devalloc.api.yamldump import dump_yaml
    from devalloc.install.manifests import PUBLISH, Options, manifests

    (chosen,) = (each for each in PUBLISH if each == publish)
    options = Options(
        chosen,
        image_prefix,
        tag,
        namespace,
        kubelet_dir,
        service_monitor,
        resource_claims,
        permits,
        machines_in_edit,
        workers_only,
    )
    try:
        objects = manifests(options, only)
    except ValueError as error:
        raise BadInput(str(error)) from error
    if dry_run:
        click.echo(dump_yaml(objects), nl=False)
        return 0
    from devalloc.install import apply

    client = administered(kubeconfig)
    try:
        if set(only) != {"crds"}:
            apply.refuse_elsewhere(client, namespace)
        apply.install(client, objects, click.echo, time.monotonic() + timeout)
        if not only:
            apply.prune(client, objects, namespace, click.echo)
    except apply.NotInstalled as error:
        raise Failed(str(error)) from error
    return 0
