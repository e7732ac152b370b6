from __future__ import annotations
from devalloc_solver.solution import ClaimAnswer


class Explainer:
    def __init__(self, *a, **k):
        pass

    def explain(self, unit, warnings):
        return [ClaimAnswer(d.key[0], d.key[1], False, reason="X", message="x") for d in unit.demands]
