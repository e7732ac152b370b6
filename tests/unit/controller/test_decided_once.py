"""What was decided on a held claim is decided again only if the claim or its answer is another one."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from devalloc.api.views import ClaimView
from devalloc.controller.reconcile import decision
from devalloc.controller.reconcile.decision import decide_claims
from devalloc.controller.reconcile.snapshot import Memo
from tests.support.manifests import allocated, claim, entry

NOW = "2026-01-01T00:00:00Z"


def held(number: int, **annotations: str) -> dict[str, Any]:
    wanted = claim(f"c{number}", {"deviceClass": "gpu", "requests": {"count": 1}}, annotations=annotations)
    wanted["metadata"] |= {"resourceVersion": "1", "uid": f"u{number}"}
    return allocated(wanted, [entry("pool", f"d{number}")], node="n1")


def verdict(number: int, **more: Any) -> dict[str, Any]:
    return {"namespace": "default", "name": f"c{number}", "allocated": True, "reason": None, "message": "", **more}


def written(claim: Mapping[str, Any], documents: list[dict[str, Any]]) -> None:
    """Give a claim what the allocator writes on it."""
    answer = {"claims": [verdict(int(claim["metadata"]["name"][1:]))]}
    for unit in decide_claims([claim], answer, NOW):  # type: ignore[list-item]
        for change in unit.changes:
            notes = {**claim["metadata"].get("annotations", {}), **change.annotations}
            remaining = {name: text for name, text in notes.items() if text is not None}
            metadata = {**claim["metadata"], "annotations": remaining}
            documents[documents.index(claim)] = {**claim, "metadata": metadata, "status": change.status}  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(10))
def test_rounds_that_remember_decide_as_one_that_does_not(seed: int) -> None:
    random_ = random.Random(seed)
    documents = [held(number) for number in range(20)]
    for one in [*documents]:
        written(one, documents)
    verdicts = [verdict(number) for number in range(20)]
    memo = Memo()
    for _ in range(60):
        number = random_.randrange(20)
        event = random_.randrange(5)
        if event == 0:
            documents[number] = held(number, **{"devalloc.io/release": "now"})
        elif event == 1:
            documents[number] = held(number)
            written(documents[number], documents)
        elif event == 2:
            lost = [{"devicePoolName": "pool", "deviceName": f"d{number}"}]
            verdicts[number] = verdict(number, lost=random_.choice([[], lost]))
        elif event == 3:
            verdicts[number] = verdict(number, searching=random_.random() < 0.5)
        there = random_.sample(verdicts, 19) if event == 4 else verdicts
        memo.turn()
        assert decide_claims(documents, {"claims": there}, NOW, memo) == decide_claims(
            documents, {"claims": there}, NOW
        )


def test_what_says_all_already_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [held(number) for number in range(20)]
    for one in [*documents]:
        written(one, documents)
    answer, memo = {"claims": [verdict(number) for number in range(20)]}, Memo()
    assert decide_claims(documents, answer, NOW, memo) == []
    looked: list[object] = []
    monkeypatch.setattr(decision, "ClaimView", lambda content: (looked.append(content), ClaimView(content))[1])
    memo.turn()
    assert decide_claims([*documents, held(20)], answer, NOW, memo) == []
    assert [one["metadata"]["name"] for one in looked] == ["c20"]  # type: ignore[index]
