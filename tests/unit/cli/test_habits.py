"""What people who know kubectl write without thinking."""

from __future__ import annotations

import io
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.cli.command import BadInput
from devalloc.cli.main import ADVICE, VERB_SYNONYMS, VERBS
from devalloc.cli.options.common import parse_selector
from devalloc.cli.render import jsonpath, output
from devalloc.store.sqlite import SQLiteStore
from devalloc.version import VERSION
from tests.support import dra_builders
from tests.support.cli_shell import Shell, claim, device_class, pool, text
from tests.support.host_pools import machine

Object = dict[str, Any]


def labelled(obj: Object, **labels: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "labels": labels}}


@pytest.fixture
def fleet(devalloc: Shell) -> Shell:
    web, old = labelled(claim("web"), app="web", env="prod"), labelled(claim("old"), app="web", env="test")
    devalloc(
        "apply", "-f", "-", stdin=text(pool(), device_class(), web, old, claim("plain"), claim("far", namespace="b"))
    )
    devalloc.allocate()
    return devalloc


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("app=web", ["old", "web"]),
        ("app==web,env!=test", ["web"]),
        ("env in (prod, test)", ["old", "web"]),
        ("env notin (prod)", ["old", "plain"]),
        ("app", ["old", "web"]),
        ("!app", ["plain"]),
    ],
)
def test_get_selects_by_labels(fleet: Shell, text: str, names: list[str]) -> None:
    assert fleet("get", "claims", "-l", text, "-o", "name").out.split() == [f"deviceclaim/{name}" for name in names]


@pytest.mark.parametrize("text", ["app=", "a=b=c", "!a=b", "a in b", "=x"])
def test_a_selector_is_read_or_refused(text: str) -> None:
    import click

    if text == "app=":
        assert parse_selector(text)({"metadata": {"labels": {"app": ""}}})
        return
    with pytest.raises(click.BadParameter, match="invalid selector"):
        parse_selector(text)


def test_delete_selects_by_labels(fleet: Shell) -> None:
    assert fleet("delete", "claims", "-l", "env=test").out == "deviceclaim/old deleted\n"
    assert fleet("get", "claims", "-o", "name").out.split() == ["deviceclaim/plain", "deviceclaim/web"]


def test_get_without_headers(fleet: Shell) -> None:
    lines = fleet("get", "classes", "--no-headers").out.splitlines()

    assert [line.split()[0] for line in lines] == ["gpu"]


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        ("{.items[*].metadata.name}", "old plain web"),
        ("{range .items[*]}{.metadata.name}={.metadata.labels.env}{'\\n'}{end}", "old=test\nplain=\nweb=prod\n"),
        ('{.items[?(@.metadata.name=="web")].metadata.labels.app}', "web"),
        ("{.items[0]['metadata']['name']}", "old"),
        ("{.items[-1:].metadata.name}", "web"),
        ("{..env}", "test prod"),
        ("{.nothing.here}", ""),
        ("{.items[0].spec.claims[0].requests}", '{"count":"1"}'),
    ],
)
def test_get_prints_what_a_jsonpath_says(fleet: Shell, template: str, printed: str) -> None:
    result = fleet("get", "claims", "-o", f"jsonpath={template}")

    assert (result.code, result.out) == (0, printed)


def test_a_jsonpath_of_one_object_begins_at_the_object(fleet: Shell) -> None:
    path = r"jsonpath={.metadata.annotations.devalloc\.io/allocated-node}"

    assert "node-a" in {fleet("get", f"claim/{name}", "-o", path).out for name in ("web", "old")}


@pytest.mark.parametrize("template", ["{.a", "{range .items[*]}x", "{end}", "{.items[?(x)]}", "{.items[a]}"])
def test_a_wrong_jsonpath_is_bad_input(template: str) -> None:
    with pytest.raises(BadInput, match="jsonpath"):
        jsonpath.render_template(template, {"items": [1]})


def test_get_all_lists_every_kind(fleet: Shell) -> None:
    names = set(fleet("get", "all", "-o", "name").out.split())

    assert names == {"devicepool/gpus", "deviceclass/gpu", "deviceclaim/web", "deviceclaim/old", "deviceclaim/plain"}


def test_get_with_all_means_every_namespace(fleet: Shell) -> None:
    assert "deviceclaim/far" in fleet("get", "claims", "--all", "-o", "name").out


@pytest.mark.parametrize("words", [("-n", "b", "get", "claims"), ("--namespace=b", "get", "claims")])
def test_the_namespace_may_stand_before_the_verb(fleet: Shell, words: tuple[str, ...]) -> None:
    assert fleet(*words, "-o", "name").out == "deviceclaim/far\n"


def test_the_store_may_stand_before_a_verb_of_two_words(devalloc: Shell, tmp_path: Path) -> None:
    assert str(tmp_path / "x" / "node") in devalloc("--store", tmp_path / "x" / "d.db", "vm", "list").err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("describe", "nodes", "node-a"), "`devalloc get nodes`"),
        (("get", "events"), "devalloc explain NAME"),
        (("get", "devices"), "`devalloc describe pool/NAME`"),
    ],
)
def test_kinds_that_are_none_here_lead_on(fleet: Shell, words: tuple[str, ...], hint: str) -> None:
    result = fleet(*words)

    assert result.code == 2
    assert hint in result.err


def test_a_quota_has_its_short_name_and_says_how_much_is_used(devalloc: Shell) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim())).code == 0
    assert devalloc("get", "quota").err == "no resourcequotas in namespace default (-A shows all)\n"
    hard = {"gpu.deviceclass.devmgmtproto.k8s.io/devices": "3"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    devalloc("apply", "-f", "-", stdin=text(quota))
    devalloc.allocate()

    for word in ("quota", "quotas", "resourcequota", "resourcequotas"):
        header, row = devalloc("get", word).out.splitlines()
        assert header.split("  ")[0] == "NAME"
        assert row.startswith("q      gpu 1/3")


def test_version_and_help(devalloc: Shell) -> None:
    assert devalloc("version").out == f"devalloc {VERSION}\n"
    assert devalloc("help").out == devalloc("--help").out
    assert devalloc("help", "solve").out == devalloc("solve", "--help").out
    assert devalloc("help", "vm", "create").out == devalloc("vm", "create", "--help").out
    assert devalloc("help", "nothing").code == 2
    assert devalloc("help", "vm", "creat").err.endswith("; did you mean `devalloc vm create`?\n")
    assert "Plug the devices of claims into a running machine: for each" in devalloc("vm", "--help").out
    assert "devices, or none." in devalloc("vm", "--help").out, "not cut off"


KUBECTL = {
    "annotate",
    "api-resources",
    "api-versions",
    "apply",
    "attach",
    "auth",
    "autoscale",
    "certificate",
    "cluster-info",
    "completion",
    "config",
    "cordon",
    "cp",
    "create",
    "debug",
    "delete",
    "describe",
    "diff",
    "drain",
    "edit",
    "events",
    "exec",
    "explain",
    "expose",
    "get",
    "help",
    "kustomize",
    "label",
    "logs",
    "options",
    "patch",
    "plugin",
    "port-forward",
    "proxy",
    "replace",
    "rollout",
    "run",
    "scale",
    "start",
    "stop",
    "restart",
    "set",
    "taint",
    "top",
    "uncordon",
    "version",
    "wait",
}
"""Its verbs."""


@pytest.mark.parametrize("word", sorted(KUBECTL.difference(*VERBS.values())))
def test_a_verb_of_kubectl_that_is_not_here_says_what_to_do(devalloc: Shell, word: str) -> None:
    result = devalloc(word)

    assert result.code == 2
    assert word in VERB_SYNONYMS or ADVICE[word] in result.err
    assert "--help` lists them" not in result.err


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("get claims -o yml", "did you mean yaml?"),
        ("solve --placement sprad", "did you mean spread?"),
        ("top nodes", "it shows nodes, claims and machines together: devalloc top"),
        ("delete claim/web --timeout 5s", "devalloc wait KIND/NAME --timeout"),
        ("apply -k .", "kubectl kustomize DIR | devalloc apply -f -"),
        ("vm start web", "There is no verb `vm start`; start a machine with `devalloc start vm/NAME`, or `vm create`"),
        ("vm stp", "There is no verb `vm stp`; did you mean `vm stop`?"),
    ],
)
def test_what_kubectl_has_and_devalloc_has_not_says_what_to_do(devalloc: Shell, words: str, advice: str) -> None:
    result = devalloc(*words.split())

    assert result.code == 2
    assert advice in result.err


def test_delete_says_what_it_would_delete(fleet: Shell, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text(claim("web"), claim("gone")))

    result = fleet("delete", "-f", tmp_path, "--dry-run")
    assert (result.code, result.out) == (4, "deviceclaim/web deleted (dry run)\n")
    assert fleet("delete", "claim/old", "--dry-run").out == "deviceclaim/old deleted (dry run)\n"
    assert fleet("get", "claims", "-o", "name").out.split() == [f"deviceclaim/{n}" for n in ("old", "plain", "web")]


@pytest.mark.parametrize("verb", ["get", "describe", "delete", "wait", "release"])
def test_a_misspelled_name_gets_the_nearest_one(fleet: Shell, verb: str) -> None:
    result = fleet(verb, "claim/wbe")

    assert result.code == 4
    # None is proposed for deletion: it would be the wrong one.
    hint = "; there are old, plain, web" if verb == "delete" else "; did you mean web?"
    assert f"DeviceClaim default/wbe does not exist{hint}\n" in result.err


def test_what_a_file_deletes_and_is_not_there_has_no_list_of_others(fleet: Shell) -> None:
    result = fleet("delete", "-f", "-", stdin=text(claim("wbe")))

    assert result.code == 4
    assert result.err.endswith("DeviceClaim default/wbe does not exist\n")


def test_folders_in_a_folder_are_read_with_r(devalloc: Shell, tmp_path: Path) -> None:
    """As kubectl reads them; what is not read is said."""
    (tmp_path / "team").mkdir()
    (tmp_path / "class.yaml").write_text(text(device_class()))
    (tmp_path / "team" / "claim.yaml").write_text(text(claim()))

    flat = devalloc("apply", "-f", tmp_path)
    assert (flat.code, flat.out) == (0, "deviceclass/gpu created\n")
    assert f"{tmp_path}: subfolders are not read without -R: team" in flat.err
    assert devalloc("apply", "-R", "-f", tmp_path).out == "deviceclass/gpu unchanged\ndeviceclaim/train created\n"
    (tmp_path / "class.yaml").unlink()
    nothing = devalloc("apply", "-f", tmp_path)
    assert nothing.code == 2
    assert "contains no manifests (files that end in .yaml, .yml, .json); subfolders are not read" in nothing.err


class TestExplain:
    def test_kind_and_name_are_two_words_or_one(self, fleet: Shell) -> None:
        printed = fleet("explain", "web").out

        for words in (("claim/web",), ("claim", "web"), ("deviceclaim", "web")):
            assert fleet("explain", *words).out == printed

    @pytest.mark.parametrize(
        ("words", "code", "message"),
        [
            (
                (),
                2,
                "name a claim, or a machine as vm/NAME, for example: devalloc explain train; there are old, plain, web",
            ),
            (("claim",), 2, "which claim? Write claim/NAME; there are old, plain, web"),
            (("wbe",), 4, "there is no claim default/wbe; did you mean web?"),
            (("far",), 4, "there is no claim default/far; there is one in namespace b (-n)"),
            (("vm/web",), 4, "there is a DeviceClaim of that name: devalloc explain claim/web"),
            (("web", "old"), 2, "unknown kind 'web'"),
            (("web", "old", "plain"), 2, "name one claim or machine"),
            (("pool/gpus",), 1, "`devalloc explain` explains claims, machines and migrations, not a DevicePool"),
            (("resourceclaim/x",), 4, "there is no ResourceClaim default/x"),
        ],
    )
    def test_what_cannot_be_explained_says_what_else_to_write(
        self, fleet: Shell, words: tuple[str, ...], code: int, message: str
    ) -> None:
        result = fleet("explain", *words)

        assert (result.code, result.out) == (code, "")
        assert message in result.err

    def test_manifests_that_are_no_objects_do_no_harm(self, devalloc: Shell) -> None:
        odd = [{**claim(), "metadata": "x"}, {**claim(), "metadata": {"name": "\x1b[31mred"}}]
        result = devalloc("explain", "web", "--no-store", "-f", "-", stdin=text(*odd, claim("wbe")))

        assert result.code == 4
        assert "there is no claim default/web; did you mean wbe?" in result.err
        assert "\x1b" not in result.err

    def test_the_only_claim_of_a_file_needs_no_name(self, fleet: Shell) -> None:
        assert "default/new is not allocated" in fleet("explain", "-f", "-", stdin=text(claim("new"))).out

    @pytest.mark.parametrize("is_applied", [False, True])
    def test_a_machine_of_that_name_is_suggested(self, fleet: Shell, is_applied: bool) -> None:
        vm = text(machine("runner"))
        if is_applied:
            fleet("apply", "-f", "-", stdin=vm)
        result = fleet("explain", "runner", *([] if is_applied else ["-f", "-"]), stdin=None if is_applied else vm)

        assert result.code == 4
        assert "there is a VirtualMachine of that name: devalloc explain vm/runner" in result.err

    @pytest.mark.parametrize("word", ["resourceclaim", "resourceclaims", "resourceclaims.resource.k8s.io"])
    def test_a_resource_claim_is_explained(self, fleet: Shell, word: str) -> None:
        fleet("apply", "-f", "-", stdin=text(dra_builders.claim(dra_builders.request(class_name="gpu"), name="rc")))

        result = fleet("explain", f"{word}/rc")
        assert result.code == 3
        assert result.out.startswith("default/rc is not allocated: ClassNotFound")
        assert result.err == ""

    def test_a_resource_claim_of_files_is_explained(self, devalloc: Shell) -> None:
        result = devalloc("explain", "resourceclaim/serve", "-f", "examples/dra")

        assert result.out.startswith("default/serve is allocated on node example-a")


class TestManifestsThatCannotBeRead:
    @pytest.mark.parametrize("verb", ["solve", "capacity", "explain"])
    def test_nothing_else_is_answered_in_their_place(self, fleet: Shell, verb: str) -> None:
        result = fleet(verb, "-f", "nothing.yaml")

        assert (result.code, result.out) == (2, "")
        assert result.err == "error: nothing.yaml: no such file or folder\n"

    def test_solve_of_a_claim_by_name_says_what_to_write(self, fleet: Shell) -> None:
        result = fleet("solve", "web")

        assert (result.code, result.out) == (2, "")
        assert "devalloc explain web" in result.err

    def test_solve_of_no_documents_solves_nothing(self, fleet: Shell) -> None:
        assert fleet("solve", "-f", "-", stdin="").out == "no claims\n"

    def test_capacity_asks_for_no_other_claim(self, fleet: Shell) -> None:
        bad = {**claim("new"), "spec": {"claims": []}}

        result = fleet("capacity", "-f", "-", stdin=text(bad))
        assert (result.code, result.out) == (2, "")
        assert {line.partition(":")[0] for line in result.err.splitlines()} == {"error"}
        assert "name the claim" not in result.err


@pytest.mark.parametrize(("word", "verb"), [("create", "apply"), ("rm", "delete"), ("ls", "get")])
def test_words_of_other_commands_lead_to_the_verb(devalloc: Shell, word: str, verb: str) -> None:
    assert f"did you mean `{verb}`?" in devalloc(word, "-f", "x").err


def test_files_need_no_f(devalloc: Shell, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text(pool(), device_class(), claim()))

    assert devalloc("validate", tmp_path / "x.yaml").out == "3 documents, all valid\n"
    assert devalloc("solve", tmp_path / "x.yaml").code == 0
    assert devalloc("apply", tmp_path / "x.yaml").out.count("created") == 3
    result = devalloc("apply")
    assert (result.code, "-f PATH" in result.err) == (2, True)


@pytest.mark.parametrize("state", ["condition=Allocated", "condition=allocated", "condition=Allocated=true"])
def test_wait_for_a_condition(fleet: Shell, state: str) -> None:
    fleet("delete", "claim/plain", "claim/old", "--ignore-not-found")
    fleet.allocate()

    assert fleet("wait", "claim/web", f"--for={state}", "--timeout", "0s").out == "deviceclaim/web allocated\n"


def test_a_claim_is_ready_when_it_is_allocated(fleet: Shell) -> None:
    """As its condition on a cluster."""
    assert fleet("wait", "claim/web", "--for=condition=Ready", "--timeout", "0s").out == "deviceclaim/web ready\n"

    fleet("apply", "-f", "-", stdin=text(claim("later")))
    waiting = fleet("wait", "claim/later", "--for=condition=Ready", "--timeout", "0s")
    assert (waiting.code, "is not ready after 0 s" in waiting.err) == (1, True)


def test_wait_for_delete(fleet: Shell) -> None:
    fleet("delete", "claim/web")

    assert fleet("wait", "claim/web", "--for=delete", "--timeout", "0s").out == "deviceclaim/web deleted\n"


def test_describe_of_a_name_asks_for_its_kind(fleet: Shell) -> None:
    result = fleet("describe", "web")

    assert result.code == 2
    assert "did you mean deviceclaim/web?" in result.err


class TestDrain:
    def test_it_says_what_it_will_do_and_does_nothing_with_dry_run(self, fleet: Shell) -> None:
        result = fleet("drain", "node/node-a", "--dry-run")

        assert result.code == 0
        assert result.out.startswith("will cordon node node-a; release 2 claims: ")
        assert fleet("cordon").out == "nothing is cordoned\n"

    def test_of_a_node_that_is_cordoned_already_it_does_not_say_that_it_will_be(self, fleet: Shell) -> None:
        assert fleet("cordon", "node/node-a", "--reason", "a fan").code == 0

        result = fleet("drain", "node/node-a", "--dry-run")
        assert result.out.startswith("node node-a is already cordoned; will release 2 claims: ")

        first = fleet("drain", "node/node-a", "--timeout", "30s").out
        assert first.splitlines()[0].startswith("node node-a is already cordoned; will release 2 claims: ")
        assert "node node-a cordoned" not in first
        again = fleet("drain", "node/node-a", "--reason", "new firmware").out
        assert again.splitlines() == [
            "node node-a is already cordoned, and nothing is left on it to drain",
            "node node-a is cordoned for the new reason",
        ]
        assert "new firmware" in fleet("cordon").out

    def test_it_cordons_and_releases(self, fleet: Shell) -> None:
        result = fleet("drain", "node-a", "--reason", "new firmware")

        assert result.code == 0
        assert result.out.splitlines()[1] == "node node-a cordoned"
        assert result.out.count(" released\n") == 2
        fleet.allocate()
        assert "Allocated" not in fleet("get", "claims", "-A").out
        assert "new firmware" in fleet("cordon").out

    def test_devices_in_use_stay_without_force(self, fleet: Shell) -> None:
        self._prepare(fleet)

        result = fleet("drain", "node/node-a")

        assert result.code == 1
        assert "leave 1 in use (--force takes them away)" in result.out
        assert "is prepared on node-a" in result.err

    def test_by_force_the_node_is_asked_and_waited_for(self, fleet: Shell) -> None:
        self._prepare(fleet)

        result = fleet("drain", "node/node-a", "--force", "--timeout", "0s")

        assert result.code == 1
        assert "take away from 1 claim: " in result.out
        assert "has not released the devices within 0 s" in result.err

    def test_a_node_that_is_cordoned_keeps_its_reason_unless_another_one_is_given(self, fleet: Shell) -> None:
        fleet("cordon", "node/node-a", "--reason", "broken fan")

        assert "node node-a is already cordoned" in fleet("drain", "node/node-a", "--timeout", "0s").out
        assert "broken fan" in fleet("get", "pools", "-o", "yaml").out

        fleet("drain", "node/node-a", "--reason", "new fan", "--timeout", "0s")
        shown = fleet("get", "pools", "-o", "yaml").out
        assert "new fan" in shown
        assert "broken fan" not in shown

    @pytest.mark.parametrize("name", ["pool/gpus", "gpus/gpu-0"])
    def test_only_nodes_are_drained(self, fleet: Shell, name: str) -> None:
        result = fleet("drain", name)
        assert result.code == 2
        assert f", only nodes; to keep new claims off it: devalloc cordon {name}\n" in result.err

    @pytest.mark.parametrize("verb", ["drain", "cordon", "uncordon"])
    def test_a_node_that_does_not_exist_is_named_as_a_node(self, fleet: Shell, verb: str) -> None:
        result = fleet(verb, "node/nothere")
        assert (result.code, result.err) == (4, "error: there is no node nothere; `devalloc get nodes` lists them\n")

    def _prepare(self, fleet: Shell) -> None:
        with closing(SQLiteStore(fleet.store)) as store:
            held = next(one for one in store.list("DeviceClaim").objects if one.get("status"))
            annotations = {**held["metadata"]["annotations"], "devalloc.io/prepared-on": "node-a"}
            metadata = {**held["metadata"], "finalizers": ["devalloc.io/node"], "annotations": annotations}
            store.replace({**held, "metadata": metadata})


def test_device_names_are_not_broken_on_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    devices = "dgx-a-0000-07-00-0/mig-1g.5gb-0, mig-1g.5gb-1, mig-1g.5gb-2"
    row = ["research-claim", "Allocated", "3 mig-small-slices", "dgx-a", devices, "12d"]

    output.print_table(["NAME", "STATE", "WANTS", "NODE", "DEVICES, OR WHY NOT", "AGE"], [row])

    for name in ("mig-1g.5gb-1", "mig-1g.5gb-2", "Allocated"):
        assert name in terminal.getvalue()


def test_get_orders_by_a_path_and_shows_labels(fleet: Shell) -> None:
    by_env = fleet("get", "claims", "--sort-by", "{.metadata.labels.env}", "-o", "name").out.split()
    assert by_env == ["deviceclaim/plain", "deviceclaim/web", "deviceclaim/old"]

    lines = fleet("get", "claims", "--show-labels").out.splitlines()
    assert [line.split()[-1] for line in lines] == ["LABELS", "app=web,env=test", "<none>", "app=web,env=prod"]


def test_dra_says_in_one_line_what_it_leaves_out(devalloc: Shell) -> None:
    result = devalloc(
        "dra", "allocate", "-f", "-", "--node", "n", stdin=text(pool(), device_class(), claim("a"), claim("b"))
    )

    left_out = [line for line in result.err.splitlines() if "left out" in line]
    assert len(left_out) == 1
    assert "DeviceClaim, DevicePool" in left_out[0]


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("apply", "--dry-run=yes", "-f", "-"), "use --dry-run alone"),
        (("wait", "--for=condition=Bound", "train"), "'bound' is not one of 'allocated'"),
        (("get", "claims", "-o", "go-template={{.x}}"), "jsonpath=TEMPLATE"),
        (("get", "claims", "-o", "xml"), "jsonpath=TEMPLATE and custom-columns=HEADER:PATH"),
    ],
)
def test_an_option_as_kubectl_has_it_says_what_to_write_here(
    devalloc: Shell, words: tuple[str, ...], advice: str
) -> None:
    result = devalloc(*words)

    assert result.code == 2
    assert advice in result.err


@pytest.mark.parametrize("verb", ["apply", "delete", "solve", "validate", "explain", "capacity"])
def test_an_empty_path_is_an_error_and_not_the_current_folder(verb: str, fleet: Shell) -> None:
    result = fleet(verb, "-f", "")
    assert result.code == 2
    assert "the path is empty" in result.err


@pytest.mark.parametrize("verb", ["get", "describe", "delete"])
def test_a_word_that_is_no_kind_is_named_as_the_mistake(verb: str, fleet: Shell) -> None:
    result = fleet(verb, "nope")
    assert result.code == 2
    assert "unknown kind 'nope'" in result.err


@pytest.mark.parametrize(
    ("operator", "values"),
    [("<", "1"), ("<=", "1 2"), (">", "3"), (">=", "2 3"), ("==", "2"), ("!=", "1 3 x")],
)
def test_a_filter_of_a_jsonpath_compares(operator: str, values: str) -> None:
    items = [{"a": 1}, {"a": 2}, {"a": 3}, {"a": "x"}]
    assert jsonpath.render_template("{.items[?(@.a" + operator + "2)].a}", {"items": items}) == values


def test_describe_of_a_kind_shows_all_of_it(fleet: Shell) -> None:
    shown = fleet("describe", "claims")
    names = [line.split()[-1] for line in shown.out.splitlines() if line.startswith("Name:")]
    assert names == [line.rpartition("/")[2] for line in fleet("get", "claims", "-o", "name").out.splitlines()]
    assert fleet("describe", "vmrs").err == "there are no virtualmachinereplicasets in namespace default\n"


def test_every_verb_takes_help_all(devalloc: Shell) -> None:
    """Also those whose --help shows everything."""
    for verb in ("apply", "describe", "version"):
        assert devalloc(verb, "--help-all").out == devalloc(verb, "--help").out
    for words in (("warm",), ("warm", "take"), ("up",), ("vm",)):
        assert devalloc("--help-all", *words).out == devalloc(*words, "--help-all").out
        assert devalloc("--help", *words).out == devalloc(*words, "--help").out
    assert devalloc("warm", "--help-all").out == devalloc("warm", "--help").out


def test_the_short_help_says_what_holds_without_an_option(devalloc: Shell) -> None:
    text = " ".join(devalloc("up", "--help").out.split())
    assert "File of the embedded store. [env: DEVALLOC_STORE]" in text
    assert "the smallest share is in use (spread). [default: pack]" in text


def test_the_first_of_the_options_of_warm_setups_is_how_many_there_are(devalloc: Shell) -> None:
    listed = devalloc("up", "--help-all", "warm").out
    assert re.findall(r"^  (--[a-z-]+)", listed, re.MULTILINE)[:2] == ["--warm", "--warm-most"]


def test_names_with_and_without_a_kind_go_together_where_one_kind_is_meant(fleet: Shell) -> None:
    names = [line.rpartition("/")[2] for line in fleet("get", "claims", "-o", "name").out.splitlines()][:2]
    shown = fleet("wait", f"claims/{names[0]}", names[1], "--timeout", "0s")
    assert "not both" not in shown.err
    assert all(name in shown.out + shown.err for name in names), shown


@pytest.mark.parametrize("words", [("scale", "vmrs/x", "--replicas", "many"), ("up", "--warm", "many")])
def test_no_number_and_a_number_out_of_bounds_have_two_messages(devalloc: Shell, words: tuple[str, ...]) -> None:
    assert "'many' is not a valid whole number" in devalloc(*words).err
    assert "-1 is not in the range x>=0" in devalloc(*words[:-1], "-1").err


def test_up_leaves_nothing_beside_a_file_that_is_no_store(devalloc: Shell) -> None:
    devalloc.store.write_text("a letter\n")
    refused = devalloc("up", "--no-inventory", "--no-node")
    assert (refused.code, "is not a devalloc store" in refused.err) == (1, True)
    assert [path.name for path in devalloc.store.parent.iterdir()] == [devalloc.store.name]


def test_memory_without_a_unit_is_doubted(devalloc: Shell) -> None:
    wanted = claim("c")
    wanted["spec"]["claims"][0]["requests"] = {"memory": "40"}
    checked = devalloc("validate", "-f", "-", stdin=text(wanted))
    assert (checked.code, "requests[memory]: is 40 bytes; did you mean 40Gi?" in checked.out + checked.err) == (0, True)
