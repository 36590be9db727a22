"""A client made by grpcio-tools, and what reflection and the health service tell. Prints ids, one a line.

    python grpc_client.py PROTO_DIR HOST:PORT
"""
import importlib
import sys
import tempfile
import time

import grpc
import grpc_tools
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_tools import protoc

protos, place = sys.argv[1:]
out = tempfile.TemporaryDirectory()
made = protoc.main(
    ["protoc", f"-I{protos}", f"--python_out={out.name}", f"--grpc_python_out={out.name}", "leaf/v1/leaf.proto"]
)
assert made == 0
sys.path.insert(0, out.name)
pb = importlib.import_module("leaf.v1.leaf_pb2")
stub_of = importlib.import_module("leaf.v1.leaf_pb2_grpc").IdServiceStub

channel = grpc.insecure_channel(place)
stub = stub_of(channel)
TAG = "leaf-segment-test"


def refused(code, call, request, text):
    try:
        call(request, timeout=5)
    except grpc.RpcError as error:
        assert error.code() == code and text in error.details(), error
        return
    raise AssertionError(f"{request} was not refused with {code}")


for _ in range(1000):
    print(stub.NextId(pb.NextIdRequest(tag=TAG)).id)
for ids in (stub.NextIds(pb.NextIdsRequest(tag=TAG, count=1000)).ids, stub.NextIds(pb.NextIdsRequest(tag=TAG)).ids):
    print(*ids, sep="\n")
stream = stub.StreamIds(pb.NextIdsRequest(tag=TAG, count=500))
for at, answer in enumerate(stream):
    print(*answer.ids, sep="\n")
    if at == 20:
        stream.cancel()
        break
lease = stub.LeaseRange(pb.LeaseRangeRequest(tag=TAG, count=1000))
assert lease.end - lease.start == 1000
print(*range(lease.start, lease.start + 400), sep="\n")
back = pb.ReturnRangeRequest(tag=TAG, ticket=lease.ticket, start=lease.start + 400, end=lease.end)
assert stub.ReturnRange(back).returned
assert not stub.ReturnRange(back).returned, "once"
again = stub.LeaseRange(pb.LeaseRangeRequest(tag=TAG, count=10))
assert again.start == lease.start + 400
print(*range(again.start, again.end), sep="\n")

flake = stub.NextId(pb.NextIdRequest(snowflake=pb.Snowflake())).id
flakes = stub.NextIds(pb.NextIdsRequest(snowflake=pb.Snowflake(), count=10)).ids
assert len(flakes) == 10 and flake < flakes[0]
now = stub.Clock(pb.ClockRequest()).unix_millis
assert abs(stub.Decode(pb.DecodeRequest(id=flake)).unix_millis - now) < 60_000

code = grpc.StatusCode
refused(code.NOT_FOUND, stub.NextId, pb.NextIdRequest(tag="nope"), "no such tag")
refused(code.INVALID_ARGUMENT, stub.NextId, pb.NextIdRequest(), "give a tag, or snowflake")
refused(code.INVALID_ARGUMENT, stub.NextId, pb.NextIdRequest(tag=" "), "tag begins or ends with white space")
refused(code.INVALID_ARGUMENT, stub.NextId, pb.NextIdRequest(tag="x" * 129), "tag is longer than 128 characters")
refused(code.INVALID_ARGUMENT, stub.NextId, pb.NextIdRequest(tag="x" * 100_000), "at most")
refused(code.INVALID_ARGUMENT, stub.NextIds, pb.NextIdsRequest(tag=TAG, count=1001), "give 1 to 1000")
refused(code.INVALID_ARGUMENT, stub.LeaseRange, pb.LeaseRangeRequest(tag=TAG), "give 1 to 1000000")
refused(code.INVALID_ARGUMENT, stub.LeaseRange, pb.LeaseRangeRequest(tag=TAG, count=2**32 - 1), "give 1 to")
refused(code.FAILED_PRECONDITION, stub.LeaseRange, pb.LeaseRangeRequest(tag="turns", count=5), "strict order")
refused(code.INVALID_ARGUMENT, stub.ReturnRange, pb.ReturnRangeRequest(tag=TAG, start=5, end=5), "start, end")
refused(code.INVALID_ARGUMENT, stub.Decode, pb.DecodeRequest(id=-1), "layout")
unknown = channel.unary_unary("/leaf.v1.IdService/Nothing", bytes, bytes)
refused(code.UNIMPLEMENTED, unknown, b"", "no such call")
rubbish = channel.unary_unary("/leaf.v1.IdService/NextId", bytes, bytes)
refused(code.INVALID_ARGUMENT, rubbish, b"\xff\xff\xff", "none of this call")
unknown = channel.unary_unary("/other.Service/Nothing", bytes, bytes)
refused(code.UNIMPLEMENTED, unknown, b"", "no such service")

reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
services = {one.name for one in next(reflection.ServerReflectionInfo(iter(asked))).list_services_response.service}
assert {"leaf.v1.IdService", "grpc.health.v1.Health"} <= services, services
health = channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)
for _ in range(100):
    if health(b"") == b"\x08\x01":
        break
    time.sleep(0.1)
else:
    raise AssertionError("it never says SERVING")
