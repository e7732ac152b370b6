"""Decide how much CPU and memory each machine on this node should have, and get it there.

- ``agent``: one scaler per machine, in one event loop; ``agent_thread``: the agent for callers in other threads
- ``scaler``: one machine; what it does next is ``devalloc.scaling.actions``
- ``channels``: permits, the machine, the guest monitor, the guest's metrics
- ``permit_client``, ``metrics_client``, ``guest_monitor_client``, ``informant``: the clients behind the channels
- ``actuator``, ``executors``: change a machine, in threads
- ``report``, ``metrics``, ``debug_server``: what people and programs see
- ``runner``: for controllers in place of the agent
"""
