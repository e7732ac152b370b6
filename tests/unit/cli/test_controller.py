"""``devalloc controller``: what is wrong with its options is said before anything begins."""

from __future__ import annotations

import json
import socket
from ipaddress import ip_network
from pathlib import Path

import pytest
from click.testing import CliRunner

from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.options.controllers import controller, permit_proxy
from devalloc.programs.controller_settings import ControllerSettings
from devalloc.scaling.permits.arithmetic import PermitsArithmetic
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra
from devalloc.settings import build
from devalloc_neon.plain_port import PlainListener

SERVER = {"server": "https://127.0.0.1:1"}
CONTENT = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": SERVER}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


DOOR = ("--neon-permits=127.0.0.1:10297", "--neon-agents=10.0.0.0/8")


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
        (["--listen", "10301"], "'--listen': must be HOST:PORT"),
        (["--listen", "localhost:http"], "'--listen': must be HOST:PORT"),
        (["--listen", "localhost:70000"], "'--listen': must be HOST:PORT"),
        (["--permits", "10299"], "'--permits': must be HOST:PORT such as 0.0.0.0:10299"),
        (["--permits", "0.0.0.0:10299"], "name the one that nodes use with --permits-address"),
        (["--permits", "0.0.0.0:10299", "--permits-address", "a/b"], "--permits-address must be an address or a name"),
        ([*DOOR, "--neon"], "--neon-permits needs --permits"),
        (["--permits=127.0.0.1:0", *DOOR], "--neon-permits needs --neon:"),
        (["--permits=127.0.0.1:0", "--neon", DOOR[0]], "--neon-permits needs --neon-agents"),
        (["--permits=127.0.0.1:0", "--neon", DOOR[1]], "--neon-agents needs --neon-permits"),
        (["--permits=127.0.0.1:0", "--neon", "--neon-permits=0.0.0.0:1", DOOR[1]], "one address to listen at"),
        (["--permits=127.0.0.1:0", "--neon", "--neon-permits=10297", DOOR[1]], "must be HOST:PORT"),
        (["--permits=127.0.0.1:0", "--neon", DOOR[0], "--neon-agents=0.0.0.0/0"], "contains every address"),
        (
            ["--permits=127.0.0.1:0", "--neon", DOOR[0], "--neon-agents=10.0.0.7/8"],
            "'--neon-agents': must be a network",
        ),
        (["--permits=127.0.0.1:0", "--permits-overcommit=2,2"], "--permits-overcommit needs --compat newest"),
        (["--permits=127.0.0.1:0", "--compat=newest", "--permits-overcommit=2,0"], "must be two numbers from 0.001"),
        (["--permits=127.0.0.1:0", "--permits-watermark=1.5,1"], "must be two numbers above 0 and at most 1"),
        (["--permits=127.0.0.1:0", "--permits-system=1"], "'--permits-system': must be CPU and memory"),
        (["--permits=127.0.0.1:0", "--memory-slot-size=3"], "'--memory-slot-size': must be a multiple of 2Mi"),
        (["--permits=127.0.0.1:0", "--memory-slot-size=x"], "'--memory-slot-size': must be a multiple of 2Mi"),
        (["--permits=127.0.0.1:0", "--compute-unit=250m"], "'--compute-unit': must be CPU and memory"),
        (["--permits-watermark=0.5,0.5"], "--permits-watermark needs --permits"),
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
    """A Secret that is not there, or that has other content."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    lines: list[str] = []
    settings = ControllerSettings(tls_folder=tmp_path)
    assert settings.checked(lines.append).tls is not None
    then = "serving a self-signed certificate until there is one"
    assert lines == [f"{certificate}, {key}: No such file or directory: {then}"]
    certificate.write_text("x")
    key.write_text("y")
    assert settings.checked(lines.append).tls is not None
    assert lines[1].startswith(f"{certificate}, {key}: ")
    assert lines[1].endswith(then)


def test_the_arithmetic_of_permits_is_what_the_options_say(kubeconfig: Path) -> None:
    words = [
        *("--permits=127.0.0.1:0", "--neon", *DOOR, "--neon-agents=fd00::/8", "--compat=newest"),
        *("--compute-unit=1,2Gi", "--permits-watermark=0.8,0.7", "--permits-system=500m,1Gi"),
        *("--permits-overcommit=2,1.5", "--memory-slot-size=512Mi", "--migration-deadline=3h"),
    ]
    context = controller.make_context("controller", [f"--kubeconfig={kubeconfig}", *words])
    options = build(ControllerSettings, context.params)
    at = options.checked(pytest.fail).permit_server
    assert at is not None
    assert at.migration_seconds == 3 * 3600.0
    assert at.arithmetic == PermitsArithmetic(
        era=ProtocolEra.NEWEST,
        unit=Resources(1000, 2 << 30),
        watermark=(0.8, 0.7),
        system=Resources(500, 1 << 30),
        overcommit=Resources(2000, 1500),
        memory_slot=512 << 20,
    )
    assert at.plain == PlainListener("127.0.0.1", 10297, (ip_network("10.0.0.0/8"), ip_network("fd00::/8")))


def test_a_proxy_of_permits_names_the_address_that_is_taken(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devalloc.cli.verbs.permit_proxy.connect_cluster", lambda *_: None)
    monkeypatch.setattr("devalloc.programs.permit_proxy.published_endpoint", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ["--kubeconfig", str(kubeconfig), "--agents", "10.0.0.0/8", "--listen", at]
        with pytest.raises(CommandFailed, match=f"cannot listen at {at}: Address already in use"):
            CliRunner().invoke(permit_proxy, options, catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "--agents must name the networks of the agents"),
        (["--agents", "10.0.0.0/8"], "--listen must name the address for agents; in a pod, POD_IP has it"),
        (["--agents", "10.0.0.0/8", "--listen", "0.0.0.0:1"], "--listen 0.0.0.0:1, --agents: "),
    ],
)
def test_a_proxy_of_permits_says_what_it_lacks_before_it_asks_the_cluster(
    options: list[str], why: str, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devalloc.cli.verbs.permit_proxy.connect_cluster", lambda *_: pytest.fail("it connected"))
    with pytest.raises(BadInput) as refused:
        CliRunner().invoke(
            permit_proxy, ["--kubeconfig", str(kubeconfig), *options], catch_exceptions=False, standalone_mode=False
        )
    assert refused.value.message.startswith(why)
