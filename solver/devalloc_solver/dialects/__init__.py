"""The dialects of claims: from manifests to the solver's vocabulary, and back to answers and reasons.

``fleet``, ``fleet_state``, ``fleet_rules`` and ``fleet_explainer`` of each are for the fleet that stays in memory; all
else serves that and single calls.
"""
