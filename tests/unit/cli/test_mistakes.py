"""What a newcomer gets wrong, and what the command says: what, where, and what to do."""

from __future__ import annotations

import importlib
import logging
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.cli.options import places
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu import preflight
from devalloc_machines.qemu.settings import MachineConfig
from tests.support.cli_shell import Shell, claim, device_class, pool, text
from tests.support.host_pools import machine
from tests.support.toy_machines import vm

FULL_NAME = "A100 SXM4 80GB"
Object = dict[str, Any]


def fleet(*more: Object, model: str = FULL_NAME) -> str:
    return text(pool(model=model), device_class(), *more)


@pytest.mark.parametrize("words", [("validate",), ("solve",), ("capacity",), ("explain", "bad")])
def test_a_bad_expression_is_bad_input_for_every_verb_with_file_and_line(
    devalloc: Shell, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "bad.yaml").write_text(fleet(claim("bad", constraints="model == 'x'")))

    result = devalloc(*words, "-f", tmp_path / "bad.yaml")

    assert result.code == 2
    assert f"{tmp_path / 'bad.yaml'}, document 3, line " in result.err
    assert "undeclared name 'model'" in result.err


@pytest.mark.parametrize("verb", ["apply", "validate"])
def test_two_documents_of_one_name_are_both_wrong(devalloc: Shell, verb: str) -> None:
    result = devalloc(verb, "-f", "-", stdin=text(claim("a"), claim("b"), claim("a", count=2)))

    assert result.code == 2
    assert result.err.count("2 objects are named DeviceClaim") == 2
    assert "document 1" in result.err
    assert "document 3" in result.err
    if verb == "apply":
        assert result.out == "deviceclaim/b created\n"


def test_solve_calls_them_wrong_too(devalloc: Shell) -> None:
    assert devalloc("solve", "-f", "-", stdin=fleet(claim("a"), claim("a", count=2))).code == 2


@pytest.mark.parametrize("verb", ["apply", "validate", "solve"])
def test_a_misspelled_annotation_is_noticed(devalloc: Shell, verb: str) -> None:
    slipped = claim("a")
    slipped["metadata"]["annotations"] = {"devalloc.io/prioritiy": "5"}

    result = devalloc(verb, "-f", "-", stdin=fleet(slipped))

    assert result.code == 0
    assert "metadata.annotations[devalloc.io/prioritiy]" in result.err
    assert "did you mean devalloc.io/priority?" in result.err


def test_a_pin_to_a_node_that_does_not_exist_has_its_own_message(devalloc: Shell) -> None:
    pinned = claim("a")
    pinned["metadata"]["annotations"] = {"devalloc.io/node": "nodea"}

    result = devalloc("solve", "-f", "-", stdin=fleet(pinned))

    assert "no node 'nodea' has devices; did you mean 'node-a'?" in result.out
    assert "at most 0" not in result.out


def test_a_pin_to_a_node_without_such_devices_reports_how_many_there_are(devalloc: Shell) -> None:
    pinned = claim("a")
    pinned["metadata"]["annotations"] = {"devalloc.io/node": "node-b"}
    other = pool("nics", node="node-b")
    other["spec"]["driver"] = "nic.devalloc.io"

    (one,) = devalloc("solve", "-f", "-", "-o", "json", stdin=fleet(pinned, other)).json["claims"]

    assert {"code": "tooFew", "node": "node-b", "wanted": 1, "most": "0"} in one["causes"]
    assert one["message"].endswith("; remove the annotation devalloc.io/node=node-b")


@pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain"])
def test_a_node_to_be_cordoned_that_does_not_exist_is_answered_with_one_that_does(devalloc: Shell, verb: str) -> None:
    devalloc("apply", "-f", "-", stdin=fleet())

    result = devalloc(verb, "node/nodea")

    assert result.code == 4
    assert "did you mean node/node-a?" in result.err


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        ("device.model == 'A100'", "but there is 'A100 SXM4 80GB'; write device.model.contains('A100')"),
        ("device.model == 'GA100 [A100 SXM4 80GB]'", "write 'A100 SXM4 80GB' for 'GA100 [A100 SXM4 80GB]' in "),
        ("device.model == 'a100'", "write device.model.contains('A100')"),
        ("device.vram >= 40", "none of 2 devices has attribute `vram`"),
        ("device.attributes['gpu'].model == 'x'", "`device` has no attributes map here; write device.model"),
        ("device.attributes['model'] == 'x'", "write device.model instead of device.attributes['model']"),
        ("device.capacity.modle > 3", "write device.model instead of device.capacity.modle"),
        ("'vram' in device.capacity", "write 'vram' in device instead of 'vram' in device.capacity"),
        ("device.capacity['vram'] >= 40", "write device.vram instead of device.capacity['vram']"),
    ],
)
def test_an_expression_that_nothing_matches_is_answered_with_what_to_write(
    devalloc: Shell, expression: str, advice: str
) -> None:
    result = devalloc("solve", "-f", "-", stdin=fleet(claim("a", constraints=expression)))

    assert result.code == 3
    assert advice in result.out


def test_devices_that_are_cordoned_are_counted_in_each_part_of_a_reason(devalloc: Shell) -> None:
    wanted = claim("a", constraints="device.vram == 40")
    devalloc(
        "apply", "-f", "-", stdin=text(pool(devices=3), pool("b", node="node-b", devices=1), device_class(), wanted)
    )
    devalloc("cordon", "node/node-b")

    (one,) = devalloc("solve", "-o", "json").json["claims"]
    (funnel,) = one["funnel"]
    assert [(step["what"], step["count"]) for step in funnel["steps"]] == [("fail device.vram == 40", 4)]
    for printed in (one["message"], devalloc("explain", "a").out):
        assert "none of 4 devices has attribute `vram`" in printed


def test_an_amount_that_devices_share_is_asked_for_and_not_compared(devalloc: Shell) -> None:
    shared = pool()
    for each in shared["spec"]["devices"]:
        each["resources"] = [{"name": "memory", "capacity": "40Gi"}]
    wanted = claim("a", constraints="device.capacity['memory'] >= quantity('10Gi')")

    solved = devalloc("solve", "-f", "-", stdin=text(shared, device_class(), wanted))

    assert "`memory` is an amount that a claim requests; write requests: {memory: …}" in solved.out


def test_an_amount_of_whole_devices_is_answered_with_how_to_choose_them(devalloc: Shell) -> None:
    wanted = claim("a")
    wanted["spec"]["claims"][0]["requests"] = {"memory": "10Gi"}

    explained = devalloc("explain", "a", "-f", "-", stdin=fleet(wanted)).out

    assert (
        "What to do: Devices of this class share no memory: leave the amount out, and choose them by attribute in"
        in (explained)
    )
    assert "; remove request" not in explained, "a claim without its only request is none"
    assert "raise limits.count" not in explained

    wanted["spec"]["claims"].insert(0, {"deviceClass": "gpu"})
    explained = devalloc("explain", "a", "-f", "-", stdin=fleet(wanted)).out
    assert "; remove spec.claims[1].requests.memory to get whole devices\n" in explained
    assert "What to do: Devices of this class share no memory" in explained


def test_an_amount_above_what_devices_share_is_answered_with_less(devalloc: Shell) -> None:
    shared = pool()
    for each in shared["spec"]["devices"]:
        each["resources"] = [{"name": "memory", "capacity": "40Gi"}]
    wanted = claim("a")
    wanted["spec"]["claims"][0]["requests"] = {"memory": "100Gi"}

    explained = devalloc("explain", "a", "-f", "-", stdin=text(shared, device_class(), wanted)).out

    assert "What to do: Ask for less" in explained


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        ("device.modle == 'x'", "Write device.model instead of device.modle in spec.claims[0].constraints."),
        ("device.model == 'A100 SXM4 80gb'", "Write 'A100 SXM4 80GB' instead of 'A100 SXM4 80gb' in spec.claims[0]"),
    ],
)
def test_what_to_do_about_a_typing_error_is_to_write_what_was_meant(
    devalloc: Shell, expression: str, advice: str
) -> None:
    explained = devalloc("explain", "a", "-f", "-", stdin=fleet(claim("a", constraints=expression)))

    assert f"What to do: {advice}" in explained.out


def test_a_part_of_what_devices_have_is_nearer_than_another_model(devalloc: Shell) -> None:
    solved = devalloc(
        "solve", "-f", "-", stdin=fleet(pool("a10", model="A10"), claim("a", constraints="device.model == 'A100'"))
    )

    assert "write device.model.contains('A100')" in solved.out
    assert "did you mean 'A10'" not in solved.out


def test_the_advised_expression_works(devalloc: Shell) -> None:
    right = claim("a", constraints="device.model.contains('A100')")

    assert devalloc("solve", "-f", "-", stdin=fleet(right)).code == 0


def test_explain_of_a_machine_that_names_its_node_says_what_became_of_it(devalloc: Shell) -> None:
    machine = {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"name": "web"},
        "spec": {
            "nodeName": "node-a",
            "cpu": {"min": "1", "max": "2"},
            "memory": {"min": "512Mi", "max": "1Gi"},
            "start": {"kernel": "/boot/vmlinuz"},
        },
    }
    applied = devalloc("apply", "-f", "-", stdin=text(machine))
    assert applied.code == 0, applied.err

    result = devalloc("explain", "vm/web")

    assert result.code == 3
    assert "because its spec.nodeName is node-a" in result.out
    assert "No node has taken the machine yet: is a node plugin running on node node-a?" in result.out
    assert "there is no machine" in devalloc("explain", "vm/wep").err


@pytest.mark.parametrize(
    ("spec", "status", "why"),
    [
        ({"running": False}, {"reason": "StoppedOnRequest"}, "its spec.running is false"),
        ({"restartPolicy": "Never"}, {"reason": "MachineEnded"}, "it ended and its spec.restartPolicy is Never"),
    ],
)
def test_explain_of_a_machine_that_has_stopped_says_how_to_start_it(
    devalloc: Shell, spec: dict[str, Any], status: dict[str, Any], why: str
) -> None:
    """Its status names its node and its spec names none: it is not placed because it does not want to be."""
    assert devalloc("apply", "-f", "-", stdin=text(free_machine(**spec))).code == 0
    says(devalloc, phase="Stopped", nodeName="node-a", message="as it is", **status)

    result = devalloc("explain", "vm/web")

    assert (result.code, "nodeName" in result.out) == (3, False), result.out
    assert f", because {why}.\nIt is Stopped; {status['reason']}: as it is.\n" in result.out
    assert result.out.endswith("\n\nWhat to do: `devalloc start vm/web`.\n")
    answer = devalloc("explain", "vm/web", "-o", "json").json
    assert (answer["allocated"], answer["reason"], answer["message"]) == (False, status["reason"], "as it is")


def test_explain_of_a_machine_that_runs_on_the_node_of_its_spec_finds_nothing_wrong(devalloc: Shell) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(free_machine(nodeName="node-a"))).code == 0
    says(devalloc, phase="Running", nodeName="node-a")

    result = devalloc("explain", "vm/web")

    assert (result.code, result.out) == (
        0, "default/web is not placed by devalloc, because its spec.nodeName is node-a.\nIt is Running.\n",
    )  # fmt: skip
    assert devalloc("explain", "vm/web", "-o", "json").json["allocated"]


def free_machine(**spec: Any) -> Any:
    """One that may be on any node."""
    made = vm("web", **spec)
    if "nodeName" not in spec:
        del made["spec"]["nodeName"]
    return made


def says(devalloc: Shell, **status: Any) -> None:
    """Of the machine ``web``, as its node does."""
    with closing(SQLiteStore(devalloc.store)) as store:
        store.replace_status({**store.get("VirtualMachine", "default", "web"), "status": status})


def test_without_qemu_the_log_says_so_and_nothing_of_kvm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kvm").touch()
    config = MachineConfig(state=tmp_path / "state", binary="no-such-qemu")

    with caplog.at_level(logging.WARNING):
        assert preflight.choose_accelerator(config, tmp_path / "kvm") == "tcg"

    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "no-such-qemu not found on this host: machines cannot start until QEMU is installed"


@pytest.mark.parametrize("words", [("vm", "list"), ("vm", "top"), ("warm", "list")])
def test_verbs_of_the_node_plugin_look_beside_the_store(devalloc: Shell, words: tuple[str, ...]) -> None:
    result = devalloc(*words)

    assert result.code == 1
    assert str(devalloc.store.parent / "node" / "node.sock") in result.err


def test_a_store_that_is_named_says_where_the_plugin_is(devalloc: Shell, tmp_path: Path) -> None:
    result = devalloc("vm", "list", "--store", tmp_path / "other" / "devalloc.db")

    assert str(tmp_path / "other" / "node" / "node.sock") in result.err


def test_the_usual_store_leads_to_the_usual_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    from devalloc.store.paths import default_path

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert places.default_socket(default_path({})) == places.DEFAULT_SOCKET


@pytest.mark.parametrize(
    ("words", "missing", "what"),
    [
        (("demo",), "ortools", "devalloc"),
        (("demo",), "re2", "devalloc"),
        (("up", "--no-node", "--no-inventory", "--page", "127.0.0.1:1"), "aiohttp", "'devalloc[permits]'"),
    ],
)
def test_a_verb_says_what_to_install_before_it_prints_anything(
    devalloc: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], missing: str, what: str
) -> None:
    real = importlib.import_module

    def hidden(name: str, package: str | None = None) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", hidden)

    result = devalloc(*words)

    assert (result.code, result.out) == (1, "")
    assert f"the Python package {missing!r} is missing; install it with: pip install {what}\n" in result.err


def test_validate_counts_in_plain_english(devalloc: Shell, tmp_path: Path) -> None:
    assert devalloc("validate", "-f", "-", stdin=text(claim())).out == "1 document, valid\n"
    assert devalloc("validate", "-f", "-", stdin=fleet()).out == "2 documents, all valid\n"
    assert devalloc("validate", "-f", tmp_path).out == ""


def test_solve_without_claims_says_what_there_is(devalloc: Shell) -> None:
    assert devalloc("solve", "-f", "-", stdin=fleet()).out == "no claims: 1 DeviceClass, 1 DevicePool\n"


@pytest.mark.parametrize("verb", ["apply", "solve", "validate"])
def test_a_url_is_answered_with_how_to_fetch_it(devalloc: Shell, verb: str) -> None:
    result = devalloc(verb, "-f", "https://example.com/x.yaml")

    assert result.code == 2
    assert f"curl -sSL https://example.com/x.yaml | devalloc {verb} -f -" in result.err


def test_the_refusal_of_a_json_array_shows_how_to_write_several_objects(devalloc: Shell) -> None:
    assert "separate the objects with ---" in devalloc("apply", "-f", "-", stdin="[{}]").err


def test_apply_writes_all_objects_before_it_prints(devalloc: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of only the first line, such as `| head -1`, must not end it half-way."""
    import click

    from devalloc.cli.main import OutputClosed
    from devalloc.store.sqlite import SQLiteStore

    seen: list[int] = []

    def stored(*_: Any, **__: Any) -> None:
        store = SQLiteStore(devalloc.store)
        seen.append(len(store.list().objects))
        store.close()
        raise BrokenPipeError

    monkeypatch.setattr(click, "echo", stored)
    with pytest.raises(OutputClosed):
        devalloc("apply", "-f", "-", stdin=fleet(claim("a"), claim("b")))
    assert seen == [4]


def test_capacity_refuses_options_of_the_host_without_host(devalloc: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim()))

    result = devalloc("capacity", "train", "--node-name", "x", "--oversub-cpu", "2")

    assert result.code == 2
    assert "--node-name and --oversub-cpu: only with --host" in result.err
    monkeypatch.setenv("DEVALLOC_NODE_SOCKET", "/run/devalloc/node.sock")
    assert devalloc("capacity", "train").code == 0


@pytest.mark.parametrize("word", ["vms", "vm/"])
def test_explain_of_a_kind_without_a_name_lists_the_objects_of_that_kind(devalloc: Shell, word: str) -> None:
    devalloc("apply", "-f", "-", stdin=text(claim(), machine("web", "1", "1Gi")))

    result = devalloc("explain", word)

    assert result.code == 2
    assert f"which {word.rstrip('/')}? Write {word.rstrip('/')}/NAME; the only one is web;" in result.err


def test_usage_says_that_nothing_was_counted_for_a_namespace(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(claim()))

    assert (
        "nothing was counted in 2026-11 for namespace nope"
        in devalloc("usage", "--month", "2026-11", "--of", "nope").err
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"cpu": 2}, "spec.cpu: must be a map of fields (min, max, use), not a number"),
        ({"memory": "2Gi"}, "spec.memory: must be a map of fields (min, max, use, method, …), not a string"),
        ({"labels": "x"}, "spec.labels: unknown field; known fields: "),
        ({"start": {"image": "web.qcow2"}}, "spec.start.image: unknown field; write disks, such as"),
    ],
)
def test_the_error_about_a_wrong_field_shows_how_to_write_it(devalloc: Shell, spec: Object, message: str) -> None:
    wrong = machine("web", "1", "1Gi")
    wrong["spec"] |= spec

    assert message in devalloc("validate", "-f", "-", stdin=text(wrong)).err


def test_a_map_with_names_of_the_user_has_no_fields_to_list(devalloc: Shell) -> None:
    wrong = claim()
    wrong["metadata"]["labels"] = "a=b"

    assert (
        "metadata.labels: must be a map of fields, not a string"
        in devalloc("validate", "-f", "-", stdin=text(wrong)).err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("cordon", "vm/web"),
            "cannot cordon vm/web, a VirtualMachine, only nodes, pools and devices; to move a machine",
        ),
        (
            ("uncordon", "claim/train"),
            "cannot uncordon claim/train, a DeviceClaim, only nodes, pools and devices; to take back its devices",
        ),
        (
            ("drain", "vm/web"),
            "cannot drain vm/web, a VirtualMachine, only nodes; to move a machine: devalloc migrate vm/web",
        ),
        (("cordon", "gpus/gpu-9"), "there is no node, pool or device gpus/gpu-9"),
        (("cordon", "pool/gpu"), "there is no node, pool or device pool/gpu; did you mean pool/gpus?"),
    ],
)
def test_cordon_names_the_kind_of_an_object_that_it_refuses(
    devalloc: Shell, words: tuple[str, ...], message: str
) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim(), machine("web", "1", "1Gi")))

    result = devalloc(*words)

    assert result.code == (4 if message.startswith("there is no") else 1)
    assert message in result.err


def test_wait_does_not_wait_for_the_end_of_an_object_that_has_no_other_state(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool()))

    result = devalloc("wait", "pool/gpus", "--timeout", "1h")

    assert result.code == 2
    assert "devicepool/gpus: a DevicePool has no state to wait for, except --for=deleted" in result.err


@pytest.mark.parametrize("verb", ["validate", "solve", "apply"])
def test_a_quota_for_a_class_that_does_not_exist_is_a_warning(devalloc: Shell, verb: str) -> None:
    hard = {"gpuu.deviceclass.devmgmtproto.k8s.io/devices": "1"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": hard}}

    outcome = devalloc(verb, "-f", "-", stdin=text(pool(), device_class("gpu"), quota))

    assert outcome.code == 0
    assert outcome.err.count("is for class gpuu, which does not exist; did you mean gpu?") == 1
    assert outcome.err.startswith("warning: ")
    alone = devalloc(verb, "-f", "-", stdin=text(quota)).err
    assert ("is for class gpuu" in alone) == (verb == "apply"), "the class is in the store now"


def test_a_quota_for_a_class_of_the_store_is_no_mistake(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(device_class("gpu")))
    hard = {"gpu.deviceclass.devmgmtproto.k8s.io/devices": "1"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": hard}}

    assert devalloc("apply", "-f", "-", stdin=text(device_class("other"), quota)).err == ""
