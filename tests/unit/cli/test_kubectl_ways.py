"""What hands that know kubectl type."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from devalloc.cli import main as command
from devalloc.version import VERSION
from tests.support.cli_shell import Shell, claim, devalloc, device_class, pool, text
from tests.support.repository import REPO

__all__ = ["devalloc"]


@pytest.fixture
def filled(devalloc: Shell) -> Shell:
    assert devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim("train"))).code == 0
    return devalloc


@pytest.mark.parametrize("form", ["--dry-run", "--dry-run=client", "--dry-run=server"])
def test_a_dry_run_is_one_in_all_forms_of_kubectl(filled: Shell, form: str) -> None:
    applied = filled("apply", form, "-f", "-", stdin=text(claim("new")))
    assert applied.out == "deviceclaim/new created (dry run)\n"
    assert filled("delete", form, "claim/train").out == "deviceclaim/train deleted (dry run)\n"
    assert filled("get", "claims", "-o", "name").out == "deviceclaim/train\n"


def test_no_dry_run_is_none(filled: Shell) -> None:
    assert filled("delete", "--dry-run=none", "claim/train").out == "deviceclaim/train deleted\n"


def test_any_other_form_is_refused(filled: Shell) -> None:
    assert filled("delete", "--dry-run=true", "claim/train").code == 2


def test_columns_of_your_own(filled: Shell) -> None:
    shown = filled(
        "get", "claims", "-o", "custom-columns=NAME:.metadata.name,WANTS:{.spec.claims[0].requests.count},NO:.x"
    )
    assert [line.split() for line in shown.out.splitlines()] == [["NAME", "WANTS", "NO"], ["train", "1", "<none>"]]
    one = filled("get", "claim/train", "-o", "custom-columns=NAME:.metadata.name", "--no-headers")
    assert one.out == "train\n"
    wrong = filled("get", "claims", "-o", "custom-columns=NAME")
    assert (wrong.code, "write HEADER:PATH for each column" in wrong.err) == (2, True)


def test_the_version_for_programs(devalloc: Shell) -> None:
    expected = {"version": VERSION, "python": platform.python_version()}
    assert json.loads(devalloc("version", "-o", "json").out) == expected
    assert yaml.safe_load(devalloc("version", "-o", "yaml").out) == expected


def test_a_name_alone_is_answered_with_what_has_it(filled: Shell) -> None:
    output = filled("delete", "train")
    assert (output.code, output.err) == (2, "error: train is not a kind; did you mean deviceclaim/train?\n")


def test_delete_of_a_missing_name_proposes_no_similar_one_and_says_what_there_is(filled: Shell) -> None:
    output = filled("delete", "claim/trai")
    assert (output.code, output.err) == (4, "error: DeviceClaim default/trai does not exist; the only one is train\n")


def kubeconfig(path: Path) -> Path:
    """Two contexts, of servers where nothing listens."""
    clusters = [{"name": name, "cluster": {"server": f"http://127.0.0.1:{port}"}} for name, port in SERVERS.items()]
    contexts = [
        {"name": name, "context": {"cluster": name, "user": "me", "namespace": f"of-{name}"}} for name in SERVERS
    ]
    content = {
        "clusters": clusters,
        "contexts": contexts,
        "users": [{"name": "me", "user": {}}],
        "current-context": "a",
    }
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **content}))
    return path


SERVERS = {"a": 1, "b": 2}


def test_a_context_chooses_the_server(devalloc: Shell, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config")
    for words, port in ((("--context", "b"), 2), ((), 1)):
        output = devalloc("get", "claims", "--kubeconfig", path, *words)
        assert output.code == 1
        assert f"http://127.0.0.1:{port}" in output.err
    unknown = devalloc("get", "claims", "--kubeconfig", path, "--context", "c")
    assert (unknown.code, "c" in unknown.err) == (1, True)


def test_empty_parts_of_kubectls_list_of_files_name_no_folder(
    devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a colon too many."""
    missing = f"{tmp_path / 'missing'}:"
    monkeypatch.setenv("KUBECONFIG", missing)
    words = f"error: {missing} does not exist; name a kubeconfig with --kubeconfig or KUBECONFIG\n"
    assert devalloc("adopt").err == words


@pytest.mark.parametrize("way", ["KUBECONFIG", "~/.kube/config"])
def test_a_context_alone_is_one_of_kubectls_kubeconfig(
    devalloc: Shell, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    missing = devalloc("get", "claims", "--context", "b")
    assert (missing.code, missing.err) == (
        1,
        f"error: {tmp_path}/.kube/config does not exist; name a kubeconfig with --kubeconfig or KUBECONFIG\n",
    )
    (tmp_path / ".kube").mkdir()
    path = kubeconfig(tmp_path / ".kube" / "config")
    if way == "KUBECONFIG":
        path = path.rename(tmp_path / "elsewhere")
        monkeypatch.setenv("KUBECONFIG", str(path))
    output = devalloc("get", "claims", "--context", "b")
    assert "http://127.0.0.1:2" in output.err
    both = devalloc("get", "claims", "--context", "b", "--store", devalloc.store)
    assert (both.code, "--store and --context exclude each other: give one of them" in both.err) == (2, True)


def test_kubeconfig_of_kubectl_is_named_where_a_store_is_missing(
    devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verbs of admins use it, so one expects it of all."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config")))
    hint = "KUBECONFIG is set: for its cluster add --kubeconfig $KUBECONFIG, or export DEVALLOC_KUBECONFIG"
    for words in (("get", "claims"), ("top", "--once"), ("explain", "train"), ("wait", "train")):
        output = devalloc(*words)
        assert (output.code, f"there is no store at {devalloc.store}; {hint}" in output.err) == (1, True), words
    for words in (("delete", "claim/train"), ("backup", tmp_path / "copy")):
        assert "KUBECONFIG is set" not in devalloc(*words).err, "it is about stores only"
    monkeypatch.delenv("KUBECONFIG")
    assert "create one with `devalloc up`" in devalloc("get", "claims").err


@pytest.mark.parametrize("verb", ["apply", "delete"])
def test_a_verb_of_stores_sends_those_with_a_cluster_to_kubectl(devalloc: Shell, verb: str) -> None:
    output = devalloc(verb, "-f", "examples/whole-gpu", "--kubeconfig", "x")
    assert (output.code, "this verb is about a store of this host; use kubectl" in output.err) == (2, True)


WRITES = [
    ("apply", "-f", "examples/whole-gpu"),
    ("apply", "-f", "examples/whole-gpu", "--dry-run"),
    ("delete", "claim/train"),
    ("backup", "copy.db"),
    ("restore", "copy.db"),
    ("warm", "replica", "-f", "function.json", "--apply"),
]


@pytest.mark.parametrize("words", WRITES, ids=" ".join)
def test_a_verb_of_stores_takes_none_while_a_variable_names_a_cluster(
    filled: Shell, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`devalloc get` would show the cluster, in which nothing has changed."""
    monkeypatch.chdir(tmp_path)  # what a verb writes although it must not is written there
    before = filled("get", "all", "-A", "-o", "name").out
    monkeypatch.setenv("DEVALLOC_KUBECONFIG", str(kubeconfig(tmp_path / "config")))
    refused = filled(*words)
    assert (refused.code, refused.out) == (2, "")
    assert f"`devalloc {words[0]}` is about a store of this host, but DEVALLOC_KUBECONFIG is set; " in refused.err
    assert "or name the store with --store" in refused.err
    monkeypatch.delenv("DEVALLOC_KUBECONFIG")
    assert filled("get", "all", "-A", "-o", "name").out == before


def test_a_store_that_is_named_is_written_whatever_the_variable_says(
    filled: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEVALLOC_KUBECONFIG", str(kubeconfig(tmp_path / "config")))
    assert filled("delete", "claim/train", "--store", filled.store).out == "deviceclaim/train deleted\n"
    assert filled("delete", "--help").code == 0
    monkeypatch.setenv("DEVALLOC_KUBECONFIG", "")
    assert filled("apply", "-f", "-", stdin=text(claim("train"))).out == "deviceclaim/train created\n"


def test_it_is_a_plugin_of_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts[command.PLUGIN] == scripts["devalloc"]
    for name in ("DEVALLOC_STORE", "DEVALLOC_KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config")))
    assert _as_plugin("get", "--help").stdout.startswith("Usage: kubectl devalloc get ")
    assert "http://127.0.0.1:1" in _as_plugin("get", "claims").stderr, "the cluster of kubectl, not a store"


def _as_plugin(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.argv[0] = '/bin/kubectl-devalloc'; from devalloc.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, cwd=REPO)


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """KUBECONFIG as kubectl takes it: several files, of which one is missing."""
    for name in ("DEVALLOC_STORE", "DEVALLOC_KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    paths = f"{kubeconfig(tmp_path / 'config')}:{tmp_path / 'missing'}"
    monkeypatch.setenv("KUBECONFIG", paths)
    return paths


def test_several_kubeconfigs_are_merged_as_kubectl_does(several: str, devalloc: Shell) -> None:
    assert "http://127.0.0.1:1" in _as_plugin("get", "claims").stderr
    for words in (("get", "claims", "--kubeconfig", several), ("--kubeconfig", several, "get", "claims")):
        assert "http://127.0.0.1:1" in devalloc(*words).err
    for one in (f":{several.partition(':')[0]}", f"{several.partition(':')[0]}:"):
        assert "http://127.0.0.1:1" in devalloc("get", "claims", "--kubeconfig", one).err, "empty parts do not count"
    chosen = devalloc("--context", "b", "get", "claims", "--kubeconfig", several)
    assert "http://127.0.0.1:2" in chosen.err, "--context can precede the verb"
    assert "does not exist" in devalloc("get", "claims", "--kubeconfig", "/missing:/gone").err


def test_a_plugin_never_takes_a_store_for_the_cluster(several: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("apply", "-f", "examples/whole-gpu", "--dry-run"), ("delete", "claim/train")):
        refused = _as_plugin(*words)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"for the cluster use kubectl {words[0]}" in refused.stderr
    assert "use a backup of etcd" in _as_plugin("backup", "x").stderr
    named = _as_plugin("apply", "-f", "examples/whole-gpu", "--dry-run", "--store", "/missing/devalloc.db")
    assert "use kubectl" not in named.stderr, "a store that is named"
    monkeypatch.setenv("KUBECONFIG", "/missing")
    assert "'/missing' does not exist" in _as_plugin("get", "claims").stderr


def test_man_pages_are_those_of_the_help(devalloc: Shell, tmp_path: Path) -> None:
    assert devalloc("help", "--man", tmp_path).code == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert {"devalloc.1", "devalloc-apply.1", "devalloc-vm-create.1"} <= names
    assert {f"devalloc-{verb}.1" for section in command.VERBS.values() for verb in section} <= names
    page = (tmp_path / "devalloc-apply.1").read_text()
    assert ".B \\-f, \\-\\-filename PATH" in page
    assert all(path.read_text().isascii() for path in tmp_path.iterdir()), "troff reads no UTF-8 without a preprocessor"
    assert "devalloc apply \\-f examples/whole\\-gpu\n" in page, "an example is a line of its own"
