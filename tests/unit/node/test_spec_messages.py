"""gRPC's messages say all that a VirtualMachine manifest says, field for field, and lose nothing on the way."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal, get_args

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api import virtual_machine as api
from devalloc.api.decode import decode
from devalloc.api.fields import ApiModel
from devalloc.api.quantity import NANO, Quantity
from devalloc.api.virtual_machine import VirtualMachine, VirtualMachineSpec
from devalloc_machines.service import replies
from devalloc_machines.service.request_fields import machine_to_adopt, machine_to_start, requested_scaling
from devalloc_machines.service.spec_messages import ELSEWHERE, SpecField, content_of, spec_fields
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.service.request_fields import BadField
from tests.support.examples import examples
from tests.support.good_manifests import good_manifests

OF_START_ONLY = {
    "start": "a machine that is adopted is not started",
    "nics": "it has those with which it was started",
    "pci_slots": "it has those with which it was started",
    "restart_policy": "only what was started here is started again",
    "numa_policy": "only the allocator and a start act on it",
    "guest_reports": "it has the serial ports with which it was started",
}
"""Fields that an adopted machine does not have, or on which nothing acts."""
OF_REQUESTS = {"AdoptMachineRequest": {"machine", "qmp_socket", "claims"}}
"""Fields of a message that say what its model does not."""
WIRE_TYPES = {
    "amount": FieldDescriptor.TYPE_UINT64,
    "fraction": FieldDescriptor.TYPE_DOUBLE,
    "model": FieldDescriptor.TYPE_MESSAGE,
    "text": FieldDescriptor.TYPE_STRING,
    "number": FieldDescriptor.TYPE_UINT32,
    "switch": FieldDescriptor.TYPE_BOOL,
}


def kind_of(model: type[ApiModel], field: SpecField) -> str:
    if field.model is not None:
        return "model"
    if field.is_quantity:
        return "fraction" if field.nano is None else "amount"
    types = list(parts(model.model_fields[field.name].annotation))
    # bool first: it is an int, too.
    return next(kind for kind, wanted in (("switch", bool), ("number", int), ("text", str)) if wanted in types)


def parts(annotation: Any) -> Iterator[Any]:
    if getattr(annotation, "__origin__", None) is Literal:
        yield from map(type, get_args(annotation))
    yield annotation
    for each in get_args(annotation):
        yield from parts(each)


def differences(model: type[ApiModel], message: Descriptor, without: frozenset[str] = frozenset()) -> list[str]:
    """Where a message does not say what a model says, and the other way round."""
    wrong = []
    names = set()
    for field in spec_fields(model):
        where = f"{model.__name__}.{field.name} and {message.name}.{field.wire_name}"
        names.add(field.wire_name)
        described = message.fields_by_name.get(field.wire_name)
        if field.name in without:
            wrong += [f"{where}: it should not be there"] if described is not None else []
            continue
        if described is None:
            wrong.append(f"{where}: the message lacks it; add it to node.proto and run make protos")
            continue
        kind = kind_of(model, field)
        if described.type != WIRE_TYPES[kind]:
            wrong.append(f"{where}: it is a {kind}, so its type must be {WIRE_TYPES[kind]}, not {described.type}")
        if described.is_repeated != field.is_list:
            wrong.append(f"{where}: one is a list")
        default = model.model_fields[field.name].default
        if kind in ("number", "fraction") and not described.has_presence:
            wrong.append(f"{where}: 0 says something, so it must be optional")
        if kind == "switch" and default is not False and not described.has_presence:
            wrong.append(f"{where}: false says something, so it must be optional")
        if field.model is not None and described.message_type is not None:
            wrong += differences(field.model, described.message_type)
    surplus = set(message.fields_by_name) - names - OF_REQUESTS.get(message.name, set())
    return wrong + [f"{message.name}.{name}: {model.__name__} has no such field" for name in sorted(surplus)]


def test_what_creates_a_machine_says_all_that_a_manifest_says_and_no_more() -> None:
    assert differences(VirtualMachineSpec, pb.MachineSpec.DESCRIPTOR) == []


def test_what_adopts_a_machine_says_all_that_concerns_it() -> None:
    assert differences(VirtualMachineSpec, pb.AdoptMachineRequest.DESCRIPTOR, frozenset(OF_START_ONLY)) == []


def test_what_the_calls_say_themselves_are_fields_of_the_model() -> None:
    assert set(ELSEWHERE) <= set(VirtualMachineSpec.model_fields)


class Grown(api.MachineRunner):
    token: str = ""


class Shrunk(ApiModel):
    address: str


class Other(ApiModel):
    address: int
    port: int


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Grown, "Grown.token and MachineRunner.token: the message lacks it"),
        (Shrunk, "MachineRunner.port: Shrunk has no such field"),
        (Other, "Other.address and MachineRunner.address: it is a number"),
    ],
)
def test_a_model_that_grows_shrinks_or_changes_is_noticed(model: type[ApiModel], words: str) -> None:
    assert any(words in one for one in differences(model, pb.MachineRunner.DESCRIPTOR))


# Round trips: manifest, message, manifest.

NODE = "node-a"


def sent(machine: VirtualMachine) -> VirtualMachine:
    """What the node makes of a request that says what a machine's manifest says."""
    ref = pb.MachineRef(namespace=machine.namespace, name=machine.metadata.name)
    claims = [pb.ClaimRef(namespace=machine.namespace, name=name) for name in machine.spec.claims]
    spec = replies.spec(machine)
    if machine.spec.adopt is None:
        request = pb.CreateMachineRequest(machine=ref, spec=spec, claims=claims)
        # Over the wire: what is not known there would be lost.
        return machine_to_start(pb.CreateMachineRequest.FromString(request.SerializeToString()), NODE)
    adopt = pb.AdoptMachineRequest(machine=ref, qmp_socket=machine.spec.adopt.qmp_socket, claims=claims)
    for described in pb.AdoptMachineRequest.DESCRIPTOR.fields:
        if described.name in pb.MachineSpec.DESCRIPTOR.fields_by_name:
            value = getattr(spec, described.name)
            if described.message_type is None:
                setattr(adopt, described.name, value)
            elif spec.HasField(described.name):
                getattr(adopt, described.name).CopyFrom(value)
    return machine_to_adopt(adopt, NODE)


def with_defaults(machine: VirtualMachine) -> VirtualMachineSpec:
    """As ``replies.spec`` says it: what the machine starts with is said."""
    spec = machine.spec
    changed: dict[str, Any] = {
        "cpu": spec.cpu.model_copy(update={"use": spec.cpu.wanted}),
        "memory": spec.memory.model_copy(update={"use": spec.memory.wanted}),
    }
    if spec.adopt is None:
        changed["pci_slots"] = spec.slots
    return spec.model_copy(update=changed)


GOOD = {one["metadata"]["name"]: one for one in good_manifests() if one["kind"] == "VirtualMachine"}


@pytest.mark.parametrize("manifest", GOOD.values(), ids=GOOD)
def test_good_manifests_come_back_as_they_were(manifest: dict[str, Any]) -> None:
    machine = decode(manifest).object
    assert isinstance(machine, VirtualMachine)
    assert with_defaults(sent(machine)) == with_defaults(machine)


def quantities(least: int, most: int, block: int = 1) -> st.SearchStrategy[str]:
    return st.integers(least // block, most // block).map(lambda n: str(Quantity(n * block)))


FRACTIONS = st.integers(1, NANO - 1).map(lambda n: str(Quantity(n)))
CPUS = st.lists(st.integers(10, 1_024_000), min_size=3, max_size=3).map(sorted)
SIZES = st.lists(st.integers(1, 1 << 20), min_size=3, max_size=3).map(sorted)
PATHS = st.from_regex(r"\A/(images/)?[a-z]{1,8}\Z")
RATES = quantities(NANO, 10**12 * NANO, NANO)
PORTS = st.integers(1, 65535)
SCALING = st.fixed_dictionaries(
    {"address": st.sampled_from(["10.0.0.5", "fd00::5"])},
    optional={
        "protocol": st.sampled_from(["monitor", "informant"]),
        "monitorPort": PORTS,
        "metricsPort": PORTS,
        "lfcMetricsPort": PORTS,
        "loadAverageFractionTarget": FRACTIONS,
        "memoryUsageFractionTarget": FRACTIONS,
        "memoryTotalFractionTarget": FRACTIONS,
        "lfcToMemoryRatio": FRACTIONS,
        "enableLFCMetrics": st.booleans(),
        "lfcUseLargestWindow": st.booleans(),
        "lfcWindowSizeMinutes": st.integers(2, 5),
        "lfcMinWaitBeforeDownscaleMinutes": st.integers(5, 1440),
        "cpuStableZoneRatio": quantities(0, 100 * NANO),
        "cpuMixedZoneRatio": quantities(0, 100 * NANO),
    },
)
RUNNER = st.fixed_dictionaries({"address": st.just("10.3.0.7")}, optional={"port": PORTS})
DISK = st.fixed_dictionaries(
    {"format": st.sampled_from(["raw", "qcow2"])},
    optional={"readOnly": st.booleans(), "device": st.sampled_from(["virtio", "nvme"])},
)
DISKS = st.dictionaries(PATHS, DISK, min_size=1, max_size=3).map(
    lambda disks: [{"path": path, **disk} for path, disk in disks.items()]
)
START = st.fixed_dictionaries(
    {"kernel": PATHS, "disks": DISKS},
    optional={
        "initrd": PATHS,
        "append": st.text("abc =,/äö", max_size=20),
        "iommu": st.booleans(),
        "numaNode": st.integers(0, 1023),
        "pciWindow": quantities(NANO, 2**40 * NANO, NANO),
    },
)
MODEL = {"model": st.sampled_from(["virtio", "e1000e"]), "bandwidth": RATES, "mac": st.just("02:00:00:12:34:57")}
NIC = st.fixed_dictionaries({"backend": st.just("user")}, optional=MODEL) | st.fixed_dictionaries(
    {"backend": st.just("tap"), "interface": st.just("tap0")}, optional=MODEL
)


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    cpus, sizes = draw(CPUS), draw(SIZES)
    spec: dict[str, Any] = {
        "nodeName": NODE,
        "cpu": {"min": f"{cpus[0]}m", "use": f"{cpus[1]}m", "max": f"{cpus[2]}m"},
        "memory": {name: str(size * 2 * api.MIB) for name, size in zip(("min", "use", "max"), sizes, strict=True)},
    }
    more = {
        "disk": RATES,
        "diskIO": RATES,
        "reserveMax": st.booleans(),
        "powerdownSeconds": st.integers(0, 3600),
        "claims": st.lists(st.from_regex(r"\A[a-z]{1,5}\Z"), max_size=3, unique=True),
    }
    if draw(st.booleans()):
        more["adopt"] = st.just({"qmpSocket": "/run/vms/web.qmp"})
    else:
        spec["start"] = draw(START)
        more |= {
            "nics": st.lists(NIC, max_size=3),
            "pciSlots": st.integers(3, 64),
            "restartPolicy": st.sampled_from(["Always", "Never"]),
        }
        if "numaNode" in spec["start"]:
            more["numaPolicy"] = st.sampled_from(["none", "single-numa-node"])
        if draw(st.booleans()):
            del spec["cpu"]["use"]
    required = {"adopt": more.pop("adopt")} if "adopt" in more else {}
    spec |= draw(st.fixed_dictionaries(required, optional=more))
    which = draw(st.sampled_from(["scaling", "runner", ""]))
    if which:
        spec[which] = draw(SCALING if which == "scaling" else RUNNER)
    return {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"namespace": "team-a", "name": "web"},
        "spec": spec,
    }


@settings(max_examples=examples(90, 0.75), deadline=None)
@given(machines())
def test_every_manifest_comes_back_as_it_was(manifest: dict[str, Any]) -> None:
    decoded = decode(manifest)
    assert isinstance(decoded.object, VirtualMachine), decoded.problems
    machine = decoded.object
    again = sent(machine)
    assert with_defaults(again) == with_defaults(machine)
    assert sent(again) == again


# What a caller leaves out, and what is wrong.


def request(**spec: Any) -> pb.CreateMachineRequest:
    amounts = {
        "cpu": pb.CpuBounds(min_milli=1000, max_milli=2000),
        "memory": pb.MemoryBounds(min_bytes=1 << 30, max_bytes=1 << 30),
        "start": pb.Start(kernel="/images/k"),
    }
    return pb.CreateMachineRequest(machine=pb.MachineRef(name="web"), spec=pb.MachineSpec(**{**amounts, **spec}))


def test_the_guests_address_is_left_out_where_a_warm_setup_has_it() -> None:
    warm = request(scaling=pb.MachineScaling(), nics=[pb.Nic(backend="warm")])
    scaling = machine_to_start(warm, NODE).spec.scaling
    assert scaling is not None
    assert scaling.address is None


def test_what_is_not_said_has_the_defaults_of_manifests() -> None:
    spec = machine_to_start(request(scaling=pb.MachineScaling(address="10.0.0.5")), NODE).spec
    assert spec == VirtualMachineSpec.model_validate(
        {
            "nodeName": NODE,
            "cpu": {"min": "1000m", "max": "2000m"},
            "memory": {"min": 1 << 30, "max": 1 << 30},
            "start": {"kernel": "/images/k"},
            "scaling": {"address": "10.0.0.5"},
        }
    )


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"scaling": pb.MachineScaling()}, "spec.scaling.address"),
        ({"scaling": pb.MachineScaling(address="127.0.0.1")}, "spec.scaling.address"),
        ({"scaling": pb.MachineScaling(address="10.0.0.5", monitor_port=0)}, "spec.scaling.monitorPort"),
        (
            {"scaling": pb.MachineScaling(address="10.0.0.5", memory_usage_fraction_target=1.5)},
            "spec.scaling.memoryUsageFractionTarget",
        ),
        (
            {"scaling": pb.MachineScaling(address="10.0.0.5", load_average_fraction_target=float("nan"))},
            "spec.scaling.loadAverageFractionTarget",
        ),
        (
            {"scaling": pb.MachineScaling(address="10.0.0.5", cpu_mixed_zone_ratio=1e308)},
            "spec.scaling.cpuMixedZoneRatio",
        ),
        (
            {"scaling": pb.MachineScaling(address="10.0.0.5"), "runner": pb.MachineRunner(address="10.3.0.7")},
            "spec.runner",
        ),
        ({"runner": pb.MachineRunner(address="0.0.0.0")}, "spec.runner.address"),
        ({"numa_policy": "single-numa-node"}, "spec.numaPolicy"),
        ({"numa_policy": "somewhere"}, "spec.numaPolicy"),
        ({"disk_io_bytes_per_second": 2**64 - 1}, "spec.diskIO"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_path_of_manifests(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(BadField) as refused:
        machine_to_start(request(**spec), NODE)
    assert refused.value.path == path


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_a_fraction_is_the_decimal_number_that_its_caller_wrote(value: float) -> None:
    message = pb.MachineScaling(address="10.0.0.5", cpu_stable_zone_ratio=value)
    written = content_of(message, api.MachineScaling)["cpuStableZoneRatio"]
    assert Decimal(written) == Decimal(repr(value))


@pytest.mark.parametrize(
    ("amounts", "path"),
    [
        ({}, "vcpus"),
        ({"vcpus": 0}, "vcpus"),
        ({"vcpus": 1025}, "vcpus"),
        ({"cpu_milli": 1_024_001}, "cpuMilli"),
        ({"memory_bytes": 0}, "memoryBytes"),
        ({"memory_bytes": 2**62 + 1}, "memoryBytes"),
    ],
)
def test_an_amount_that_no_machine_has_is_refused(amounts: dict[str, int], path: str) -> None:
    with pytest.raises(BadField) as refused:
        requested_scaling(pb.ScaleMachineRequest(**amounts))
    assert refused.value.path == path


def test_amounts_are_scaled_to_their_bounds() -> None:
    least, most = {"vcpus": 1, "cpu": 0, "memory": 1}, {"vcpus": 1024, "cpu": 1_024_000, "memory": 2**62}
    for wanted in (least, most):
        request = pb.ScaleMachineRequest(vcpus=wanted["vcpus"], cpu_milli=wanted["cpu"], memory_bytes=wanted["memory"])
        assert requested_scaling(request) == wanted
