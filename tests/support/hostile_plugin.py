"""A node plugin that answers every call with hostile text in every field that takes text."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from devalloc_node.pb import node_pb2, warm_pb2
from tests.support.terminal import HOSTILE


def filled(descriptor: Descriptor, depth: int = 5) -> Any:
    """A message with every text set, one element in each list, and the first named value of each enum."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        is_list = field.is_repeated
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.type == FieldDescriptor.TYPE_STRING:
            value: Any = HOSTILE
        elif field.type == FieldDescriptor.TYPE_BYTES:
            value = HOSTILE.encode()
        elif field.message_type is not None and depth:
            value = filled(field.message_type, depth - 1)
        elif field.enum_type is not None:
            value = field.enum_type.values[1].number
        elif field.type in (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_INT32):
            value = 1
        else:
            continue
        if is_list and field.message_type is not None:
            getattr(message, field.name).add().CopyFrom(value)
        elif is_list:
            getattr(message, field.name).append(value)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(value)
        else:
            setattr(message, field.name, value)
    return message


class _Everything(grpc.GenericRpcHandler):
    def __init__(self, details: str | None) -> None:
        self._details = details
        node, warm = node_pb2.DESCRIPTOR.services_by_name["Node"], warm_pb2.DESCRIPTOR.services_by_name["WarmPool"]
        self._methods = {f"/{one.full_name}/{method.name}": method for one in (node, warm) for method in one.methods}

    def service(self, handler_call_details: Any) -> Any:
        method = self._methods[handler_call_details.method]

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if self._details is not None:
                context.abort(grpc.StatusCode.NOT_FOUND, self._details)
            return filled(method.output_type).SerializeToString()

        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(lambda request, context: iter([answer(request, context)]))
        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def hostile_plugin(socket: Path, *, details: str | None = None) -> Iterator[Path]:
    """Serve on the socket. ``details``: every call fails with these words."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([_Everything(details)])
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield socket
    finally:
        server.stop(0).wait()
