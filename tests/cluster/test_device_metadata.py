"""Upstream's own package, which KubeVirt's reader mirrors, decodes and validates the metadata files of pods."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.conformance.test_kubevirt import pod_files, prepared
from tests.support import upstream_cel
from tests.support.go_build import Unavailable


def test_upstreams_package_reads_each_version_of_a_metadata_file() -> None:
    try:
        program = upstream_cel.binary("metadata")
    except Unavailable as reason:
        pytest.skip(f"no upstream package: {reason}")
    (content,) = pod_files("gpu", prepared("gpu", "0000:41:00.0")).values()
    read = json.loads(subprocess.run([program], input=content, stdout=subprocess.PIPE, check=True).stdout)
    assert read.keys() == {"v1alpha1", "v1beta1"}
    for version, metadata in read.items():
        assert metadata["apiVersion"] == f"metadata.resource.k8s.io/{version}"
        assert (metadata["podClaimName"], metadata["metadata"]["name"]) == ("gpu", "claim")
        (request,) = metadata["requests"]
        (device,) = request["devices"]
        assert (request["name"], device["driver"], device["pool"]) == ("gpu", "devalloc.io", "node-a")
        assert device["attributes"] == {"resource.kubernetes.io/pciBusID": {"string": "0000:41:00.0"}}
