"""`devalloc warm` and devalloc.node.v1.WarmPool on a real socket. The setups are of toy parts."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from devalloc.cli.options.warm import MAX_VCPUS
from devalloc_machines.part import MachineSettings
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.warm import service
from devalloc_machines.warm.addresses import BridgeNetwork
from devalloc_machines.warm.part import warm_part
from devalloc_machines.warm.paused_machine import read_template
from devalloc_machines.warm.pool import Pool
from devalloc_machines.warm.service import WarmService
from devalloc_machines.warm.settings import WarmConfig
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.metrics.registry import NodeMetrics
from devalloc_node.pb import node_pb2
from devalloc_node.pb import warm_pb2 as pb
from devalloc_node.pb.warm_pb2_grpc import WarmPoolStub
from devalloc_node.service.peer_credentials import open_proxy
from tests.support.cli_shell import Shell
from tests.support.deadlines import soon
from tests.support.toy_setups import ToyPart, opened


@contextmanager
def served(folder: Path, pool: Pool | None, metrics: NodeMetrics | None = None) -> Iterator[Path]:
    socket = folder / "node.sock"
    door = open_proxy(socket, [WarmService(pool, metrics or NodeMetrics()).service()])
    try:
        yield socket
    finally:
        door.stop()


BRIDGE = ["--warm", "1", "--warm-network", "bridge", "--nft", "true"]
"""Any program stands for nft."""
CNI = ["--warm", "1", "--warm-network", "cni", "--nft", "true", "--cni-conf-dir", "/proc/sys/net/ipv4/neigh"]
"""A folder without lists."""


@pytest.fixture
def toy() -> ToyPart:
    return ToyPart()


def test_a_setup_is_taken_shown_and_returned(tmp_path: Path, toy: ToyPart, devalloc: Shell) -> None:
    with opened(tmp_path, toy, target=2, most=3) as pool, served(tmp_path, pool) as socket:
        pool.fill(2)
        printed = devalloc("warm", "take", "web-7", "--vcpus", "2", "--request", "r", "--socket", socket).out
        setup = next(iter(pool.status().taken)).setup
        assert dict(line.split(None, 1) for line in printed.replace("numa nodes", "nodes").splitlines()) == {
            "setup:": setup.id,
            "namespace:": f"{tmp_path}/netns/{setup.id}",
            "tap:": "tap0",
            "mac:": setup.mac,
            "folder:": f"{tmp_path}/run/setups/{setup.id}",
            "cpus:": "0,1",
            "nodes:": "0",
        }
        again = devalloc("warm", "take", "web-7", "--request", "r", "-o", "json", "--socket", socket).json
        assert again["id"] == setup.id
        assert again["cpus"] == [0, 1]

        head, columns, row = devalloc("warm", "list", "--socket", socket).out.splitlines()
        assert head == "1 ready of 2 wanted, 1 taken, 0 being made, 0 being removed; 3 at most"
        assert columns.split() == ["SETUP", "OWNER", "AGE", "CPUS", "FOLDER"]
        assert row.split()[:2] + row.split()[3:4] == [setup.id, "web-7", "0,1"]
        assert re.fullmatch(r"\d+s", row.split()[2])

        assert devalloc("warm", "return", setup.id, "--socket", socket).out == f"{setup.id} returned\n"
        second = devalloc("warm", "return", setup.id, "--socket", socket)
        assert (second.code, "denied" in second.err, "[SetupNotTaken]" in second.err) == (1, True, True)
        listed = devalloc("warm", "list", "-o", "json", "--socket", socket).json
        assert (listed["ready"], "taken" in listed) == (1, False)


def test_no_owner_has_a_name_of_the_nodes_machines(tmp_path: Path, toy: ToyPart, devalloc: Shell) -> None:
    with opened(tmp_path, toy) as pool, served(tmp_path, pool) as socket:
        refused = devalloc("warm", "take", "machine/default/web", "--socket", socket)
        assert refused.code != 0
        assert "owner: must not begin with machine/" in refused.err
        assert toy.there == []


def test_only_a_machine_of_the_node_gives_back_its_own(tmp_path: Path, toy: ToyPart, devalloc: Shell) -> None:
    with opened(tmp_path, toy) as pool, served(tmp_path, pool) as socket:
        setup = pool.take("machine/default/web", "run").setup.id  # it is about to start, and does not live there yet
        refused = devalloc("warm", "return", setup, "--socket", socket)
        assert (refused.code, "[SetupInUse]" in refused.err) == (1, True)
        assert "stop it (spec.running: false) or delete it" in refused.err
        assert "may succeed later" not in refused.err
        assert toy.there == [setup]
        pool.give_back(setup, soon())


def test_more_vcpus_than_any_host_has_are_refused_before_a_call(devalloc: Shell) -> None:
    assert MAX_VCPUS == service.MOST_VCPUS
    for number in (service.MOST_VCPUS + 1, 1 << 31, 1 << 64):
        refused = devalloc("warm", "take", "a", "--vcpus", number, "--socket", "/nowhere")
        assert refused.code == 2
        assert "0<=x<=65536" in refused.err


def test_an_empty_pool_answers_try_again(tmp_path: Path, toy: ToyPart, devalloc: Shell) -> None:
    with opened(tmp_path, toy, most=1) as pool, served(tmp_path, pool) as socket:
        assert devalloc("warm", "take", "a", "--socket", socket).code == 0
        refused = devalloc("warm", "take", "b", "--socket", socket)
        assert refused.code == 1
        assert "[TryAgain] (it may succeed later)" in refused.err
        assert "the maximum is 1: 1 are taken" in refused.err


def test_a_node_without_a_pool_says_how_to_have_one(tmp_path: Path, devalloc: Shell) -> None:
    with served(tmp_path, None) as socket:
        for words in (["list"], ["take", "a"], ["return", "x"]):
            output = devalloc("warm", *words, "--socket", socket)
            assert (output.code, "start its plugin with --warm" in output.err) == (1, True)


def test_what_callers_send_is_checked(tmp_path: Path, toy: ToyPart) -> None:
    with (
        opened(tmp_path, toy) as pool,
        served(tmp_path, pool) as socket,
        grpc.insecure_channel(f"unix:{socket}") as channel,
    ):
        stub = WarmPoolStub(channel)
        for owner, request in (("", ""), ("a\x1b[2J", ""), ("x" * 10_000, ""), ("a", "\n")):
            reply = stub.TakeSetup(pb.TakeSetupRequest(owner=owner, request=request))
            assert (reply.result.outcome, reply.result.code) == (node_pb2.Result.DENIED, "OwnerInvalid")
            assert len(reply.result.message) < 400
        for name in ("../../../etc/passwd", "x" * 10_000, "\x00"):
            reply = stub.ReturnSetup(pb.ReturnSetupRequest(id=name))
            assert (reply.result.outcome, reply.result.code) == (node_pb2.Result.DENIED, "SetupNotTaken")
            assert len(reply.result.message) < 400
        with pytest.raises(grpc.RpcError) as refused:
            stub.TakeSetup(pb.TakeSetupRequest(owner="a", vcpus=1 << 31))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert toy.there == []


def test_more_ready_than_may_be_is_refused_at_the_start(tmp_path: Path, devalloc: Shell) -> None:
    arguments = ["node", "--store", f"{tmp_path}/store.db", "--state", f"{tmp_path}/state", "--warm", "3"]
    output = devalloc(*arguments, "--warm-most", "2", "--socket", tmp_path / "node.sock")
    assert (output.code, output.err) == (
        2,
        "error: --warm: cannot keep 3 warm setups ready, because --warm-most allows 2\n",
    )
    file = tmp_path / "machine.yaml"
    file.write_text("")
    arguments = arguments[:-2]
    for words, why in (
        (["--warm-machine", str(file)], "--warm-machine needs --warm"),
        (["--warm-vcpus-per-cpu", "1"], "--warm-vcpus-per-cpu needs --warm"),
        (["--warm", "1", "--warm-machine", str(file)], "must contain one VirtualMachine, and nothing else"),
    ):
        output = devalloc(*arguments, *words, "--socket", tmp_path / "node.sock")
        assert (output.code, why in output.err) == (2, True), output.err
    assert os.listdir(tmp_path) == ["machine.yaml"]
    file.write_text("apiVersion: devalloc.io/v1alpha1\nkind: VirtualMachine\nmetadata: {name: web}\nspec: {nope: 1}\n")
    output = devalloc(*arguments, "--warm", "1", "--warm-machine", str(file), "--socket", tmp_path / "node.sock")
    assert f"error: {file}, document 1, line 4: VirtualMachine web: spec.nope: unknown field" in output.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--warm-network", "bridge"], "--warm-network needs --warm, the number of warm setups"),
        (["--warm", "1", "--warm-uplink", "nat"], "--warm-uplink needs --warm-network bridge"),
        (["--warm", "1", "--warm-isolated"], "--warm-isolated needs --warm-network bridge"),
        (["--warm", "1", "--warm-network", "bridge", "--nft", "/none"], "install nftables, or set --nft"),
        ([*BRIDGE, "--warm-subnet", "10.88.0.1/16"], "'--warm-subnet': must be an IPv4 network such as 10.88.0.0/16"),
        (
            [*BRIDGE, "--warm-subnet", "10.88.0.0/31"],
            "--warm-subnet must have a prefix of 8 to 30 bits, not 10.88.0.0/31",
        ),
        (["--warm-subnet", "10.88.0.0/31"], "--warm-subnet must have a prefix of 8 to 30 bits"),
        ([*BRIDGE, "--warm-subnet", "224.0.0.0/16"], "--warm-subnet must not be 224.0.0.0/16, which no guest can use"),
        ([*BRIDGE, "--warm-bridge", "../etc"], "--warm-bridge must be a letter and up to 14 letters, digits"),
        (["--warm", "1", "--cni-network", "fcnet"], "--cni-network needs --warm-network cni"),
        ([*BRIDGE, "--cni-network", "fcnet"], "--cni-network needs --warm-network cni"),
        ([*CNI, "--warm-uplink", "nat"], "--warm-uplink needs --warm-network bridge"),
        (CNI, "--warm-network cni: /proc/sys/net/ipv4/neigh: has no list of CNI plugins at all"),
        ([*CNI, "--cni-network", "fcnet"], "has no list of CNI plugins named fcnet"),
        ([*BRIDGE, "--warm-nameserver", "dns.example"], "'--warm-nameserver': must be an IPv4 address"),
    ],
)
def test_a_network_that_cannot_be_is_refused_at_the_start(
    words: list[str], why: str, tmp_path: Path, devalloc: Shell
) -> None:
    arguments = ["node", "--store", f"{tmp_path}/store.db", "--state", f"{tmp_path}/state"]
    output = devalloc(*arguments, *words, "--socket", tmp_path / "node.sock")
    assert (output.code, why in output.err) == (2, True), output.err
    assert os.listdir(tmp_path) == []


def test_a_setup_with_a_network_is_shown_with_its_address(tmp_path: Path, toy: ToyPart, devalloc: Shell) -> None:
    network = BridgeNetwork(subnet=ipaddress.IPv4Network("10.88.7.0/24"), uplink="nat", nameservers=("9.9.9.9",))
    with opened(tmp_path, toy, most=3, network=network) as pool, served(tmp_path, pool) as socket:
        printed = devalloc("warm", "take", "web-7", "--socket", socket).out
        assert "address:     10.88.7.2/24\ngateway:     10.88.7.1\nnameservers: 9.9.9.9\n" in printed
        taken = devalloc("warm", "take", "web-8", "-o", "json", "--socket", socket).json
        assert (taken["address"], taken["gateway"], taken["nameservers"]) == ("10.88.7.3/24", "10.88.7.1", ["9.9.9.9"])
        _, columns, first, second = devalloc("warm", "list", "--socket", socket).out.splitlines()
        assert columns.split() == ["SETUP", "OWNER", "AGE", "CPUS", "ADDRESS", "FOLDER"]
        assert {"10.88.7.2", "10.88.7.3"} <= {*first.split(), *second.split()}


def test_the_start_warns_once_of_setups_that_no_process_manages(tmp_path: Path, toy: ToyPart) -> None:
    def warnings() -> list[str]:
        node: Any = SimpleNamespace(settings=MachineSettings("here", BindingConfig("here")))
        return [*warm_part(None, tmp_path / "warm")(node).warnings()]

    assert warnings() == []
    pool = Pool(WarmConfig(run=tmp_path / "warm", namespaces=tmp_path / "netns"), "boot", parts=[toy])
    pool.open()
    pool.take("a")
    assert warnings() == [], "the plugin that has opened the pool manages them"
    pool.close(soon())
    (line,) = warnings()
    assert line.startswith(f"warning: 1 warm setups of another run are in {tmp_path}/warm; they cannot be taken or")


def test_options_alone_warn_of_no_setups(tmp_path: Path, toy: ToyPart) -> None:
    """`devalloc up` reads them before the plugin starts, and again at each try."""
    pool = Pool(WarmConfig(run=tmp_path / "warm", namespaces=tmp_path / "netns"), "boot", parts=[toy])
    pool.open()
    pool.take("a")
    pool.close(soon())
    assert WarmConfig().checked("here", tmp_path, MachineConfig(), pytest.fail) == WarmConfig()


def test_fields_without_meaning_for_waiting_machines_are_reported(
    tmp_path: Path,
) -> None:
    def waiting(**more: object) -> list[str]:
        sizes = {"cpu": {"min": "1", "max": "1"}, "memory": {"min": "64Mi", "max": "64Mi"}}
        spec = {**sizes, "start": {"kernel": "/images/vmlinuz"}, **more}
        kind = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachine", "metadata": {"name": "any"}}
        file = tmp_path / "machine.yaml"
        file.write_text(json.dumps({**kind, "spec": spec}))
        notes: list[str] = []
        read_template(file, "here", notes.append)
        return [line.split(": ")[2] for line in notes]

    assert waiting(nodeName="here") == []
    assert waiting(nodeName="there", running=False) == ["spec.running", "spec.nodeName"]
    assert waiting(scaling={"address": "10.0.0.2"}) == ["spec.scaling"]
