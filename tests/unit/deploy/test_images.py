"""Container images: the same bytes from the same files, one list of contents, and archives that runtimes can read."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from deploy.images import bom, dockerfile, oci, tree, wheels
from deploy.images.cache import Unavailable
from deploy.images.constraints import Pin, constrained, normalised
from deploy.images.contents import BUILD_LOCK, HERE, SOURCE, build_requirements, contents, requirements

CONTENTS = contents()


def assert_allowed(wanted: list[str], pinned: dict[str, Pin]) -> None:
    for requirement in map(Requirement, wanted):
        name = normalised(requirement.name)
        assert name in pinned, f"{requirement.name} has no version"
        assert requirement.specifier.contains(pinned[name].version), requirement


def assert_part_of_the_constraints(lock: dict[str, Pin]) -> None:
    everything = constrained()
    assert {name: pin.version for name, pin in lock.items()} == {name: everything[name].version for name in lock}
    assert {name for name, pin in lock.items() if not pin.hashes or not pin.hashes <= everything[name].hashes} == set()


def filled(root: Path, *, other: bool = False) -> Path:
    """A folder; ``other``: made in another order, at another time, with rights that were not requested."""
    names = ["b/two", "a/one", "program"]
    for name in reversed(names) if other else names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
        (root / name).chmod(0o666 if other else 0o600)
        os.utime(root / name, (1, 1) if other else None)
    (root / "program").chmod(0o6777 if other else 0o700)
    (root / "a").chmod(0o777 if other else 0o700)
    (root / "link").symlink_to("a/one")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


def packed(root: Path, archive: Path) -> Path:
    tree.pack(root, archive)
    return archive


class TestLayers:
    def test_the_same_files_make_the_same_bytes(self, tmp_path: Path) -> None:
        first = packed(filled(tmp_path / "first"), tmp_path / "first.tar")
        second = packed(filled(tmp_path / "second", other=True), tmp_path / "second.tar")
        assert first.read_bytes() == second.read_bytes()
        (tmp_path / "second/a/one").write_text("another")
        assert packed(tmp_path / "second", tmp_path / "third.tar").read_bytes() != first.read_bytes()

    def test_no_file_of_an_image_gives_rights(self, tmp_path: Path) -> None:
        with tarfile.open(packed(filled(tmp_path / "root", other=True), tmp_path / "layer.tar")) as tar:
            modes = {member.name: member.mode for member in tar if not member.issym()}
            assert {(member.uid, member.gid, member.uname, member.mtime) for member in tar} == {(0, 0, "", 0)}
        folders = {"a": 0o755, "b": 0o755, "tmp": 0o1777}
        assert modes == folders | {"a/one": 0o644, "b/two": 0o644, "program": 0o755}

    def test_a_socket_in_an_image_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "root").mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "root/socket"))
            with pytest.raises(Unavailable, match="cannot be in an image"):
                tree.pack(tmp_path / "root", tmp_path / "layer.tar")

    def test_what_is_left_out_has_to_be_there(self, tmp_path: Path) -> None:
        root = filled(tmp_path / "root")
        tree.remove(root, ["a", "**/two"])
        assert sorted(path.name for path in root.rglob("*")) == ["b", "link", "program", "tmp"]
        with pytest.raises(Unavailable, match=r"nothing matches a: see left_out in deploy/images/contents\.toml"):
            tree.remove(root, ["a"])


class TestArchives:
    @pytest.fixture
    def files(self, tmp_path: Path) -> dict[str, bytes]:
        """What is in an archive of an image with two layers, of which one is the other."""
        one = oci.layer(packed(filled(tmp_path / "root"), tmp_path / "layer.tar"), "a test")
        assert oci.write(tmp_path / "image.tar", "here/thing:1", [one, one], {"Cmd": ["x"]}) == oci.write(
            tmp_path / "again.tar", "here/thing:1", [one, one], {"Cmd": ["x"]}
        )
        assert (tmp_path / "image.tar").read_bytes() == (tmp_path / "again.tar").read_bytes()
        with tarfile.open(tmp_path / "image.tar") as tar:
            return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]

    def test_every_blob_is_what_its_name_says_and_every_reference_leads_to_one(self, files: dict[str, bytes]) -> None:
        blobs = {name: content for name, content in files.items() if name.startswith("blobs/")}
        assert {f"blobs/sha256/{hashlib.sha256(content).hexdigest()}" for content in blobs.values()} == set(blobs)

        def read(described: dict[str, Any]) -> bytes:
            content = files["blobs/" + described["digest"].replace(":", "/")]
            assert len(content) == described["size"]
            return content

        (entry,) = json.loads(files["index.json"])["manifests"]
        assert entry["annotations"]["io.containerd.image.name"] == "docker.io/here/thing:1"
        manifest = json.loads(read(entry))
        config = json.loads(read(manifest["config"]))
        layers = [hashlib.sha256(read(layer)).hexdigest() for layer in manifest["layers"]]
        assert config["rootfs"]["diff_ids"] == [f"sha256:{digest}" for digest in layers]
        assert len(config["history"]) == len(layers)
        assert config["config"] == {"Cmd": ["x"]}

    def test_docker_load_finds_its_way(self, files: dict[str, bytes]) -> None:
        (image,) = json.loads(files["manifest.json"])
        assert image["RepoTags"] == ["here/thing:1"]
        assert json.loads(files[image["Config"]])["config"] == {"Cmd": ["x"]}
        assert all(name in files for name in image["Layers"])

    @pytest.mark.parametrize(
        ("reference", "full"),
        [
            ("devalloc-node:1", "docker.io/library/devalloc-node:1"),
            ("us/devalloc-node:1", "docker.io/us/devalloc-node:1"),
            ("registry.example/us/devalloc-node:1", "registry.example/us/devalloc-node:1"),
            ("localhost/devalloc-node:1", "localhost/devalloc-node:1"),
            ("registry:5000/devalloc-node:1", "registry:5000/devalloc-node:1"),
        ],
    )
    def test_runtimes_look_for_full_names(self, reference: str, full: str) -> None:
        assert oci.full_reference(reference) == full


class TestContents:
    @pytest.mark.parametrize("key", CONTENTS.images)
    def test_the_lock_has_what_pyproject_asks_for(self, key: str) -> None:
        """Where not: python -m deploy.images lock."""
        image = CONTENTS.images[key]
        assert_allowed(requirements(image.extras), wheels.locked(image.lock))

    def test_every_install_has_the_solver(self) -> None:
        """`pip install` of the wheel is enough for demo, solve and explain."""
        project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
        assert {*project["optional-dependencies"]["solver"]} <= {*project["dependencies"]}

    @pytest.mark.parametrize("key", CONTENTS.images)
    def test_an_image_has_the_versions_that_the_tests_run_with(self, key: str) -> None:
        """If not: python -m deploy.images lock."""
        assert_part_of_the_constraints(wheels.locked(CONTENTS.images[key].lock))

    def test_what_builds_the_wheel_is_pinned(self) -> None:
        """If not: python -m deploy.images lock."""
        (backend,) = map(Requirement, build_requirements())
        assert [specifier.operator for specifier in backend.specifier] == ["=="]
        lock = wheels.locked(BUILD_LOCK)
        assert_allowed(build_requirements(), lock)
        assert_part_of_the_constraints(lock)

    def test_the_constraints_are_what_pyproject_allows(self) -> None:
        """If not: python -m deploy.images constrain --keep."""
        assert_allowed([*requirements(["dev"]), *build_requirements()], constrained())

    def test_the_builder_of_the_dockerfile_is_one_image_and_no_tag_that_moves(self) -> None:
        (line,) = re.findall(r"^FROM .*debian.*$", dockerfile.FILE.read_text(), re.MULTILINE)
        assert re.fullmatch(r"FROM --platform=\$BUILDPLATFORM debian:bookworm@sha256:[0-9a-f]{64} AS builder", line)

    def test_no_image_has_the_packages_of_the_other(self) -> None:
        node, controller = (set(wheels.locked(CONTENTS.images[key].lock)) for key in ("node", "controller"))
        assert not node & {"ortools", "numpy", "pandas", "cel-expr-python", "google-re2"}
        assert not controller & {"grpcio", "pyroute2", "pyudev", "qemu-qmp"}
        assert not (node | controller) & {"pip", "setuptools", "wheel", "pytest"}

    def test_the_dockerfile_is_what_the_script_does(self) -> None:
        """Where not: python -m deploy.images dockerfile."""
        assert dockerfile.FILE.read_text() == dockerfile.text(CONTENTS)

    def test_the_script_needs_nothing_but_python(self) -> None:
        """The Dockerfile's builder has no other package, and the version's module imports none."""
        version = ast.parse((SOURCE / "devalloc" / "version.py").read_text())
        assert [node.module for node in ast.walk(version) if isinstance(node, ast.ImportFrom)] == ["__future__"]
        for file in sorted(HERE.glob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                for name in names:
                    allowed = name.split(".")[0] in {*sys.stdlib_module_names, "deploy"} or name == "devalloc.version"
                    assert allowed, f"{file.name} imports {name}"

    def test_the_controller_is_not_root(self) -> None:
        assert CONTENTS.images["controller"].user == "65532:65532"


def test_a_bill_of_materials_is_the_same_for_the_same_packages(tmp_path: Path) -> None:
    folder = tmp_path / "some_thing-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: some_thing\nVersion: 1.2\nLicense-Expression: MIT\n\nText: no header\n")
    parts = [*bom.wheel_components(tmp_path), bom.debian_component("libc6", "2.36-9", "bookworm", "amd64")]
    document = bom.document("image", "1", parts)
    assert document == bom.document("image", "1", parts[::-1])
    assert bom.versions_of(document) == {"pkg:deb/debian/libc6": "2.36-9", "pkg:pypi/some-thing": "1.2"}
    assert [part.get("licenses") for part in json.loads(document)["components"]] == [
        None,
        [{"license": {"name": "MIT"}}],
    ]


def test_modules_of_qemu_qmp_that_are_gpl_are_left_out_with_those_that_need_them() -> None:
    root = Path(importlib.metadata.distribution("qemu.qmp").locate_file("qemu/qmp"))
    texts = {path.name: path.read_text() for path in root.glob("*.py")}
    gpl = {name for name, text in texts.items() if re.search(r"licensed under the terms of the GNU GPL", text)}
    assert gpl == {"legacy.py"}
    needing = {name for name, text in texts.items() if re.search(r"(from|import) .*\blegacy\b", text)}
    left_out = {Path(path).name for path in CONTENTS.images["node"].left_out if path.startswith("qemu/")}
    assert gpl | needing <= left_out
    script = "import devalloc_machines.qemu.qmp, sys; print([n for n in sys.modules if n.startswith('qemu.qmp.')])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not [name for name in left_out if f"'qemu.qmp.{Path(name).stem}'" in loaded]


def imported_without(packages: Sequence[str], modules: Sequence[str]) -> str:
    """The error when these modules are imported where these packages are not there; empty if none is needed."""
    script = f"import sys\nsys.modules.update(dict.fromkeys({[*packages]!r}))\nimport {', '.join(modules)}\n"
    return subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False).stderr


def test_the_node_plugin_starts_without_the_packages_that_only_the_controllers_image_has() -> None:
    started = ["node_parts", "store_loops"]
    modules = [
        "devalloc.cli.options.hosts",
        "devalloc.cli.verbs.node",
        *(f"devalloc.programs.{one}" for one in started),
    ]
    only_controllers = ["cel_expr_python", "celpy", "ortools"]
    assert imported_without(only_controllers, [*modules, "devalloc_node.daemon"]) == ""


def test_the_controller_and_the_proxy_start_without_the_packages_that_their_image_leaves_out() -> None:
    started = ["controller", "permit_proxy"]
    modules = [f"devalloc.{place}.{one}" for place in ("cli.verbs", "programs") for one in started]
    left_out = [*CONTENTS.images["controller"].packages_left_out, "grpc", "pyroute2"]
    assert imported_without(left_out, ["devalloc.cli.options.controllers", *modules]) == ""
