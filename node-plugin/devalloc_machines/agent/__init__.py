"""Decide how much CPU and memory each machine on this node should have, and get it there.

- ``agent``: one scaler per machine, in one event loop, and a debug server
- ``agent_thread``: the agent for callers in other threads
- ``scaler``: one machine; what it does next is ``devalloc.scaling.actions``
- ``channels``: permits, the machine, the guest monitor, the guest's metrics
- ``permit_client``, ``http_client``, ``guest_monitor_client``: the clients behind the channels
- ``actuator``: change a machine, in threads
- ``report``, ``metrics``: what people and programs see
- ``settings``: what an administrator says of it
"""
