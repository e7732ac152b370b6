"""An expression that can never be evaluated is refused where it enters, like any other mistake."""

from __future__ import annotations

from tests.support.cli_shell import Shell, text
from tests.support.manifests import claim, device_class

BROKEN = claim("broken", {"deviceClass": "gpu", "constraints": "device.model = 'x'"})


def test_apply_names_the_place_and_applies_the_others(devalloc: Shell) -> None:
    done = devalloc("apply", "-f", "-", stdin=text(BROKEN, claim("fine", {"deviceClass": "gpu"})))
    assert done.code == 2
    assert "spec.claims[0].constraints" in done.err
    assert done.out.splitlines() == ["deviceclaim/fine created"]


def test_a_class_is_looked_at_too_also_in_a_dry_run(devalloc: Shell) -> None:
    done = devalloc("apply", "--dry-run", "-f", "-", stdin=text(device_class("gpu", constraints="device.m =")))
    assert (done.code, done.out) == (2, "")
    assert "spec.constraints" in done.err


def test_explain_tells_what_a_claim_would_get_from_what_it_has(devalloc: Shell) -> None:
    from tests.support.manifests import device, pool

    fleet = [pool("p", devices=[device("g0")]), device_class("gpu", driver="gpu")]
    devalloc("apply", "-f", "-", stdin=text(*fleet, claim("fine", {"deviceClass": "gpu"})))
    assert "is not allocated yet, but would be on node n1" in devalloc("explain", "fine").out
