"""Shell completion: kinds, and names of the store's objects."""

from __future__ import annotations

from contextlib import suppress

import click

from devalloc.api.kinds import API_KINDS
from devalloc.cli.node_objects import is_nodes, node_objects
from devalloc.cli.object_names import kind_of
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.target import open_target
from devalloc.store.errors import StoreError


def complete_objects(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """KIND first, then names of that kind; KIND/NAME in one word too."""
    written = ctx.params.get(param.name or "") or ()
    kind, slash, _ = incomplete.partition("/")
    if slash:
        return [f"{kind}/{name}" for name in _object_names(ctx, kind) if f"{kind}/{name}".startswith(incomplete)]
    if written:
        return [name for name in _object_names(ctx, written[0]) if name.startswith(incomplete)]
    words = [word for each in API_KINDS.values() for word in (each.plural.removeprefix("device"), *each.short_names)]
    words += ["vms", "quota"]
    if ctx.info_name == "get":  # the other verbs do not take them
        words += ["nodes", "all"]
    return [word for word in words if word.startswith(incomplete)]


def complete_claims(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of claims."""
    return [name for name in _object_names(ctx, "claims") if name.startswith(incomplete)]


def _object_names(ctx: click.Context, word: str) -> list[str]:
    """The names of a kind; none if the store or the kind does not exist, because completion must not fail."""
    param = ctx.params.get
    place = StoreTarget(param("store"), param("kubeconfig"), bool(param("in_cluster")))
    with suppress(click.ClickException, StoreError), open_target(place) as store:
        if ctx.info_name == "get" and is_nodes((word,)):
            return [obj["metadata"]["name"] for obj in node_objects(store)]
        kind = kind_of(word)
        within = ctx.params.get("namespace") or "default"
        if ctx.params.get("all_namespaces") or not kind.namespaced:
            within = None
        return [obj["metadata"]["name"] for obj in store.list(kind.kind, within).objects]
    return []
