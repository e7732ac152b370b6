"""The fleet that stays in memory: one index of nodes, one state and one flow of calls, whatever the dialect.

``public.fleet`` is the class that users see; a dialect fills in the steps (``fleet``, ``fleet_state``, ``fleet_rules``
and ``fleet_explainer`` of ``dialects``).

- ``backend``, ``explainer``: what calls do, and why a claim waits
- ``state``: what claims hold of the nodes, while pools and claims come and go
- ``placed``: what a claim gets by its place
- ``waiting``: refusals that still hold, and which of them a change could lift
- ``claim_reader``: claims; a spec that was read before is not read again
- ``equal_devices``, ``pool_states``: equal devices; equal pools in equal use are one state, equal nodes one class
- ``node_index``: the nodes, who holds what there, and what has changed
- ``place_finder``: the best place for a claim; a known shape is a look-up
- ``shape_search``, ``fast_path``, ``node_class_plan``: claims of one shape; the best node of each class, caught up
  from what changed
- ``fleet_stats``, ``funnels``: the numbers of the whole fleet, and what they say of a request
- ``subset``: some nodes, or all of them, as a problem of its own
- ``explanation_nodes``: the few nodes that explain a refusal
- ``unique_attribute_search``: claims that read attributes unique to a device
"""
