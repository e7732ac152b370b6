"""An image, put together from its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.images import layers, oci
from deploy.images.cache import Progress
from deploy.images.contents import Contents, Image, Platform
from devalloc.version import VERSION

ENTRYPOINT = f"/{layers.LAUNCHER}"
PATH = "/usr/bin:/bin"


@dataclass(frozen=True)
class BuiltImage:
    """An image in a file."""

    reference: str
    archive: Path
    digest: str
    """Of its manifest."""
    layers: tuple[oci.Layer, ...]


def build(
    image: Image,
    contents: Contents,
    reference: str,
    archive: Path,
    progress: Progress,
    *,
    platform: Platform | None = None,
    labels: Mapping[str, str] | None = None,
    fresh: bool = False,
) -> BuiltImage:
    """Write the image as an OCI archive. ``platform``: the builder's if none is given; ``labels``: more than it has
    anyway. Raises Unavailable."""
    platform = platform or contents.builder_platform
    folders = layers.layers(image, contents, progress, platform, fresh=fresh)
    stacked = [
        oci.layer(folder / "layer.tar", f"deploy/images: {name}")
        for name, folder in zip(layers.NAMES, folders, strict=True)
    ]
    annotations = labelled(image) | dict(labels or {})
    digest = oci.write(archive, reference, stacked, config(image) | {"Labels": annotations}, annotations, platform.name)
    return BuiltImage(reference, archive, digest, tuple(stacked))


def config(image: Image) -> dict[str, Any]:
    """What its containers start with, where they are not told otherwise."""
    return {
        "User": image.user,
        "Env": [f"PATH={PATH}"],
        "Entrypoint": [ENTRYPOINT],
        "Cmd": list(image.command),
        "WorkingDir": "/",
    }


def labelled(image: Image) -> dict[str, str]:
    """What it says of itself."""
    return {
        "org.opencontainers.image.title": image.title,
        "org.opencontainers.image.description": image.description,
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "io.devalloc.bom": f"/{layers.BOM}",
    }
