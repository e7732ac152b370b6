"""``devalloc install`` and ``uninstall``: devalloc on a Kubernetes cluster; ``crds``: its CustomResourceDefinitions, or
a JSON Schema for editors; ``kubeconfig``: for a node plugin that runs as a service of the host.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.command import BadInput, CommandFailed, parse_duration, verb
from devalloc.cli.render.output import open_display
from devalloc.cli.target import connect_as_admin, install_namespace_option, kubeconfig_option
from devalloc.cli.terminal import print_data, print_line, print_note
from devalloc.settings import parse_network
from devalloc_node.errors import NodeError

if TYPE_CHECKING:
    from devalloc.install.manifests import InstallOptions, Object


@verb("crds")
@click.option(
    "-d",
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write one file per kind to this folder instead of printing all.",
)
@click.option(
    "--json-schema",
    is_flag=True,
    help="Print one JSON Schema of all kinds, for editors, instead of CustomResourceDefinitions.",
)
def crds(directory: Path | None, json_schema: bool) -> int:
    """Print the CustomResourceDefinitions of all kinds, generated from the models.

    \b
    devalloc crds | kubectl apply -f -
    devalloc crds --json-schema > devalloc.schema.json

    Editors with the YAML language server then check manifests that begin with
    `# yaml-language-server: $schema=devalloc.schema.json`.
    """
    from devalloc.api import crds as definitions
    from devalloc.api import reference as editors

    files = {editors.FILE: editors.render()} if json_schema else definitions.render()
    if directory is None:
        print_data("---\n".join(text.removeprefix("---\n") for text in files.values()))
        return 0
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
        print_line(str(directory / name))
    return 0


@verb("kubeconfig")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--node-name", required=True, metavar="NAME", help="The node on which this pod runs.")
@click.option(
    "--account-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
    metavar="DIR",
    help="Folder of the pod's service account token (token) and the cluster's certificate (ca.crt).",
)
def kubeconfig(folder: Path, node_name: str, account_dir: Path) -> int:
    """Write and renew a kubeconfig in FOLDER for a node plugin that runs outside pods, until Ctrl-C or SIGTERM.

    FOLDER gets the kubeconfig and this pod's token, which is written again whenever the kubelet replaces it. The
    address of the API server comes from KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. At the end the token is
    removed. The DaemonSet devalloc-node-host runs this command.

    \b
    devalloc kubeconfig /var/lib/devalloc/cluster --node-name node-a
    """
    from devalloc.api.fields import is_subdomain_name
    from devalloc_node.kube.credentials import ClusterCredentials

    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port.isdecimal():
        raise BadInput("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set; run this command in a pod")
    if not is_subdomain_name(node_name):
        raise BadInput(f"--node-name: {node_name!r} is not a valid name of a node")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    try:
        with open_display() as display:
            ClusterCredentials(folder.absolute(), account_dir, server, node_name).keep(stop, display.say)
    except NodeError as error:
        raise CommandFailed(error.message) from error
    return 0


@verb("uninstall")
@kubeconfig_option
@install_namespace_option
@click.option(
    "--crds", is_flag=True, help="Also delete the CRDs, and with them every claim, machine, pool, class and config."
)
@click.option(
    "--force",
    is_flag=True,
    help="Uninstall even if devices are in use: they stay as they are on their nodes, and machines keep running.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted, or what is in use.")
@click.option(
    "--timeout",
    type=parse_duration,
    default="5m",
    metavar="DURATION",
    help="How long to wait for nodes to release devices, and for pods to end.",
)
def uninstall(kubeconfig: Path | None, namespace: str, crds: bool, force: bool, dry_run: bool, timeout: float) -> int:
    """Remove devalloc from a Kubernetes cluster, if `devalloc install` or `kubectl apply` installed it.

    Remove a Helm release with `helm uninstall` instead.

    Refuses, and deletes nothing, while a node has devices prepared for a claim, a machine or a pod: without devalloc on
    the node, nothing would release them. Claims, machines, pools and classes stay, with their CRDs, for a later
    installation; --crds deletes them first, while nodes can still release them, and refuses while pods have devices.
    Journals and machine images stay on the nodes, in /var/lib/devalloc.
    """
    from devalloc.install.apply import NotInstalled
    from devalloc.install.remove import uninstall

    client = connect_as_admin(kubeconfig)
    try:
        until = time.monotonic() + timeout
        notes = uninstall(client, namespace, print_line, until, crds=crds, force=force, dry_run=dry_run)
    except NotInstalled as error:
        raise CommandFailed(str(error)) from error
    for note in notes:
        print_note(note)
    return 0


_PUBLISH = ("slices", "pools", "both")
_NEEDED_BY_AGENTS = {"neon": True, "permits": True}
_INSTALL_PARTS = ("namespace", "crds", "rbac", "policies", "network", "controller", "node", "monitoring")


@verb("install")
@kubeconfig_option
@install_namespace_option
@click.option(
    "--dry-run",
    type=click.Choice(["server", "client"]),
    is_flag=False,
    flag_value="server",
    help="Change nothing: compare with the cluster, and show what would happen to each object. --dry-run=client prints "
    "the manifests as YAML and needs no cluster.",
)
@click.option("--reset", is_flag=True, help="Ignore the options of the last installation.")
@click.option(
    "--force", is_flag=True, help="Install even if that removes a part on which claims, pods or machines depend."
)
@click.option(
    "--publish",
    type=click.Choice(_PUBLISH),
    help="How nodes publish their devices. slices: as ResourceSlices for pods, without a controller; pools: as "
    "DevicePools for VirtualMachines; both: by the node's label devalloc.io/publish (pools, host, none, otherwise "
    "slices) [default: both].",
)
@click.option(
    "--image-prefix",
    metavar="PREFIX",
    help="Prefix of the images devalloc-controller and devalloc-node, such as registry.example.com/team/. For images "
    "of `make oci-images` that you loaded onto the nodes: localhost/. The first installation needs it.",
)
@click.option(
    "--version", metavar="TAG", help="Tag of the images, for this installation only [default: this devalloc's version]."
)
@click.option("--kubelet-dir", metavar="DIR", help="The kubelets' --root-dir [default: /var/lib/kubelet].")
@click.option(
    "--service-monitor/--no-service-monitor",
    default=None,
    help="Also create a ServiceMonitor for the Prometheus operator.",
)
@click.option(
    "--runbooks",
    metavar="URL",
    help="Also create the alerts for the Prometheus operator. Each links to its section of the page of operations at "
    "this address, such as https://docs.example.com/devalloc/operations.html. Empty: no alerts any more.",
)
@click.option(
    "--resource-claims/--no-resource-claims",
    default=None,
    help="Let the controller allocate ResourceClaims with the label devalloc.io/allocator=devalloc, all together, from "
    "nodes with the label devalloc.io/publish=set-aside.",
)
@click.option(
    "--adoption/--no-adoption",
    default=None,
    help="Also install what `devalloc adopt` needs to allocate devices of other drivers; needs --resource-claims and "
    "Kubernetes 1.37.",
)
@click.option(
    "--permits/--no-permits",
    default=None,
    help="Run the permit server for machines that scale, at port 10299 of the controller's pods; nodes with --scaling "
    "use it.",
)
@click.option(
    "--neon/--no-neon",
    default=None,
    help="Let the controller read NeonVM's machines (vm.neon.tech) and their pods; with --permits they count on their "
    "nodes and get permits.",
)
@click.option(
    "--neon-agents",
    metavar="CIDR...",
    help="Networks of Neon's agents, separated by blanks: run a proxy in kube-system that they find and ask, with "
    "--permits and --neon. Everything that can connect from there gets permits. Empty: no proxy any more.",
)
@click.option(
    "--neon-scheduler",
    metavar="NAME",
    help="Name by which Neon's agents find the proxy: their scheduler.schedulerName, and spec.schedulerName of their "
    "machines. No other pod of kube-system may have it as its label `name` [default: devalloc].",
)
@click.option(
    "--fencing-secret",
    metavar="NAME",
    help="Let the controller power off lost nodes with the program in this Secret of the installation's namespace (key "
    "power-off), and state that they are off. An empty NAME switches it off again.",
)
@click.option(
    "--machines-in-edit/--no-machines-in-edit",
    default=None,
    help="Let everyone who may edit a namespace also create VirtualMachines there; otherwise the ClusterRole "
    "devalloc-machines is needed.",
)
@click.option(
    "--workers-only/--no-workers-only",
    default=None,
    help="Run no privileged pods on control-plane nodes, and do not publish their devices.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(_INSTALL_PARTS),
    help="Install only this part, and delete nothing of earlier installations. Repeatable.",
)
@click.option(
    "--timeout",
    type=parse_duration,
    default="2m",
    metavar="DURATION",
    help="How long to wait until the CRDs are served.",
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
    """Install devalloc on a Kubernetes cluster, or upgrade it to this version.

    Reports for each object whether it was created, configured or unchanged (server-side apply, field manager
    `devalloc`). Deletes objects that this version no longer has, except CRDs; refuses to do so while claims, pods or
    machines depend on them. Installing twice changes nothing.

    Options that you do not give are taken from the last installation (except --version); the cluster stores them.
    --reset ignores them; --no-permits and the like switch one off.

    \b
    devalloc install --image-prefix registry.example.com/devalloc/
    devalloc install --dry-run
    devalloc install --image-prefix localhost/ --dry-run=client | less
    """
    given = {name: value for name, value in chosen.items() if value is not None}
    if dry_run == "client":
        from devalloc.api.yaml_reader import dump_yaml

        objects = _manifests(given, namespace, only)
        _refuse_foreign_images(objects)
        print_data(dump_yaml(objects))
        return 0
    from devalloc.install import apply, upgrade

    # Reports invalid options before it connects to the cluster, where the last installation may have the others.
    needed: dict[str, Any] = dict(_NEEDED_BY_AGENTS) if given.get("neon_agents") else {}
    needed |= {"resource_claims": True} if given.get("adoption") else {}
    _manifests({**needed, **given}, namespace, only)
    client = connect_as_admin(kubeconfig)
    try:
        previous: dict[str, Any] = {}
        if set(only) != {"crds"}:
            apply.refuse_elsewhere(client, namespace)
            previous = {} if reset else upgrade.last_options(client, namespace)
        reused = {name: value for name, value in previous.items() if name not in given}
        if reused:
            print_note(f"as in the last installation: {_as_options(reused)} (--reset ignores them)")
        objects = _manifests(previous | given, namespace, only)
        _refuse_foreign_images(objects)
        apply.refuse_helm(client, objects)
        apply.refuse_unserved_parameters(client, objects)
        going = [] if only else apply.obsolete_objects(client, objects, namespace)
        if not force:
            upgrade.refuse_while_in_use(client, objects, going)
        noted = upgrade.recorded_options(client) if only else None
        if not only or noted:
            objects = upgrade.with_recorded_options(objects, _options(previous | given, namespace), noted)
        apply.install_objects(client, objects, print_line, time.monotonic() + timeout, dry_run=dry_run is not None)
        for one in going:
            apply.delete_object(client, one, print_line, dry_run=dry_run is not None)
    except apply.NotInstalled as error:
        raise CommandFailed(str(error)) from error
    if not (only or dry_run):
        options = _options(previous | given, namespace)
        source = f"; images come from {options.full_prefix}" if options.image_prefix else ""
        print_note(f"next: kubectl -n {namespace} get pods{source}")
    return 0


def _options(chosen: Mapping[str, Any], namespace: str) -> InstallOptions:
    from devalloc.install.manifests import InstallOptions

    return InstallOptions(namespace=namespace, **chosen)


def _manifests(chosen: Mapping[str, Any], namespace: str, only: tuple[str, ...]) -> list[Object]:
    """Raises BadInput."""
    from devalloc.install.manifests import render_manifests

    try:
        networks = [parse_network(text) for text in chosen.get("neon_agents", "").split()]
    except ValueError as error:
        raise BadInput(f"--neon-agents {error}") from error
    if any(network.prefixlen == 0 for network in networks):
        raise BadInput("--neon-agents would let everyone in: name the networks of the agents")
    try:
        return render_manifests(_options(chosen, namespace), only)
    except ValueError as error:
        raise BadInput(str(error)) from error


def _refuse_foreign_images(objects: list[Object]) -> None:
    """Refuse to run images that anyone could have published. Raises BadInput."""
    from devalloc.install.manifests import images_without_owner

    if images_without_owner(objects):
        raise BadInput(
            "name where your images are: --image-prefix registry.example.com/team/; localhost/ if you loaded them onto "
            "the nodes. devalloc publishes none yet (docs/install.md), and its pods on nodes are privileged"
        )


def _as_options(chosen: Mapping[str, Any]) -> str:
    """The options as on a command line."""
    words = []
    for name, value in sorted(chosen.items()):
        option = name.replace("_", "-")
        words.append(f"--{option if value else f'no-{option}'}" if isinstance(value, bool) else f"--{option} {value}")
    return " ".join(words)
