"""The Dockerfile: its builder runs the script, and its images take the layers as they are."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.images import layers
from deploy.images.build import config, labelled
from deploy.images.contents import HERE, Contents

FILE: Path = HERE / "Dockerfile"

_HEAD = """\
# The images of devalloc with Docker, from the root of the source:
#   docker build -f deploy/images/Dockerfile --target controller -t devalloc-controller .
#   docker build -f deploy/images/Dockerfile --target node -t devalloc-node .
# Written by python -m deploy.images dockerfile from contents.toml and the script; change those.
# With --platform linux/arm64 (buildx) the builder still runs on amd64.
ARG BUILDPLATFORM=linux/amd64
FROM --platform=$BUILDPLATFORM debian:{release}@{digest} AS builder
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3 python3-pip
COPY . /source
WORKDIR /source
"""


def text(contents: Contents) -> str:
    """All of it."""
    parts = [_HEAD.format(release=contents.base.release, digest=contents.builder)]
    for image in contents.images.values():
        started = config(image)
        labels = labelled(image)
        del labels["org.opencontainers.image.version"]  # docker build --label says it
        parts.append(
            f"FROM builder AS {image.key}-layers\nARG TARGETARCH=amd64\n"
            f"RUN python3 -m deploy.images layers {image.key} /layers --arch $TARGETARCH\n"
        )
        lines = [f"FROM scratch AS {image.key}"]
        lines += [f"COPY --from={image.key}-layers /layers/{name} /" for name in layers.NAMES]
        lines += [f"LABEL {key}={json.dumps(value)}" for key, value in labels.items()]
        lines += [f"ENV {variable}" for variable in started["Env"]]
        lines += [f"USER {started['User']}", f"WORKDIR {started['WorkingDir']}"]
        lines += [f"ENTRYPOINT {json.dumps(started['Entrypoint'])}", f"CMD {json.dumps(started['Cmd'])}"]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)
