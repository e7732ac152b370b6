"""``devalloc capacity``: how many more claims like this one fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from devalloc.cli.options import files_option, namespace_option, output_option, store_option
from devalloc.cli.verb import BadInput, Failed, verb

Object = dict[str, Any]


@verb("capacity")
@click.argument("name", required=False)
@files_option(required=False, help="The claim to count with, and pools and classes if the store is not to be asked.")
@namespace_option
@output_option("table", "json", "yaml")
@store_option
def capacity(name: str | None, files: tuple[str, ...], namespace: str, output: str, store: Path | None) -> int:
    """Count how many more claims like one fit, beside everything that is allocated or would be.

    The claim is one of the store, by NAME, or one of the manifests. Manifests with pools in them stand for
    themselves; manifests without are counted on what the store has.

    \b
    devalloc capacity notebook
    devalloc capacity -f claim.yaml
    devalloc capacity notebook -f examples/whole-gpu
    """
    from devalloc.cli.output import dump, working
    from devalloc_solver import capacity as count

    documents, claim = _read(name, files, namespace, store)
    with working("counting"):
        fits = count(documents, claim)
    metadata = claim["metadata"]
    subject = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
    if output in ("json", "yaml"):
        dump({"namespace": metadata.get("namespace", "default"), "name": metadata["name"], "capacity": fits}, output)
    else:
        click.echo(f"{fits} more like {subject}")
    return 0


def _read(name: str | None, files: tuple[str, ...], namespace: str, store: Path | None) -> tuple[list[Object], Object]:
    """All documents without the claim, and the claim."""
    from devalloc.cli.documents import read
    from devalloc.cli.storage import opened

    if not name and not files:
        raise BadInput("count with which claim? Name one of the store, or give one with -f")
    found = read(files, namespace) if files else None
    documents: list[Object] = [document.content for document in found.good] if found else []
    given = [doc for doc in documents if doc["kind"] == "DeviceClaim"]
    if not any(doc["kind"] == "DevicePool" for doc in documents):
        with opened(store) as objects:
            own = {(doc["kind"], doc["metadata"]["name"], doc["metadata"].get("namespace")) for doc in documents}
            documents += [
                obj
                for obj in objects.list().objects
                if (obj["kind"], obj["metadata"]["name"], obj["metadata"].get("namespace")) not in own
            ]
    wanted = name.rpartition("/")[2] if name else None
    claims = [doc for doc in documents if doc["kind"] == "DeviceClaim"] if wanted else given
    matching = [
        claim
        for claim in claims
        if wanted is None
        or (claim["metadata"]["name"] == wanted and claim["metadata"].get("namespace", "default") == namespace)
    ]
    if not matching:
        raise Failed(f"there is no claim {namespace}/{wanted}" if wanted else "the manifests hold no valid claim")
    if len(matching) > 1:
        names = ", ".join(claim["metadata"]["name"] for claim in matching)
        raise BadInput(f"the manifests hold several claims; name one of them: {names}")
    claim = matching[0]
    return [doc for doc in documents if doc is not claim], claim
