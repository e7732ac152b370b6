"""``python -m deploy.images``: the container images of devalloc, without a registry and without Docker."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.images import constraints, dockerfile, layers, tree, wheels
from deploy.images.build import BuiltImage, build
from deploy.images.cache import Unavailable
from deploy.images.contents import BUILD_LOCK, CONSTRAINTS, Contents, Image, Platform, contents
from devalloc.version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    catalog = contents()
    options = _parser(catalog).parse_args(arguments)
    wanted = [catalog.images[key] for key in options.images]
    try:
        if options.verb == "build":
            _build(wanted, catalog, options)
        elif options.verb == "layers":
            _layers(wanted, catalog, catalog.platforms[options.arch], options.folder)
        elif options.verb == "constrain":
            constraints.constrain(_say, keep=options.keep)
            print(CONSTRAINTS)
        elif options.verb == "lock":
            for image in wanted:
                wheels.lock(image, catalog, _say)
                print(image.lock)
            wheels.lock_build(catalog, _say)
            print(BUILD_LOCK)
        else:
            dockerfile.FILE.write_text(dockerfile.text(catalog))
            print(dockerfile.FILE)
    except Unavailable as reason:
        print(f"no images: {reason}", file=sys.stderr)
        return 1
    return 0


def _parser(catalog: Contents) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.images", description="The container images of devalloc.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("build", help="write each as an OCI archive, for ctr, podman, skopeo and docker load")
    making.add_argument("images", nargs="*", default=[*catalog.images], metavar="IMAGE", help=", ".join(catalog.images))
    making.add_argument("--out", type=Path, default=Path("dist"), metavar="DIR", help="default: dist")
    making.add_argument("--prefix", default="localhost", metavar="REGISTRY/PATH", help="default: localhost")
    making.add_argument("--tag", default=VERSION, help=f"default: {VERSION}")
    making.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="one more; may be repeated")
    making.add_argument("--arch", choices=[*catalog.platforms], default="amd64", help="default: amd64")
    making.add_argument("--fresh", action="store_true", help="ask Debian for newer packages than the cache has")
    stacking = verbs.add_parser("layers", help="write an image's layers as folders, for the Dockerfile")
    stacking.add_argument("images", nargs=1, choices=[*catalog.images])
    stacking.add_argument("folder", type=Path)
    stacking.add_argument("--arch", choices=[*catalog.platforms], default="amd64", help="default: amd64")
    locking = verbs.add_parser("lock", help="name the wheels of the images, in the versions that the tests run with")
    locking.add_argument("images", nargs="*", default=[*catalog.images], metavar="IMAGE")
    constraining = verbs.add_parser(
        "constrain", help="name the newest versions that pyproject.toml allows together, and the hashes of their files"
    )
    constraining.add_argument("--keep", action="store_true", help="keep the versions that pyproject.toml still allows")
    constraining.set_defaults(images=[])
    writing = verbs.add_parser("dockerfile", help="write the Dockerfile anew")
    writing.set_defaults(images=[])
    return parser


def _build(images: Sequence[Image], catalog: Contents, options: argparse.Namespace) -> None:
    labels = dict(label.split("=", 1) for label in options.label)
    platform = catalog.platforms[options.arch]
    suffix = "" if platform == catalog.builder_platform else f"-{platform.name}"
    options.out.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        reference = f"{options.prefix.rstrip('/')}/{image.name}".lstrip("/") + f":{options.tag}"
        archive = options.out / f"{image.name}-{options.tag}{suffix}.tar"
        fresh = options.fresh and number == 0
        _print_built(build(image, catalog, reference, archive, _say, platform=platform, labels=labels, fresh=fresh))


def _print_built(built: BuiltImage) -> None:
    print(f"{built.archive}: {built.reference}, {built.digest}, {built.archive.stat().st_size / 1e6:.0f} MB")
    for layer in built.layers:
        print(f"  {layer.size / 1e6:6.1f} MB  {layer.made}")


def _layers(images: Sequence[Image], catalog: Contents, platform: Platform, folder: Path) -> None:
    for image in images:
        for name, made in zip(layers.NAMES, layers.layers(image, catalog, _say, platform), strict=True):
            tree.unpack(made / "layer.tar", folder / name)


def _say(line: str) -> None:
    print(f"  {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
