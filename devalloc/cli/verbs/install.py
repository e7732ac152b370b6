"""``devalloc install`` and ``uninstall``: devalloc on a Kubernetes cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devalloc.api.yaml_reader import dump_yaml
from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.target import connect_as_admin
from devalloc.cli.terminal import print_data, print_line, print_note
from devalloc.install.manifests import InstallOptions, Object, images_without_owner, render_manifests
from devalloc.settings import parse_network


def uninstall(kubeconfig: Path | None, namespace: str, crds: bool, force: bool, dry_run: bool, timeout: float) -> int:
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


_NEEDED_BY_AGENTS = {"neon": True, "permits": True}


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
    given = {name: value for name, value in chosen.items() if value is not None}
    if dry_run == "client":
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
    return InstallOptions(namespace=namespace, **chosen)


def _manifests(chosen: Mapping[str, Any], namespace: str, only: tuple[str, ...]) -> list[Object]:
    """Raises BadInput."""
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
