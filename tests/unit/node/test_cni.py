"""Networks of CNI plugins: which list counts, what each plugin gets, and what is believed of its answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from devalloc_machines.warm import cni
from devalloc_machines.warm.addresses import UPLINK, CniNetwork
from devalloc_machines.warm.cni import AddressesExhausted, Attachment, CniList

FIRST = {"type": "bridge", "capabilities": {"mac": True}, "mtu": 1400}
SECOND = {"type": "firewall"}


class Plugins:
    """Programs that answer as a test has it, and what they were asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Mapping[str, str], Any]] = []
        self.answer: Callable[[str, str], tuple[int, str]] = lambda command, kind: (0, json.dumps({"by": kind}))

    def __call__(
        self, program: str, environment: Mapping[str, str], text: bytes, due: float
    ) -> subprocess.CompletedProcess[bytes]:
        command, kind = environment["CNI_COMMAND"], Path(program).name
        self.calls.append((command, kind, environment, json.loads(text)))
        code, out = self.answer(command, kind)
        return subprocess.CompletedProcess([program], code, out.encode(), b"")

    def order(self) -> list[tuple[str, str]]:
        return [(command, kind) for command, kind, _, _ in self.calls]

    def configurations(self) -> list[Any]:
        return [content for _, _, _, content in self.calls]


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    plugins = Plugins()
    monkeypatch.setattr(cni, "_process", plugins)
    return plugins


@pytest.fixture
def attachment(tmp_path: Path) -> Attachment:
    programs = tmp_path / "bin"
    programs.mkdir()
    for kind in ("bridge", "firewall"):
        (programs / kind).write_text("")
        (programs / kind).chmod(0o755)
    (tmp_path / "netns").write_text("")
    network = CniList("lan", "1.0.0", (FIRST, SECOND))
    return Attachment("m1", str(tmp_path / "netns"), "02:00:00:00:00:01", network, ("/nowhere", str(programs)))


def of_version(attachment: Attachment, version: str, *, is_checked: bool = True) -> Attachment:
    network = CniList("lan", version, attachment.network.plugins, is_checked)
    return Attachment(attachment.id, attachment.namespace, attachment.mac, network, attachment.bin_dirs, {"by": "add"})


# -- which list ------------------------------------------------------------------------------------------------------


def lists(folder: Path, **files: Any) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_the_first_list_counts_or_that_of_the_name(tmp_path: Path) -> None:
    folder = lists(
        tmp_path / "net.d",
        a__txt={"name": "no", "cniVersion": "1.0.0", "plugins": [SECOND]},
        b__conflist={"name": "one", "cniVersion": "1.0.0", "plugins": [SECOND]},
        c__json={"name": "two", "cniVersion": "0.4.0", "plugins": [FIRST, SECOND], "disableCheck": True},
        d__conf={"name": "three", "type": "bridge"},
    )
    assert cni.load_list(CniNetwork(conf_dir=folder)).name == "one"
    assert cni.load_list(CniNetwork("two", folder)) == CniList("two", "0.4.0", (FIRST, SECOND), is_checked=False)
    single = cni.load_list(CniNetwork("three", folder))
    assert (single.version, single.plugins) == ("0.3.1", ({"name": "three", "type": "bridge"},))
    with pytest.raises(OSError, match="no list of CNI plugins named four"):
        cni.load_list(CniNetwork("four", folder))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "../x"}, "the name of a network"),
        ({"cniVersion": "0.2.0"}, "cniVersion must be one of"),
        ({"cniVersion": None}, "cniVersion must be one of"),
        ({"plugins": []}, "a list of 1 to 32"),
        ({"plugins": [SECOND] * 33}, "a list of 1 to 32"),
        ({"plugins": {}}, "a list of 1 to 32"),
        ({"plugins": [{"type": "../../bin/sh"}]}, "a type that is the name of a program"),
        ({"plugins": ["bridge"]}, "no attribute"),
    ],
)
def test_a_list_that_is_wrong_is_passed_over_and_named_if_there_is_no_other(
    tmp_path: Path, change: Mapping[str, Any], problem: str
) -> None:
    right = {"name": "lan", "cniVersion": "1.1.0", "plugins": [SECOND] * 32}
    folder = lists(tmp_path / "net.d", a__conflist={**right, **change})
    with pytest.raises(OSError, match=f"no list of CNI plugins at all .a.conflist: .*{problem}"):
        cni.load_list(CniNetwork(conf_dir=folder))
    (folder / "b.conflist").write_text(json.dumps(right))
    assert cni.load_list(CniNetwork(conf_dir=folder)).name == "lan"


# -- what plugins get --------------------------------------------------------------------------------------------------


def test_each_plugin_that_adds_gets_the_result_of_the_one_before(plugins: Plugins, attachment: Attachment) -> None:
    added = cni.add(attachment, 10.0)
    assert plugins.order() == [("ADD", "bridge"), ("ADD", "firewall")]
    common = {"name": "lan", "cniVersion": "1.0.0"}
    assert plugins.configurations() == [
        {"type": "bridge", "mtu": 1400, "runtimeConfig": {"mac": attachment.mac}, **common},
        {"type": "firewall", "prevResult": {"by": "bridge"}, **common},
    ]
    assert added.result == {"by": "firewall"}
    environment = plugins.calls[0][2]
    assert {name: value for name, value in environment.items() if name != "PATH"} == {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "m1",
        "CNI_NETNS": attachment.namespace,
        "CNI_IFNAME": UPLINK,
        "CNI_ARGS": "IgnoreUnknown=1;MAC=02:00:00:00:00:01",
        "CNI_PATH": ":".join(attachment.bin_dirs),
    }


@pytest.mark.parametrize("version", cni.VERSIONS)
def test_check_and_a_result_for_del_came_with_version_0_4(
    plugins: Plugins, attachment: Attachment, version: str
) -> None:
    has_check = version not in ("0.3.0", "0.3.1")
    cni.check(of_version(attachment, version), 10.0)
    assert plugins.order() == ([("CHECK", "bridge"), ("CHECK", "firewall")] if has_check else [])
    plugins.calls.clear()
    cni.delete(of_version(attachment, version), 10.0)
    assert plugins.order() == [("DEL", "firewall"), ("DEL", "bridge")]
    given = [content.get("prevResult") for content in plugins.configurations()]
    assert given == ([{"by": "add"}] * 2 if has_check else [None, None])


def test_a_list_can_forbid_check(plugins: Plugins, attachment: Attachment) -> None:
    cni.check(of_version(attachment, "1.0.0", is_checked=False), 10.0)
    assert plugins.calls == []


def test_only_del_leaves_out_a_namespace_that_is_gone(plugins: Plugins, attachment: Attachment) -> None:
    Path(attachment.namespace).unlink()
    cni.check(attachment, 10.0)
    cni.delete(attachment, 10.0)
    of = {command: environment["CNI_NETNS"] for command, _, environment, _ in plugins.calls}
    assert of == {"CHECK": attachment.namespace, "DEL": ""}


def test_a_plugin_that_is_not_there_or_may_not_run_is_an_error(plugins: Plugins, attachment: Attachment) -> None:
    program = Path(attachment.bin_dirs[1]) / "firewall"
    program.chmod(0o644)
    with pytest.raises(OSError, match=r"is not in /nowhere, .*; install it"):
        cni.delete(attachment, 10.0)
    program.unlink()
    program.mkdir(mode=0o755)
    with pytest.raises(OSError, match=r"is not in /nowhere, .*; install it"):
        cni.delete(attachment, 10.0)


# -- what they answer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ((0, ""), OSError, "invalid result from ADD"),
        ((0, "[]"), OSError, "invalid result from ADD"),
        ((1, json.dumps({"code": 7, "msg": "no bridge", "details": "br9"})), OSError, "ADD: no bridge; br9"),
        ((1, json.dumps({"code": 7, "msg": "no bridge"})), OSError, "ADD: no bridge: "),
        ((1, "a\n text"), OSError, "ADD: a text"),
        ((3, ""), OSError, "ADD: ended with 3"),
        ((1, json.dumps({"msg": "failed: No IP addresses available in range set"})), AddressesExhausted, "no free"),
    ],
)
def test_an_answer_that_is_no_result_is_an_error_with_its_reason(
    plugins: Plugins, attachment: Attachment, answer: tuple[int, str], error: type[OSError], words: str
) -> None:
    plugins.answer = lambda command, kind: answer
    with pytest.raises(OSError, match=words) as caught:
        cni.add(attachment, 10.0)
    assert type(caught.value) is error
    assert plugins.order() == [("ADD", "bridge")]


def test_only_add_lacks_addresses(plugins: Plugins, attachment: Attachment) -> None:
    plugins.answer = lambda command, kind: (1, json.dumps({"msg": "no ip addresses available"}))
    with pytest.raises(OSError, match="DEL: no ip addresses") as caught:
        cni.delete(attachment, 10.0)
    assert not isinstance(caught.value, AddressesExhausted)


IPS = [{"address": "fd00::2/64", "interface": 1}, {"address": "10.0.0.1/24", "interface": 0}]
OURS = {"address": "10.0.0.7/24", "interface": 1}
INTERFACES = [{"name": "br0"}, {"name": "up", "sandbox": "/netns"}]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"ips": [*IPS, OURS], "interfaces": INTERFACES}, ("10.0.0.7", 24, "", ())),
        ({"ips": [{"address": "10.0.0.7/16", "gateway": "10.0.0.1"}]}, ("10.0.0.7", 16, "10.0.0.1", ())),
        (
            {"ips": [OURS], "interfaces": INTERFACES, "routes": [{"dst": "10.9.0.0/16", "gw": "10.0.0.9"},
             {"dst": "0.0.0.0/0", "gw": "10.0.0.2"}], "dns": {"nameservers": ["fd00::1", "10.0.0.3"]}},
            ("10.0.0.7", 24, "10.0.0.2", ("10.0.0.3",)),
        ),
        ({"ips": [OURS], "interfaces": INTERFACES, "routes": [{"dst": "0.0.0.0/0"}]}, ("10.0.0.7", 24, "", ())),
    ],
)  # fmt: skip
def test_the_address_is_the_first_one_that_the_sandbox_has(
    attachment: Attachment, result: Mapping[str, Any], expected: tuple[object, ...]
) -> None:
    assert cni.ipv4_of(Attachment("m1", "", "", attachment.network, (), result)) == expected


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "no IPv4 address"),
        ({"ips": IPS, "interfaces": INTERFACES}, "no IPv4 address"),
        ({"ips": [{"address": "10.0.0.7/24", "interface": 2}], "interfaces": INTERFACES}, "invalid result"),
        ({"ips": [{"address": "10.0.0.7/99"}]}, "invalid result"),
        ({"ips": ["10.0.0.7"]}, "invalid result"),
    ],
)
def test_a_result_without_an_address_is_an_error(
    attachment: Attachment, result: Mapping[str, Any] | None, words: str
) -> None:
    with pytest.raises(OSError, match=words):
        cni.ipv4_of(Attachment("m1", "", "", attachment.network, (), result))


# -- attachments -------------------------------------------------------------------------------------------------------


def test_an_attachment_is_written_and_read_until_it_is_dropped(tmp_path: Path, attachment: Attachment) -> None:
    cache = tmp_path / "cache"
    assert (cni.attachments(cache), cni.read_attachment(tmp_path, "m1")) == ([], None)
    whole = of_version(attachment, "0.4.0", is_checked=False)
    cni.write_attachment(cache, whole)
    assert (cni.attachments(cache), cni.read_attachment(cache, "m1")) == (["m1"], whole)
    assert oct((cache / "m1.json").stat().st_mode & 0o777) == "0o600"
    (cache / "m1.json").write_text("{}")
    with pytest.raises(OSError, match="delete the attachment by hand"):
        cni.read_attachment(cache, "m1")
    cni.drop_attachment(cache, "m1")
    cni.drop_attachment(cache, "m1")
    assert cni.attachments(cache) == []
