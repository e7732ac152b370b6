"""The fleet that stays in memory: an index of nodes, and one back end for each dialect.

- ``fleet``: the public class, for both dialects at once; ``device_claims``, ``resource_k8s``: the back ends
- ``claim_reader``: claims; a spec that was read before is not read again
- ``device_kinds``, ``pool_states``: kinds of devices; equal pools in equal use are one state, equal nodes one class
- ``node_index``, ``change_log``: the best node of each class, caught up from what changed
- ``shape_search``, ``fast_path``, ``node_class_plan``: claims of one shape; a known shape is a look-up
- ``funnels``, ``fleet_stats``: refusals, with the numbers of the whole fleet
- ``unique_attribute_search``: claims that read attributes unique to a device
"""
