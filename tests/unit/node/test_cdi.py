"""What containers learn of their devices: CDI specs and the metadata files of KEP-5304."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from devalloc_node.claims.claim_files import claim_spec, metadata_files
from devalloc_node.errors import Denied
from devalloc_node.model.grant import ClaimRef, Grant
from devalloc_node.model.step import PreparedDevice
from tests.support.node_errors import raises

UID = "a1b2c3d4-0000-4000-8000-000000000001"
REF = ClaimRef("team-a", "training", UID)
GRANT = Grant(REF, "ResourceClaim", ())
GPU = PreparedDevice(
    ("gpu",),
    "node-a-0000-41-00",
    "0000-41-00-0",
    "vfio",
    functions=("0000:41:00.0", "0000:41:00.1"),
    nodes=("/dev/vfio/15",),
    attributes={"resource.kubernetes.io/pciBusID": "0000:41:00.0"},
)
VGPU = PreparedDevice(
    ("slice",),
    "node-a-0000-08-00",
    "0000-08-00-4-nvidia-746",
    "mdev",
    mdev_uuid="5f5c4d8e-0000-4000-8000-000000000001",
    nodes=("/dev/vfio/16",),
    attributes={
        "mdevUUID": "5f5c4d8e-0000-4000-8000-000000000001",
        "resource.kubernetes.io/pciBusID": "0000:08:00.4",
        "resource.kubernetes.io/numaNode": 0,
    },
)


def claim_cdi(*devices: PreparedDevice, ref: ClaimRef = REF):
    rendered = claim_spec(ref, devices, driver="devalloc.io", folder="/run/cdi")
    ((path, content),) = rendered.files.items()
    return path, json.loads(content), rendered.ids


def test_a_spec_of_a_claim_has_its_uid_in_every_name() -> None:
    path, spec, ids = claim_cdi(GPU, VGPU)
    assert path == f"/run/cdi/devalloc.io_claim_{UID}.json"
    assert spec["kind"] == "devalloc.io/device"
    names = [f"{UID}-0-0000-41-00-0", f"{UID}-1-0000-08-00-4-nvidia-746"]
    assert [device["name"] for device in spec["devices"]] == names
    assert ids == {GPU.key: (f"devalloc.io/device={names[0]}",), VGPU.key: (f"devalloc.io/device={names[1]}",)}


def test_a_device_brings_its_nodes_and_its_addresses() -> None:
    _, spec, _ = claim_cdi(GPU, VGPU, replace(GPU, nodes=("/dev/vfio/devices/vfio3",)))
    gpu, vgpu, by_iommufd = (device["containerEdits"] for device in spec["devices"])
    assert gpu == {
        "env": ["DEVALLOC_PCI_0000_41_00_0=0000:41:00.0,0000:41:00.1"],
        "deviceNodes": [
            {"path": "/dev/vfio/vfio", "permissions": "rw"},
            {"path": "/dev/vfio/15", "permissions": "rw"},
        ],
    }
    assert vgpu["env"] == [f"DEVALLOC_MDEV_0000_08_00_4_NVIDIA_746={VGPU.mdev_uuid}"]
    assert [node["path"] for node in by_iommufd["deviceNodes"]] == ["/dev/iommu", "/dev/vfio/devices/vfio3"]


def test_admin_access_brings_no_nodes_and_an_id_of_its_own() -> None:
    admin = replace(GPU, admin=True, binding="none", nodes=())
    _, spec, ids = claim_cdi(admin)
    assert list(spec["devices"][0]["containerEdits"]) == ["env"]
    other = ClaimRef("team-a", "other", UID.replace("1", "2"))
    assert not set(ids[GPU.key]) & set(claim_cdi(GPU, ref=other)[2][GPU.key])


def test_two_shares_of_a_device_have_distinct_ids() -> None:
    first, second = replace(GPU, share="s1"), replace(GPU, share="s2")
    _, spec, ids = claim_cdi(first, second)
    assert len({device["name"] for device in spec["devices"]}) == 2
    assert len(ids[first.key]) == len(ids[second.key]) == 1
    assert ids[first.key] != ids[second.key]


@pytest.mark.parametrize(("uid", "version"), [("a1b2", "0.3.0"), ("1a2b", "0.5.0")])
def test_the_version_is_the_lowest_that_allows_the_names(uid: str, version: str) -> None:
    """Names that begin with a digit came with 0.5.0."""
    assert claim_cdi(GPU, ref=replace(REF, uid=uid))[1]["cdiVersion"] == version
    grant = replace(GRANT, ref=replace(REF, uid=uid))
    files = metadata_files(grant, [GPU], driver="d.io", data="/p", folder="/c").files
    assert json.loads(files[f"/c/d.io_metadata_{uid}_gpu.json"])["cdiVersion"] == version


def test_a_claim_without_devices_has_no_file() -> None:
    assert claim_spec(REF, [], driver="devalloc.io", folder="/run/cdi").files == {}


def objects(content: bytes) -> list[dict]:
    decoder, text, documents = json.JSONDecoder(), content.decode(), []
    while text := text.lstrip():
        each, end = decoder.raw_decode(text)
        documents.append(each)
        text = text[end:]
    return documents


def test_metadata_is_a_stream_with_the_newest_version_first() -> None:
    rendered = metadata_files(GRANT, [GPU, VGPU], driver="devalloc.io", data="/plugins/d", folder="/run/cdi")
    assert sorted(rendered.files) == [
        "/plugins/d/dra-device-metadata/team-a_training/gpu/metadata.json",
        "/plugins/d/dra-device-metadata/team-a_training/slice/metadata.json",
        f"/run/cdi/devalloc.io_metadata_{UID}_gpu.json",
        f"/run/cdi/devalloc.io_metadata_{UID}_slice.json",
    ]
    newest, oldest = objects(rendered.files["/plugins/d/dra-device-metadata/team-a_training/slice/metadata.json"])
    assert newest == {
        "apiVersion": "metadata.resource.k8s.io/v1beta1",
        "kind": "DeviceMetadata",
        "metadata": {"name": "training", "namespace": "team-a", "uid": UID, "generation": 1},
        "requests": [
            {
                "name": "slice",
                "devices": [
                    {
                        "driver": "devalloc.io",
                        "pool": "node-a-0000-08-00",
                        "name": "0000-08-00-4-nvidia-746",
                        "attributes": {
                            "mdevUUID": {"string": VGPU.mdev_uuid},
                            "resource.kubernetes.io/numaNode": {"int": 0},
                            "resource.kubernetes.io/pciBusID": {"string": "0000:08:00.4"},
                        },
                    }
                ],
            }
        ],
    }
    assert oldest == newest | {"apiVersion": "metadata.resource.k8s.io/v1alpha1"}


def test_metadata_is_mounted_where_readers_look_for_it() -> None:
    base = "/var/run/kubernetes.io/dra-device-attributes"
    for grant, place in (
        (GRANT, f"{base}/resourceclaims/training/gpu/devalloc.io-metadata.json"),
        (replace(GRANT, pod_claim_name="gpus"), f"{base}/resourceclaimtemplates/gpus/gpu/devalloc.io-metadata.json"),
    ):
        rendered = metadata_files(grant, [GPU], driver="devalloc.io", data="/p", folder="/c")
        spec = json.loads(rendered.files[f"/c/devalloc.io_metadata_{UID}_gpu.json"])
        assert spec["kind"] == "devalloc.io/metadata"
        (device,) = spec["devices"]
        assert device["name"] == f"{UID}_gpu"
        (mount,) = device["containerEdits"]["mounts"]
        assert mount["containerPath"] == place
        assert mount["hostPath"] in rendered.files
        assert "ro" in mount["options"]
        assert rendered.ids == {GPU.key: (f"devalloc.io/metadata={UID}_gpu",)}
        name = objects(rendered.files[mount["hostPath"]])[0].get("podClaimName")
        assert name == grant.pod_claim_name


def test_a_request_has_all_its_devices_and_a_device_all_its_requests() -> None:
    other = replace(GPU, device="0000-42-00-0", requests=("gpu/large", "spare"))
    rendered = metadata_files(GRANT, [GPU, other], driver="d.io", data="/p", folder="/c")
    (newest, _) = objects(rendered.files["/p/dra-device-metadata/team-a_training/gpu/metadata.json"])
    assert [device["name"] for device in newest["requests"][0]["devices"]] == [GPU.device, other.device]
    assert rendered.ids[other.key] == (f"d.io/metadata={UID}_gpu", f"d.io/metadata={UID}_spare")


def test_long_names_still_make_a_folder_and_distinct_ones() -> None:
    grants = [replace(GRANT, ref=ClaimRef("n" * 63, "c" * 252 + end, UID)) for end in "ab"]
    folders = set()
    for grant in grants:
        files = metadata_files(grant, [GPU], driver="d.io", data="/p", folder="/c").files
        folders |= {path.split("/")[3] for path in files if path.startswith("/p/")}
    assert len(folders) == 2
    assert {len(each) for each in folders} == {255}


@pytest.mark.parametrize("bad", ["", "..", "../x", "/a", "a\0b", "A", "a" * 300])
def test_names_never_become_paths_unchecked(bad: str) -> None:
    for ref in (replace(REF, namespace=bad), replace(REF, name=bad), *([replace(REF, uid=bad)] if bad != "A" else [])):
        with raises(Denied, "ClaimNameInvalid"):
            claim_spec(ref, [GPU], driver="d.io", folder="/c")
        with raises(Denied, "ClaimNameInvalid"):
            metadata_files(replace(GRANT, ref=ref), [GPU], driver="d.io", data="/p", folder="/c")
    with pytest.raises(Denied, match="DNS label"):
        claim_spec(REF, [replace(GPU, device=bad)], driver="d.io", folder="/c")
    with pytest.raises(Denied, match="DNS label"):
        metadata_files(GRANT, [replace(GPU, requests=(f"{bad}/sub",))], driver="d.io", data="/p", folder="/c")
    with pytest.raises(Denied, match="DNS label"):
        metadata_files(replace(GRANT, pod_claim_name=bad), [GPU], driver="d.io", data="/p", folder="/c")


@pytest.mark.parametrize("node", ["vfio/1", "/dev/../etc/shadow", "/etc/shadow", "/dev/", "/dev/vfio/", "/dev/a\0"])
def test_only_nodes_below_dev_are_handed_out(node: str) -> None:
    with pytest.raises(Denied, match="not a device node below /dev"):
        claim_cdi(replace(GPU, nodes=(node,)))
