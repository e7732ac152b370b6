"""The fleet that stays in memory: one index of nodes and one flow of calls, with a small backend for each dialect.

- ``fleet``: the public class, for both dialects at once
- ``backend``, ``explainer``: what calls do, and why a claim waits, in either dialect
- ``device_claims``, ``resource_k8s``: the backends, which alone know their dialects
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
