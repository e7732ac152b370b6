"""Verbs that set up a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from devalloc.cli.command import parse_duration, runs, verb
from devalloc.cli.options.places import install_namespace_option, kubeconfig_option


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
@runs("devalloc.cli.verbs.crds")
def crds() -> None:
    """Print the CustomResourceDefinitions of all kinds, generated from the models.

    \b
    devalloc crds | kubectl apply -f -
    devalloc crds --json-schema > devalloc.schema.json

    Editors with the YAML language server then check manifests that begin with
    `# yaml-language-server: $schema=devalloc.schema.json`.
    """


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
@runs("devalloc.cli.verbs.kubeconfig")
def kubeconfig() -> None:
    """Write and renew a kubeconfig in FOLDER for a node plugin that runs outside pods, until Ctrl-C or SIGTERM.

    FOLDER gets the kubeconfig and this pod's token, which is written again whenever the kubelet replaces it. The
    address of the API server comes from KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. At the end the token is
    removed. The DaemonSet devalloc-node-host runs this command.

    \b
    devalloc kubeconfig /var/lib/devalloc/cluster --node-name node-a
    """


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
@runs("devalloc.cli.verbs.install")
def uninstall() -> None:
    """Remove devalloc from a Kubernetes cluster, if `devalloc install` or `kubectl apply` installed it.

    Remove a Helm release with `helm uninstall` instead.

    Refuses, and deletes nothing, while a node has devices prepared for a claim, a machine or a pod: without devalloc on
    the node, nothing would release them. Claims, machines, pools and classes stay, with their CRDs, for a later
    installation; --crds deletes them first, while nodes can still release them, and refuses while pods have devices.
    Journals and machine images stay on the nodes, in /var/lib/devalloc.
    """


_PUBLISH = ("slices", "pools", "both")


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
    help="How nodes publish devices. slices: as ResourceSlices for pods, without a controller; pools: as "
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
@runs("devalloc.cli.verbs.install")
def install() -> None:
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


_pools_option = click.option(
    "--pools",
    multiple=True,
    metavar="NAME...",
    help="Only these pools of the driver; most drivers name them after nodes. Default: all pools, also later ones.",
)


_dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done and what to know; do nothing.")


_timeout_option = click.option(
    "--timeout", type=parse_duration, default="60s", metavar="DURATION", help="How long to wait for the controller."
)


@verb("adopt")
@click.argument("names", nargs=-1, metavar="[driver/NAME]")
@_pools_option
@_dry_run_option
@_timeout_option
@kubeconfig_option
@install_namespace_option
@runs("devalloc.cli.verbs.adopt")
def adopt() -> None:
    """Let devalloc's controller allocate the devices of another DRA driver. Without a name: list what is adopted.

    kube-scheduler no longer allocates them. Claims get them by the label devalloc.io/allocator=devalloc, on the claim,
    on its template (spec.metadata.labels) or on the namespace. Claims that have devices keep them. Nothing of the
    driver changes, and pods run as before.

    Needs Kubernetes 1.37, and `devalloc install --resource-claims --adoption`.

    \b
    devalloc adopt driver/gpu.nvidia.com --dry-run
    devalloc adopt driver/gpu.nvidia.com --pools node-a node-b
    """


@verb("unadopt")
@click.argument("names", nargs=-1, required=True, metavar="driver/NAME")
@_pools_option
@_dry_run_option
@click.option(
    "--force",
    is_flag=True,
    help="Do not wait for the controller, because it is gone. If it still runs, a device can be allocated twice.",
)
@_timeout_option
@kubeconfig_option
@install_namespace_option
@runs("devalloc.cli.verbs.adopt")
def unadopt() -> None:
    """Leave the devices of a driver to kube-scheduler again. Claims that have devices keep them.

    The controller stops at once, and kube-scheduler begins about ten seconds later. Claims with the label that wait
    then have the reason NotAdopted: remove their label, and kube-scheduler allocates them.

    \b
    devalloc unadopt driver/gpu.nvidia.com
    """
