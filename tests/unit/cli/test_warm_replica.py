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


def machines(text: str) -> list[dict[str, Any]]:
    documents = [content for content in yaml.safe_load_all(text) if content]
    for content in documents:
        assert not decode(content).problems
    return documents


def test_each_replica_is_a_machine_in_a_warm_setup_with_a_disk_of_its_own(tmp_path: Path, devalloc: Shell) -> None:
    done = devalloc(
        "warm", "replica", "-f", deployment(tmp_path, envVars={"MODE": "fast"}), "--replicas", "2", "-n", "a"
    )
    assert [content["metadata"] for content in machines(done.out)] == [
        {
            "name": f"resize-{number}",
            "namespace": "a",
            "labels": {"faas_function": "resize", "execenvironment.count": "5"},
        }
        for number in (1, 2)
    ]
    assert [content["spec"] for content in machines(done.out)] == [
        {
            "cpu": {"min": "2", "max": "2"},
            "memory": {"min": "514Mi", "max": "514Mi"},
            "start": {
                "kernel": "/images/vmlinuz",
                "append": "root=/dev/vda rw console=ttyS0 --env=MODE=fast",
                "disks": [{"path": f"/var/run/osv-storage/resize-{number}/resize.raw", "format": "raw"}],
            },
            "nics": [{"backend": "warm"}],
        }
        for number in (1, 2)
    ]
    assert "note: 513 MiB of memory are rounded up to 514" in done.err
    assert (
        "mkdir -p /var/run/osv-storage/resize-2 && cp --sparse=always /images/resize.raw "
        "/var/run/osv-storage/resize-2/resize.raw"
    ) in done.err


def test_with_an_initrd_all_replicas_read_one_image(tmp_path: Path, devalloc: Shell) -> None:
    labels = {**LABELS, "INITRD_PATH": "/images/initrd", "com.openfaas.scale.min": 2}
    done = devalloc("warm", "replica", "-f", deployment(tmp_path, labels=labels), "--node", "here")
    starts = [content["spec"]["start"] for content in machines(done.out)]
    assert len(starts) == 2
    for start in starts:
        assert start["disks"] == [{"path": "/images/resize.raw", "format": "raw", "readOnly": True}]
        assert (start["initrd"], start["append"]) == ("/images/initrd", "console=ttyS0")
    assert [content["spec"]["nodeName"] for content in machines(done.out)] == ["here"] * 2
    assert "cp --sparse" not in done.err


@pytest.mark.parametrize(
    ("environments", "requests", "replicas", "waiting"),
    [(5, 0, 1, 0), (5, 5, 1, 0), (5, 6, 2, 0), (5, 15, 3, 0), (5, 16, 3, 1), (1, 3, 3, 0), (None, 23, 3, 8)],
)
def test_as_many_replicas_as_the_requests_take_that_each_serves_at_once(
    tmp_path: Path, devalloc: Shell, environments: int | None, requests: int, replicas: int, waiting: int
) -> None:
    labels = LABELS if environments is None else {**LABELS, "execenvironment.count": environments}
    done = devalloc("warm", "replica", "-f", deployment(tmp_path, labels=labels), "--requests", str(requests))
    assert len(machines(done.out)) == replicas
    assert (f"{waiting} of {requests} wait" in done.err) == bool(waiting)


def test_what_a_manifest_should_not_say_is_only_noted(tmp_path: Path, devalloc: Shell) -> None:
    secret = {"AWS_ACCESS_KEY_ID": "id-1", "AWS_SECRET_ACCESS_KEY": "hidden"}
    file = deployment(tmp_path, envVars=secret, labels={**LABELS, "INET_DEV": "eth1"}, secrets=["x"])
    done = devalloc("warm", "replica", "-f", file)
    for words in ("AWS_SECRET_ACCESS_KEY: not in the manifests", "INET_DEV eth1", "secrets of the deployment"):
        assert words in done.err
    assert "hidden" not in done.out + done.err
    assert "id-1" not in done.out + done.err


def test_where_none_is_wanted_there_is_none(tmp_path: Path, devalloc: Shell) -> None:
    labels = {name: text for name, text in LABELS.items() if name != "com.openfaas.scale.min"}
    done = devalloc("warm", "replica", "-f", deployment(tmp_path, labels=labels))
    assert (done.code, done.out) == (0, "")
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
        ({"labels": {**LABELS, "com.openfaas.cpu": 2000}}, [], "spec.cpu"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_printed(
    tmp_path: Path, devalloc: Shell, more: dict[str, Any], words: list[str], wrong: str
) -> None:
    done = devalloc("warm", "replica", "-f", deployment(tmp_path, **more), *words)
    assert (done.code, done.out) == (2, "")
    assert wrong in done.err
    assert "hidden" not in done.err


def test_the_deployment_of_the_docs_can_be_applied(tmp_path: Path, devalloc: Shell) -> None:
    page = (Path(__file__).parents[3] / "docs" / "warm.md").read_text()
    file = tmp_path / "resize.yaml"
    (example,) = re.findall(r"^```yaml\n(service:.*?)^```$", page, re.DOTALL | re.MULTILINE)
    file.write_text(example)
    done = devalloc("warm", "replica", "-f", file, "--requests", "23")
    assert [each["metadata"]["name"] for each in machines(done.out)] == [f"resize-{number}" for number in range(1, 6)]
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
