"""``devalloc controller``: what is wrong with its options is said before anything begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from devalloc.cli.verbs.controller import _certificate_problem, controller

SERVER = {"server": "https://127.0.0.1:1"}
CONTENT = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": SERVER}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(CONTENT))
    return path


def test_it_wants_to_know_which_cluster() -> None:
    done = CliRunner().invoke(controller, [])
    assert done.exit_code == 2
    assert "--kubeconfig or --in-cluster" in done.output


def test_outside_a_pod_there_is_no_service_account() -> None:
    done = CliRunner().invoke(controller, ["--in-cluster"])
    assert done.exit_code == 1
    assert "not in a pod" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "10301"], "--listen must be HOST:PORT"),
        (["--listen", "localhost:http"], "--listen must be HOST:PORT"),
        (["--listen", "localhost:70000"], "--listen must be HOST:PORT"),
        (["--permits", "10299"], "--permits must be HOST:PORT such as 0.0.0.0:10299"),
        (["--permits", "0.0.0.0:10299"], "name the one that nodes use with --permits-address"),
        (["--permits", "0.0.0.0:10299", "--permits-address", "a/b"], "--permits-address must be an address or a name"),
        (["--lease", "500ms"], "--lease must be at least 1s"),
        (["--lease", "soon"], "invalid duration"),
        (["--tls-certificate", "KUBECONFIG"], "must be given together"),
        (["--tls-certificate", "KUBECONFIG", "--tls-folder", "tls"], "cannot be combined with"),
        (["--tls-certificate", "KUBECONFIG", "--tls-key", "KUBECONFIG"], "--tls-certificate"),
    ],
)
def test_what_makes_no_sense_is_refused(kubeconfig: Path, options: list[str], message: str) -> None:
    given = [str(kubeconfig) if option == "KUBECONFIG" else option for option in options]
    done = CliRunner().invoke(controller, ["--kubeconfig", str(kubeconfig), *given])
    assert done.exit_code == 2, done.output
    assert message in done.output


def test_a_certificate_that_cannot_be_served_yet_keeps_no_claim_from_being_answered(tmp_path: Path) -> None:
    """A Secret that is not there, or that somebody filled with something else."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    assert _certificate_problem(certificate, key) == f"{certificate}, {key}: No such file or directory"
    certificate.write_text("x")
    key.write_text("y")
    assert _certificate_problem(certificate, key).startswith(f"{certificate}, {key}: ")
