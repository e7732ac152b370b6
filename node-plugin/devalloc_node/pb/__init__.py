"""The wire: .proto files of the services that the node plugin speaks, beside the code that `make protos` makes of them.

The kubelet's services are written here from their wire facts (package, method, field number and type of each); names
of packages are part of the wire and are kept as the kubelet has them, `v1` of the health service included.
"""
