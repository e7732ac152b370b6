"""What only programs of Neon speak; of our own, only devalloc.programs imports it.

- ``machines``: NeonVM's machines as a source of the permit server; ``vm_info``: what it says of them;
  ``runner_pods``: which pods run machines
- ``billing``: what is counted for billing ids
- ``plain_port``, ``permit_proxy``: the port of the permit server, and its proxy, for agents that have no token
- ``informant_client``, ``informant``: the informant protocol, the agent's side and the guest's
- ``cpu_time_server``: the CPU time of machines for controllers, by the runner protocol

A controller has nothing of the node plugin, and a guest only the informant: so each module imports what it needs.
"""
