"""`devalloc warm replica`: from a function's deployment to machines that can be applied."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.api.decode import decode
from tests.support.cli_shell import Shell

LABELS = {
    "KERNEL_IMAGE_PATH": "/images/vmlinuz",
    "VM_TYPE": "linux",
    "KERNEL_ARGS": "console=ttyS0",
    "com.openfaas.cpu": 2,
    "com.openfaas.memory": "513",
    "com.openfaas.scale.min": "1",
    "com.openfaas.scale.max": "3",
}


def deployment(tmp_path: Path, **more: Any) -> str:
    content = {"service": "resize", "image": "/images/resize.raw:latest", "labels": LABELS, **more}
    (tmp_path / "f.yaml").write_text(
        yaml.safe_dump({key: value for key, value in content.items() if value is not None})
    )
    return str(tmp_path / "f.yaml")


def the_set(text: str) -> dict[str, Any]:
    (content,) = (each for each in yaml.safe_load_all(text) if each)
    assert not decode(content).problems
    return dict(content)


def test_each_replica_is_a_machine_in_a_warm_setup_with_a_disk_of_its_own(tmp_path: Path, devalloc: Shell) -> None:
    file = deployment(tmp_path, envVars={"MODE": "fast"})
    done = devalloc("warm", "replica", "-f", file, "--replicas", "2", "-n", "a", "--disk", "2Gi", "--clone", "copy")
    made = the_set(done.out)
    assert made["metadata"] == {"name": "resize", "namespace": "a", "labels": {"faas_function": "resize"}}
    assert made["spec"]["replicas"] == 2
    assert made["spec"]["template"] == {
        "metadata": {"labels": {"faas_function": "resize", "execenvironment.count": "5"}},
        "spec": {
            "cpu": {"min": "2", "max": "2"},
            "memory": {"min": "514Mi", "max": "514Mi"},
            "disk": "2Gi",
            "start": {
                "kernel": "/images/vmlinuz",
                "append": "root=/dev/vda rw console=ttyS0 --env=MODE=fast",
                "disks": [{"path": "/images/resize.raw", "format": "raw", "clone": "copy"}],
            },
            "nics": [{"backend": "warm"}],
            "restartPolicy": "Never",
        },
    }
    reporting = the_set(devalloc("warm", "replica", "-f", file, "--disk", "2Gi", "--guest-reports").out)
    assert reporting["spec"]["template"]["spec"]["guestReports"] is True
    assert "note: 513 MiB of memory are rounded up to 514" in done.err


def test_the_disk_that_is_reserved_is_what_the_image_needs(tmp_path: Path, devalloc: Shell) -> None:
    image = tmp_path / "resize.raw"
    image.write_bytes(b"x" * (3 << 20))
    file = deployment(tmp_path, image=str(image))
    for clone, size in (("overlay", "5Mi"), ("copy", "3Mi")):
        done = devalloc("warm", "replica", "-f", file, "--clone", clone)
        assert the_set(done.out)["spec"]["template"]["spec"]["disk"] == size
    done = devalloc("warm", "replica", "-f", deployment(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert "cannot read the image /images/resize.raw here: No such file or directory; name the most" in done.err


def test_with_an_initrd_all_replicas_read_one_image(tmp_path: Path, devalloc: Shell) -> None:
    labels = {**LABELS, "INITRD_PATH": "/images/initrd", "com.openfaas.scale.min": 2}
    done = devalloc("warm", "replica", "-f", deployment(tmp_path, labels=labels), "--node", "here")
    spec = the_set(done.out)["spec"]["template"]["spec"]
    assert spec["start"]["disks"] == [{"path": "/images/resize.raw", "format": "raw", "readOnly": True}]
    assert (spec["start"]["initrd"], spec["start"]["append"]) == ("/images/initrd", "console=ttyS0")
    assert (spec["nodeName"], "disk" in spec) == ("here", False)


@pytest.mark.parametrize("option", ["--disk=2Gi", "--clone=copy", "--clone=overlay"])
def test_with_an_initrd_options_of_a_disk_are_refused(tmp_path: Path, devalloc: Shell, option: str) -> None:
    file = deployment(tmp_path, labels={**LABELS, "INITRD_PATH": "/images/initrd"})
    refused = devalloc("warm", "replica", "-f", file, option, "--apply")
    assert (refused.code, refused.out) == (2, "")
    name = option.partition("=")[0]
    assert f"{name} has no effect" in refused.err
    assert f"leave out {name}, or remove the label" in refused.err


def test_the_set_is_created_and_scaled_in_the_store(tmp_path: Path, devalloc: Shell) -> None:
    words = ["warm", "replica", "-f", deployment(tmp_path), "--disk", "1Gi", "--apply", "--replicas"]
    assert devalloc(*words, "2").out == "virtualmachinereplicaset/resize created\n"
    assert devalloc(*words, "2").out == "virtualmachinereplicaset/resize unchanged\n"
    assert devalloc(*words, "3").out == "virtualmachinereplicaset/resize configured\n"
    header, row = (re.split(" {2,}", line.strip()) for line in devalloc("get", "vmrs").out.splitlines())
    assert dict(zip(header, row, strict=False)).items() >= {"NAME": "resize", "DESIRED": "3", "CURRENT": "0"}.items()


@pytest.mark.parametrize(
    ("environments", "requests", "replicas", "waiting"),
    [(5, 0, 1, 0), (5, 5, 1, 0), (5, 6, 2, 0), (5, 15, 3, 0), (5, 16, 3, 1), (1, 3, 3, 0), (None, 23, 3, 8)],
)
def test_as_many_replicas_as_the_requests_take_that_each_serves_at_once(
    tmp_path: Path, devalloc: Shell, environments: int | None, requests: int, replicas: int, waiting: int
) -> None:
    labels = LABELS if environments is None else {**LABELS, "execenvironment.count": environments}
    file = deployment(tmp_path, labels=labels)
    done = devalloc("warm", "replica", "-f", file, "--requests", str(requests), "--disk", "1Gi")
    assert the_set(done.out)["spec"]["replicas"] == replicas
    assert (f"{waiting} of {requests} wait" in done.err) == bool(waiting)


def test_what_a_manifest_should_not_say_is_only_noted(tmp_path: Path, devalloc: Shell) -> None:
    secret = {"AWS_ACCESS_KEY_ID": "id-1", "AWS_SECRET_ACCESS_KEY": "hidden"}
    file = deployment(tmp_path, envVars=secret, labels={**LABELS, "INET_DEV": "eth1"}, secrets=["x"])
    done = devalloc("warm", "replica", "-f", file, "--disk", "1Gi")
    for words in ("AWS_SECRET_ACCESS_KEY: not in the manifest", "INET_DEV eth1", "secrets of the deployment"):
        assert words in done.err
    assert "hidden" not in done.out + done.err
    assert "id-1" not in done.out + done.err


def test_a_deployment_without_replicas_gives_an_empty_set(tmp_path: Path, devalloc: Shell) -> None:
    labels = {name: text for name, text in LABELS.items() if name != "com.openfaas.scale.min"}
    done = devalloc("warm", "replica", "-f", deployment(tmp_path, labels=labels), "--disk", "1Gi")
    assert the_set(done.out)["spec"]["replicas"] == 0
    assert "the number of replicas is 0" in done.err


@pytest.mark.parametrize(
    ("more", "words", "wrong"),
    [
        ({}, ["--replicas", "4"], "replicas must be between 1 (com.openfaas.scale.min) and 3"),
        ({}, ["--replicas", "0"], "(com.openfaas.scale.max), got 0"),
        (
            {"labels": {**LABELS, "com.openfaas.scale.min": 2**31 - 1, "com.openfaas.scale.max": 2**31 - 1}},
            [],
            "replicas of a function must be at most",
        ),
        ({}, ["--replicas", "1", "--requests", "1"], "not both"),
        ({"image": "ghcr.io/resize"}, [], "must be the absolute path of a disk image"),
        ({"image": "/images/../etc/shadow"}, [], "must be the absolute path of a disk image"),
        ({"image": None}, [], "image must be the path of a disk image"),
        ({"service": "../resize"}, [], "service must be a DNS label"),
        ({"service": "r" * 51}, [], "service must be a DNS label"),
        ({"labels": ["a"]}, [], "labels must be a map of strings"),
        ({"envVars": {"A": ["hidden"]}}, [], "envVars.A must be a string or a whole number"),
        ({"labels": {}}, [], "label KERNEL_IMAGE_PATH is missing"),
        ({"labels": {**LABELS, "com.openfaas.cpu": 2000}}, [], "spec.template.spec.cpu"),
        ({}, ["--disk", "2 cats"], "--disk: "),
    ],
)
def test_a_wrong_deployment_is_refused_and_nothing_is_printed(
    tmp_path: Path, devalloc: Shell, more: dict[str, Any], words: list[str], wrong: str
) -> None:
    done = devalloc("warm", "replica", "-f", deployment(tmp_path, **more), "--disk", "1Gi", *words)
    assert (done.code, done.out) == (2, "")
    assert wrong in done.err
    assert "hidden" not in done.err


def test_all_that_is_wrong_is_reported_at_once(tmp_path: Path, devalloc: Shell) -> None:
    labels = {"KERNEL_IMAGE_PATH": "images/vmlinuz", "INITRD_PATH": "initrd"}
    bad = deployment(tmp_path, service="Re_size", image="images/resize.raw", labels=labels, envVars={"A": [1]})
    done = devalloc("warm", "replica", "-f", bad)
    assert (done.code, done.out) == (2, "")
    for words in (
        "service must be a DNS label",
        "the image must be the absolute path of a disk image on the node, not 'images/resize.raw'",
        "envVars.A must be a string",
        "label KERNEL_IMAGE_PATH must be an absolute path",
        "label INITRD_PATH must be an absolute path",
    ):
        assert words in done.err
    missing = devalloc("warm", "replica", "-f", deployment(tmp_path, service="Re_size", labels={}))
    assert "service must be a DNS label" in missing.err
    assert "label KERNEL_IMAGE_PATH is missing" in missing.err


def test_the_note_about_a_number_names_both_bounds(tmp_path: Path, devalloc: Shell) -> None:
    labels = {**LABELS, "com.openfaas.memory": "99999999999999999"}
    done = devalloc("warm", "replica", "-f", deployment(tmp_path, labels=labels), "--disk", "1Gi")
    assert "com.openfaas.memory must be a whole number from 1 to 2147483647, not '99999999999999999'" in done.err


def test_the_deployment_of_the_docs_can_be_applied(tmp_path: Path, devalloc: Shell) -> None:
    page = (Path(__file__).parents[3] / "docs" / "warm.md").read_text()
    file = tmp_path / "resize.yaml"
    (example,) = re.findall(r"^```yaml\n(service:.*?)^```$", page, re.DOTALL | re.MULTILINE)
    file.write_text(example)
    done = devalloc("warm", "replica", "-f", file, "--requests", "23")
    assert the_set(done.out)["spec"]["replicas"] == 5
    assert "23 requests take 5 replicas of 5" in page


def test_of_many_errors_the_first_are_shown(tmp_path: Path, devalloc: Shell) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("\n---\n".join(["a: ["] * 30))
    errors = devalloc("warm", "replica", "-f", str(bad))
    assert (errors.code, errors.err.count("not valid YAML"), errors.err.endswith("and 20 more\n")) == (2, 10, True)


def test_a_folder_is_no_deployment(tmp_path: Path, devalloc: Shell) -> None:
    deployment(tmp_path)
    done = devalloc("warm", "replica", "-f", str(tmp_path))
    assert (done.code, done.err) == (2, f"error: {tmp_path} is a folder; name the file of one deployment\n")


def test_an_empty_name_is_no_folder(devalloc: Shell) -> None:
    done = devalloc("warm", "replica", "-f", "")
    assert done.code == 2
    assert "Invalid value for '-f' / '--file': the path is empty" in done.err


def test_a_warning_is_no_error(tmp_path: Path, devalloc: Shell) -> None:
    nothing = tmp_path / "f.yaml"
    nothing.write_text("# nothing yet\n")
    done = devalloc("warm", "replica", "-f", str(nothing))
    assert done.err.startswith(
        f"warning: {nothing}: contains no documents\nerror: {nothing} must contain one deployment"
    )
