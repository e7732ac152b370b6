"""Whether a refusal is worth another try: it belongs to the code, as docs/node-codes.md says. A place of the code says
so only where it differs, and the test that provokes it is named here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from devalloc_node.errors import PERMANENT, TRANSIENT, Denied, Failed, Unknown
from tests.unit.node.test_codes import PAGE, ROOT, called, in_the_code, words_of

SECTION = PAGE.read_text().partition("\n## Another try\n")[2].partition("\n## ")[0]

DIFFERENT = {
    ("binding/drivers.py", "_reset_of_slot", "ResetFailed", "False"): (
        "test_binding_vfio::test_not_where_other_slots_are_below_it",
        "test_binding_vfio::test_not_where_another_card_has_come_to_its_bus",
    ),
    ("claims/engine.py", "reserve_devices", "DeviceInUse", "False"): (
        "test_claims::test_one_device_twice_in_a_claim_is_refused",
    ),
    ("qemu/confinement.py", "make_group", "CgroupUnavailable", "False"): (
        "test_node_machine_host::test_a_host_without_the_controller_says_so",
    ),
    ("qemu/hotplug.py", "_free", "NoFreePciSlot", "False"): (
        "test_machine_scaling::test_a_device_that_must_have_one_port_gets_no_other",
    ),
    ("qemu/hotplug.py", "_free", "NoFreePciSlot", "bool(root_ports)"): (
        "test_machine_scaling::test_the_refusal_of_a_machine_without_ports_names_the_field",
    ),
    ("qemu/launch.py", "check", "MachineRuns", "True"): (
        "test_machine_command::test_a_folder_in_which_another_machine_listens_is_left_alone",
    ),
    ("qemu/launch.py", "await_monitor", "MachineDidNotStart", "not preflight.is_permanent_failure(words)"): (
        "test_machine_command::test_what_qemu_will_never_have_is_not_to_be_tried_again",
    ),
    ("qemu/migration.py", "receive", "MachineExists", "True"): (
        "test_machine_migration::test_a_machine_that_is_here_already_is_not_received",
    ),
    ("qemu/registry.py", "orphan_refusal", "MachineRuns", "True"): (
        "test_machine_platform::test_a_machine_that_the_journal_lost_is_not_ended_when_it_is_to_be_started",
    ),
    ("warm/service.py", "_check_not_of_a_machine", "SetupInUse", "False"): (
        "test_warm::test_only_a_machine_of_the_node_gives_back_its_own",
    ),
    ("vms/steps.py", "refuse_foreign", "MachineRuns", "True"): (
        "test_vms::test_a_machine_that_a_plugin_with_another_state_folder_started_is_not_started_again",
    ),
    ("vms/scaling.py", "scaled_machine", "GuestElsewhere", "True"): (
        "test_vms_scaling::test_the_guest_of_a_warm_setup_is_where_the_network_of_setups_has_it",
    ),
    ("vms/scaling.py", "_check_address", "GuestElsewhere", "True"): (
        "test_vms_scaling::test_the_guest_of_a_warm_setup_is_where_the_network_of_setups_has_it",
    ),
    ("warm/builder.py", "_failed", "SetupFailed", "retryable"): (
        "test_warm_pool::test_a_machine_that_cannot_wait_is_refused_in_its_words",
    ),
}
"""The places that differ from their code (module, function, code, expression), and a test that provokes each."""


@cache
def raised() -> tuple[tuple[str, str, ast.Call], ...]:
    """Each error that the node plugin makes: the module, the function, the call."""
    texts = {
        str(path.relative_to(folder)): path.read_text()
        for folder in (
            ROOT / "node-plugin" / "devalloc_node",
            ROOT / "node-plugin" / "devalloc_machines",
            ROOT / "node-plugin" / "devalloc_neon",
            ROOT / "devalloc",
        )
        for path in sorted(folder.rglob("*.py"))
        if path.name != "errors.py"
    }
    texts = {module: text for module, text in texts.items() if "devalloc_node.errors import" in text}
    return tuple(each for module, text in texts.items() for each in within(module, "", ast.parse(text)))


def within(module: str, function: str, node: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and called(child) in ("Denied", "Failed", "Unknown", "__init__", "NodeError"):
            yield module, function, child
        yield from within(module, child.name if isinstance(child, ast.FunctionDef) else function, child)


def stated() -> list[tuple[str, ...]]:
    return [
        (module, function, *words_of(call.args[0]), ast.unparse(keyword.value))
        for module, function, call in raised()
        for keyword in call.keywords
        if keyword.arg == "retryable"
    ]


def listed(label: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", SECTION.partition(f"**{label}:**")[2].partition("\n\n")[0]))


def test_the_page_lists_which_codes_are_worth_another_try() -> None:
    assert listed("Transient refusals") == TRANSIENT
    assert listed("Permanent failures") == PERMANENT
    assert set(re.findall(r"^\| `(\w+)`", SECTION, re.MULTILINE)) == {code for _, _, code, _ in DIFFERENT}


def test_each_of_them_is_raised_so_somewhere() -> None:
    raisers = {"Denied": TRANSIENT, "Failed": PERMANENT, "__init__": frozenset({"CpusInUse", "TryAgain"})}
    for name, codes in raisers.items():
        others = {"CpusInUse", "TryAgain"} if name == "Denied" else set()  # their classes name them
        calls = [call for _, _, call in raised() if called(call) == name and call.args]
        assert codes - others <= {word for call in calls for word in words_of(call.args[0])}


def test_only_places_that_differ_from_their_code_say_so() -> None:
    assert sorted(stated()) == sorted(place for place, tests in DIFFERENT.items() for _ in tests)


def test_a_code_is_worth_another_try_as_the_page_says() -> None:
    transient, permanent = listed("Transient refusals"), listed("Permanent failures")
    for code in sorted(in_the_code()):
        assert Denied(code, "no").retryable is (code in transient), code
        assert Failed(code, "no").retryable is (code not in permanent), code
        assert Unknown(code, "no").retryable, code


@pytest.mark.parametrize("test", [test for tests in DIFFERENT.values() for test in tests])
def test_each_place_that_differs_is_provoked(test: str) -> None:
    """By the test that is named, which states the flag."""
    module, _, name = test.partition("::")
    texts = (path.read_text() for path in (ROOT / "tests").rglob(f"{module}.py"))
    functions = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    (text,) = (ast.unparse(function) for function in functions if function.name == name)
    assert "retryable" in text or "may succeed later" in text
