"""The gRPC services, and the unix sockets on which they listen.

- ``node_service``: our own service; ``calls``, ``request_fields``, ``replies``: what they share
- ``kubelet``, ``resource_health``: the services that the kubelet calls
- ``server``, ``peer_credentials``: sockets; ``kubelet_sockets``: those of the kubelet, and the registration
"""
