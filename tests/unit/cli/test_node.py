"""``devalloc node`` as a process: what it says, where it serves, how it ends."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from devalloc.api.fields import quote_value
from devalloc.cli.options.common import settings_options
from devalloc.cli.terminal import print_note
from devalloc.programs.inventory_options import InventoryOptions
from devalloc.programs.node_options import PluginOptions, node_settings
from devalloc.programs.node_parts import _has_address, make_host
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra
from devalloc.settings import BadSetting
from devalloc_machines.part import MachineSettings
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig, MigrationSettings
from devalloc_node.binding.binding import BindingConfig
from tests.support.cli_shell import Shell, node_folder
from tests.support.cli_shell import node_arguments as arguments


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node_folder(tmp_path_factory.mktemp("n"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--socket", "/tmp/" + "x" * 200], "has 205 bytes, but the kernel allows 107"),
        (["--metrics", "0.0.0.0:80"], "is reachable from other hosts"),
        (["--resync", "0"], "'--resync': must be more than 0"),
        (["--host-capacity", "--oversub-disk-io", "0"], "--oversub-disk-io must be more than 0, not 0"),
        (["--scaling", "--compute-unit", "1"], "must be CPU and memory, such as 250m,1Gi, not 1"),
        (["--scaling", "--compute-unit", "1,1Ki"], "memory in multiples of 2Mi"),
        (["--scaling", "--compat", "v0.30"], "is not one of 'v0.31', 'newest'"),
        (["--scaling", "--guest-network", "10.0.0.1/8"], "must be a network such as 10.1.0.0/16"),
        (["--runner-network", "10.0.0.1/8"], "'--runner-network': must be a network such as 10.1.0.0/16"),
        (["--scaling", "--dump-port", "65536"], "65535"),
        (["--scaling", "--permits", "somewhere"], "must be a URL such as http://127.0.0.1:10299/"),
        (["--scaling", "--permits", "http://127.0.0.1:99999/"], "must be a URL such as"),
        (["--scaling", "--permits", "http://me:word@127.0.0.1/"], "without user, query and fragment"),
        (["--scaling", "--permits", "http://127.0.0.1/?x=1"], "without user, query and fragment"),
        (["--scaling", "--permits-token-file", "/dev/null"], "one line of 16 to 2048 printable ASCII characters"),
        (
            ["--permits", "http://127.0.0.1:1/", "--compute-unit", "1,1Gi"],
            "--permits and --compute-unit need --scaling",
        ),
        (["--guest-network", "10.0.0.0/8"], "--guest-network needs --scaling"),
        (["--dump-port", "10300"], "--dump-port needs --scaling"),
        (["--scaling", "--dump-port", "10299"], "--dump-port and --permits-port both use port 10299"),
        (
            ["--scaling", "--permits-port", "10298", "--permits-dump-port", "10298"],
            "--permits-port and --permits-dump-port both use port 10298",
        ),
        (
            ["--scaling", "--dump-port", "10300", "--metrics", "127.0.0.1:10300"],
            "--dump-port and --metrics both use port 10300",
        ),
        (["--scaling", "--permits", "http://127.0.0.1/", "--permits-port", "1"], "which does not run with --permits"),
        (
            ["--scaling", "--permits", "http://127.0.0.1/", "--permits-without-token"],
            "which does not run with --permits",
        ),
        (["--permits-without-token"], "--permits-without-token needs --scaling"),
        (["--image-folder", ":any"], "'--image-folder': must be a folder such as"),
        (["--image-folder", "/etc/passwd"], "'--image-folder': must be a folder such as"),
        (["--qmp-folder", "/run:shared"], "use /run:any"),
        (["--machine-users", "5"], "'--machine-users': must be a range such as 2146435072-2146437071, not '5'"),
        (["--machine-users", "9-5"], "'--machine-users': must be a range"),
        (["--tap", ""], "'--tap': must be a pattern such as vm* or team-a:vm*"),
        (["--tap", ":vm*"], "'--tap': must be a pattern such as"),
    ],
)
def test_bad_options_are_refused_with_a_message(
    folder: Path, devalloc: Shell, options: list[str], message: str
) -> None:
    result = devalloc(*arguments(folder, *options))
    assert (result.code, message in result.err) == (2, True), result.err


def test_a_server_of_permits_is_not_run_on_a_node_of_a_cluster(folder: Path, devalloc: Shell) -> None:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    cluster = ("--kubeconfig", f"{folder}/kubeconfig", "--scaling", "--permits-port", "1")
    result = devalloc(*arguments(folder, *cluster, "--publish", "pools"))
    assert (result.code, "--permits-port has no effect on a cluster" in result.err) == (2, True), result.err
    result = devalloc(*arguments(folder, *cluster))
    assert (result.code, "--publish pools" in result.err) == (2, True), result.err


def test_folders_that_machines_lack_are_listed_at_the_start(folder: Path) -> None:
    def start_output(machines: MachineConfig, *shared: Path) -> list[str]:
        lines: list[str] = []
        settings = MachineSettings(
            "node-a",
            BindingConfig("node-a"),
            root=folder / "host",
            machines=replace(machines, shared_storage=tuple(map(str, shared))),
        )
        make_host(settings, dry_run=True, say=lines.append)
        return [line for line in lines if line.startswith("there is no")]

    assert (
        start_output(
            MachineConfig(binary="/bin/sh", folders=(AllowedFolder(folder),), socket_folders=(AllowedFolder(folder),)),
            folder,
        )
        == []
    )
    missing = MachineConfig(
        binary="nothere",
        folders=(AllowedFolder(folder), AllowedFolder(folder / "images")),
        socket_folders=(AllowedFolder(folder / "qmp"),),
        rom_folders=(folder / "roms",),
    )
    assert start_output(missing, folder / "nfs") == [
        "there is no program nothere (--qemu); machines cannot start until it exists",
        f"there is no folder {folder}/images (--image-folder)",
        f"there is no folder {folder}/qmp (--qmp-folder)",
        f"there is no folder {folder}/roms (--rom-folder)",
        f"there is no folder {folder}/nfs (--shared-storage)",
    ]


@pytest.mark.parametrize(("address", "is_there"), [("127.0.0.1", True), ("192.0.2.7", False), ("2001:db8::7", False)])
def test_the_start_warns_if_no_interface_has_the_migration_address(
    folder: Path, address: str, *, is_there: bool
) -> None:
    lines: list[str] = []
    settings = MachineSettings(
        "node-a",
        BindingConfig("node-a"),
        root=folder / "host",
        machines=MachineConfig(migrations=MigrationSettings(address)),
    )
    make_host(settings, dry_run=True, say=lines.append)
    warnings = [line for line in lines if "--migration-address" in line]
    assert len(warnings) == (not is_there)
    assert is_there or f"no interface of this host has the address {address}" in warnings[0]


def test_the_start_warns_of_an_ipv6_migration_address_on_a_kernel_without_ipv6(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(family: int, *_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", refuse)
    assert not _has_address("fd00::1")


def test_options_pass_shared_storage_to_the_start(folder: Path) -> None:
    settings = settings_of(folder, "--shared-storage", "/srv/vms")
    assert settings.machines.shared_storage == ("/srv/vms",)


@pytest.mark.parametrize("verb", ["node", "up --no-node", "discover", "capacity --host"])
@pytest.mark.parametrize("name", ["a b", "Node-A", "-a", "a" * 254])
def test_a_name_that_no_node_can_have_is_refused(folder: Path, devalloc: Shell, verb: str, name: str) -> None:
    words = arguments(folder) if verb == "node" else [*verb.split(), "--sysfs-root", f"{folder}/host"]
    result = devalloc(*words, "--node-name", name)
    assert result.code == 2
    assert f"--node-name {quote_value(name)} is not a valid name of a node" in result.err
    assert result.err.rstrip().endswith("choose another name")


def test_a_host_name_that_no_node_can_have_is_refused_with_what_to_do(
    folder: Path, devalloc: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "my_host")
    result = devalloc("up", "--store", f"{folder}/store.db", "--no-node")
    assert (result.code, "host name" in result.err, "name the node with --node-name" in result.err) == (2, True, True)


def settings_of(folder: Path, *words: str) -> MachineSettings:
    """What options come to."""
    seen: list[PluginOptions] = []

    @click.command()
    @settings_options(PluginOptions, "options")
    def command(options: PluginOptions) -> None:
        seen.append(options)

    assert CliRunner().invoke(command, words, catch_exceptions=False).exit_code == 0
    return node_settings(
        InventoryOptions(node_name="node-a", sysfs_root=folder / "host"), seen[0], 60.0, note=print_note
    )


def test_how_machines_run_can_be_demanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(folder).machines.accel == "auto"
    assert settings_of(folder, "--accel", "kvm").machines.accel == "kvm"
    monkeypatch.setenv("DEVALLOC_ACCEL", "tcg")
    assert settings_of(folder).machines.accel == "tcg"


@pytest.mark.parametrize("uid", [0, 1000])
def test_the_endpoint_of_permits_can_be_chosen(folder: Path, monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    """The socket that shows them is beside the plugin's own: root's, or this user's."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    sockets = Path("/run/devalloc") if uid == 0 else folder / ".local/state/devalloc/node"

    def permit_endpoint(*words: str) -> tuple[str, bool, object]:
        scaling = settings_of(folder, "--scaling", *words).scaling
        assert scaling is not None
        return scaling.url, scaling.serves, scaling.permits_dump

    assert permit_endpoint() == ("http://127.0.0.1:10299/", True, sockets / "node-permits.sock")
    chosen = permit_endpoint("--permits-port", "20299", "--permits-dump-port", "0")
    assert chosen == ("http://127.0.0.1:20299/", True, None)
    of_another = permit_endpoint("--permits", "http://10.0.0.1:5/", "--dump-port", "10299")
    assert of_another[:2] == ("http://10.0.0.1:5/", False)


def test_what_is_shown_to_people_is_at_sockets_of_this_user_unless_a_port_is_asked_for(folder: Path) -> None:
    def shown(*words: str) -> tuple[object, object]:
        scaling = settings_of(folder, "--scaling", "--socket", f"{folder}/mine.sock", *words).scaling
        assert scaling is not None
        return scaling.dump, scaling.permits_dump

    assert shown() == (folder / "mine-agent.sock", folder / "mine-permits.sock")
    assert shown("--dump-port", "10300", "--permits-dump-port", "10298") == (10300, 10298)
    assert shown("--dump-port", "0", "--permits-dump-port", "0") == (None, None)


def test_the_local_permit_server_has_a_secret_token(folder: Path) -> None:
    def token(*words: str) -> str | None:
        scaling = settings_of(folder, "--scaling", *words).scaling
        assert scaling is not None
        assert scaling.token is None or scaling.token not in repr(scaling)
        return scaling.token

    first, second = token(), token()
    assert first is not None
    assert len(first) >= 32
    assert first != second
    assert token("--permits-without-token") is None
    assert token("--permits", "http://10.0.0.1:5/") is None, "that of another server is the admin's to say"


def test_options_name_the_owners_of_folders_and_interfaces(folder: Path) -> None:
    words = ["--image-folder", "/a", "--image-folder", "/b:shared", "--image-folder", "/c:d:any", "--qmp-folder", "/e"]
    machines = settings_of(folder, *words, "--tap", "vm*", "--tap", "team-a:tap0").machines
    assert machines.folders == (
        AllowedFolder(Path("/a")),
        AllowedFolder(Path("/b"), "shared"),
        AllowedFolder(Path("/c:d"), "any"),
    )
    assert machines.socket_folders == (AllowedFolder(Path("/e"), "own"),)
    assert (machines.taps, machines.user_net) == (("vm*", "team-a:tap0"), False)
    assert settings_of(folder, "--allow-user-net").machines.user_net


def test_folders_of_option_roms_are_allowed_and_seen_by_qemu(folder: Path) -> None:
    machines = settings_of(folder, "--rom-folder", "/roms", "--qemu-path", "/more").machines
    assert (machines.rom_folders, machines.visible) == ((Path("/roms"),), (Path("/more"), Path("/roms")))
    assert settings_of(folder).machines.rom_folders == ()


def test_devices_without_a_reset_go_only_with_the_admins_word(folder: Path) -> None:
    def allowed(*words: str) -> tuple[bool, bool]:
        seen: list[InventoryOptions] = []

        @click.command()
        @settings_options(InventoryOptions, "options")
        def command(options: InventoryOptions) -> None:
            seen.append(options)

        assert CliRunner().invoke(command, words, catch_exceptions=False).exit_code == 0
        settings = node_settings(seen[0], PluginOptions(state=folder), 60)
        return settings.bindings.allow_no_reset, settings.inventory.allow_no_reset

    assert allowed() == (False, False)
    assert allowed("--allow-no-reset") == (True, True)


def test_users_of_machines_are_a_range_of_which_waiting_ones_have_half(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings_of(folder).machines.users == range(2_146_435_072, 2_146_436_072)
    assert settings_of(folder, "--machine-users", "3000000000-3000000009").machines.users == range(
        3_000_000_000, 3_000_000_005
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(BadSetting, match="the kubelet gives"):
        settings_of(folder, "--machine-users", "70000-71999")


def test_a_token_that_is_readable_by_others_or_cannot_be_sent_is_refused(folder: Path, devalloc: Shell) -> None:
    file = folder / "token"
    for content, mode, problem in (
        (b"0123456789abcdef\n", 0o666, "is open to other users (mode 0666), who could ask for permits as this node"),
        (b"0123456789abcdef\n", 0o640, f"`chmod 600 {file}`"),
        (bytes(range(128, 192)), 0o600, "one line of 16 to 2048 printable ASCII characters"),
        (b"0123456789abcdef\n0123456789abcdef\n", 0o600, "one line of 16"),
    ):
        file.write_bytes(content)
        file.chmod(mode)
        result = devalloc(*arguments(folder, "--scaling", "--permits-token-file", str(file)))
        assert (result.code, problem in result.err) == (2, True), result.err
    file.write_bytes(b"0123456789abcdef\n")
    scaling = settings_of(folder, "--scaling", "--permits-token-file", str(file)).scaling
    assert scaling is not None
    assert scaling.token == "0123456789abcdef"


def test_other_releases_are_followed_when_asked_for(folder: Path) -> None:
    plain, old = (settings_of(folder, "--scaling", *words).scaling for words in ((), ("--compat", "v0.31")))
    assert plain is not None
    assert old is not None
    assert (plain.compat, plain.era, plain.timing.plugin_tick) == (None, ProtocolEra.NEWEST, 15_000)
    assert (old.compat, old.era, old.timing.plugin_tick) == ("v0.31", ProtocolEra.V0_31, 5_000)


OF_V0_31 = {"loadAverageFractionTarget": 0.5, "memoryUsageFractionTarget": 0.5, "enableLFCMetrics": False}


def test_what_agents_in_use_are_configured_with_is_read(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = folder / "agent.json"
    content = {
        "scaling": {"computeUnit": {"vCPUs": 1, "mem": "4Gi"}, "defaultConfig": OF_V0_31},
        "scheduler": {"requestAtLeastEverySeconds": 7, "requestPort": 99},
        "billing": {},
        "metrics": {"system": {"secondsBetweenRequests": 2.5}},
    }
    file.write_text(json.dumps(content))
    words = ("--scaling", "--agent-config", str(file), "--compat", "v0.31")
    read = settings_of(folder, *words).scaling
    assert read is not None
    assert (read.unit, read.config.load_average_fraction_target) == (Resources(1000, 4 * 2**30), 0.5)
    assert (read.timing.plugin_tick, read.agent.system_interval) == (7_000, 2_500)
    warning = f"--agent-config {file}: warning: scheduler.requestPort: is ignored: use --permits\n"
    assert capfd.readouterr().err == warning
    other = settings_of(folder, *words, "--compute-unit", "500m,1Gi").scaling
    assert other is not None
    assert other.unit == Resources(500, 2**30)


def test_an_invalid_configuration_of_agents_is_refused(folder: Path, devalloc: Shell) -> None:
    file = folder / "agent.json"
    for text, problem in {
        "{": "Expecting property name",
        "[" * 100_000: "recursion",
        '{"monitor": {"retryFailedRequestSeconds": 0}}': "monitor.retryFailedRequestSeconds: must be more than 0",
        '{"scaling": {"defaultConfig": {}}}': "scaling.defaultConfig.loadAverageFractionTarget: is required",
    }.items():
        file.write_text(text)
        result = devalloc(*arguments(folder, "--scaling", "--agent-config", str(file)))
        assert (result.code, problem in result.err) == (2, True), result.err
    odd = {"computeUnit": {"vCPUs": 1, "mem": 1000}, "defaultConfig": OF_V0_31}
    file.write_text(json.dumps({"scaling": odd}))
    result = devalloc(*arguments(folder, "--scaling", "--agent-config", str(file), "--compat", "v0.31"))
    assert (result.code, "scaling.computeUnit must have" in result.err) == (2, True), result.err


def test_capacity_is_enforced_unless_switched_off_with_the_limits_given(folder: Path) -> None:
    assert settings_of(folder, "--no-enforce-capacity").capacity is None
    capacity = settings_of(folder, "--oversub-cpu", "2", "--network-limit", "1Gbps").capacity
    assert capacity is not None
    assert (capacity.cpu.capacity, capacity.cpu.effective_limit, capacity.network.capacity) == (
        16_000,
        32_000,
        125_000_000,
    )


def test_a_host_of_unknown_capacity_is_refused_at_the_start(folder: Path, devalloc: Shell) -> None:
    shutil.rmtree(folder / "host/sys/devices/system")
    capacity = settings_of(folder).capacity
    assert capacity is not None
    assert (capacity.cpu.source, capacity.disk_io.source) == ("unknown", "assumed"), "nothing known is left out"
    result = devalloc(*arguments(folder, "--enforce-capacity", "--dry-run"))
    assert (result.code, result.err) == (1, "error: discover CPU: neither /sys nor /proc lists any\n")
