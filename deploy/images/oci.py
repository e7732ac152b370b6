"""An image as one file: an OCI archive that ``docker load`` takes too."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class Layer:
    """A tar that is a layer."""

    path: Path
    digest: str
    made: str
    """What made it, for the image's history."""

    @property
    def size(self) -> int:
        """In bytes."""
        return self.path.stat().st_size


def layer(path: Path, made: str) -> Layer:
    """A tar on disk as a layer."""
    with path.open("rb") as file:
        return Layer(path, f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}", made)


def write(
    archive: Path,
    reference: str,
    layers: Sequence[Layer],
    config: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
    architecture: str = "amd64",
) -> str:
    """Write the image, called such as ``devalloc-node:1.2.0``; the digest of its manifest.

    ``config``: what a container starts with, as OCI's image configuration has it. Layers are not compressed: the same
    files make the same digest wherever it is built, and who pushes or pulls compresses.
    """
    history = [{"created_by": one.made} for one in layers]
    rootfs = {"type": "layers", "diff_ids": [one.digest for one in layers]}
    image = {"architecture": architecture, "os": "linux", "config": dict(config)}
    configuration = _json(image | {"rootfs": rootfs, "history": history})
    described = [
        {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": one.digest, "size": one.size}
        for one in layers
    ]
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _described("application/vnd.oci.image.config.v1+json", configuration),
            "layers": described,
            "annotations": dict(annotations or {}),
        }
    )
    entry = _described(_MANIFEST, manifest)
    names = {
        "io.containerd.image.name": full_reference(reference),
        "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
    }
    platform = {"architecture": architecture, "os": "linux"}
    index = {"schemaVersion": 2, "manifests": [entry | {"platform": platform, "annotations": names}]}
    paths = [_path(one.digest) for one in layers]
    docker = [{"Config": _path(_digest(configuration)), "RepoTags": [reference], "Layers": paths}]
    small = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": _json(index),
        "manifest.json": _json(docker),
        _path(_digest(manifest)): manifest,
        _path(_digest(configuration)): configuration,
    }
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in small.items():
            member = _member(name, len(content))
            tar.addfile(member, io.BytesIO(content))
        for digest, one in {one.digest: one for one in layers}.items():
            with one.path.open("rb") as file:
                tar.addfile(_member(_path(digest), one.size), file)
    return str(entry["digest"])


def full_reference(reference: str) -> str:
    """As runtimes look for it: ``devalloc-node:1`` is ``docker.io/library/devalloc-node:1``."""
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return reference
    return f"docker.io/{reference}" if slash else f"docker.io/library/{reference}"


def _described(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member
