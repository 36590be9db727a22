"""Administration by a client made by grpcio-tools.

    python grpc_admin.py PROTO_DIR OPS_HOST:PORT IDS_HOST:PORT
    python grpc_admin.py PROTO_DIR OPS_HOST:PORT TOKEN token
"""
import importlib
import sys
import tempfile

import grpc
import grpc_tools
from grpc_tools import protoc

protos, ops, other, *token = sys.argv[1:]
out = tempfile.TemporaryDirectory()
made = protoc.main(
    ["protoc", f"-I{protos}", f"--python_out={out.name}", f"--grpc_python_out={out.name}", "leaf/v1/leaf.proto"]
)
assert made == 0
sys.path.insert(0, out.name)
pb = importlib.import_module("leaf.v1.leaf_pb2")
services = importlib.import_module("leaf.v1.leaf_pb2_grpc")

channel = grpc.insecure_channel(ops)
admin = services.AdminServiceStub(channel)
code = grpc.StatusCode


def tags(**options):
    """All tags, of all messages."""
    parts = list(admin.ListTags(pb.ListTagsRequest(), timeout=30, **options))
    assert not any(part.failed for part in parts)
    return [tag for part in parts for tag in part.tags]


def refused(code, call, request, text, **options):
    try:
        answer = call(request, timeout=30, **options)
        if call == admin.ListTags:
            list(answer)
    except grpc.RpcError as error:
        assert error.code() == code and text in error.details(), error
        return
    raise AssertionError(f"{request} was not refused with {code}")


if token:
    refused(code.UNAUTHENTICATED, admin.ListTags, pb.ListTagsRequest(), "ops.token")
    wrong = [("authorization", "Bearer 0123456789abcdeF")]
    refused(code.UNAUTHENTICATED, admin.ListTags, pb.ListTagsRequest(), "ops.token", metadata=wrong)
    right = [("authorization", f"Bearer {other}")]
    assert len(tags(metadata=right)) == 1
    print("the token was asked for")
    sys.exit()

# Tags.
assert [tag.tag for tag in tags()] == ["leaf-segment-test"]
made = admin.CreateTag(pb.CreateTagRequest(tag="orders", step=1000, first=500, description="all of them"))
assert (made.max_id, made.step, made.order, made.shape) == (500, 1000, pb.ORDER_RELAXED, "plain")
assert made.description == "all of them" and made.enabled and not made.HasField("max_step")
turns = admin.CreateTag(pb.CreateTagRequest(tag="turns", order=pb.ORDER_STRICT, text="N-{n}"))
assert turns.order == pb.ORDER_STRICT and not turns.HasField("step")
days = admin.CreateTag(pb.CreateTagRequest(tag="days", reset=pb.PERIOD_DAILY, time_zone="Europe/Berlin"))
assert (days.reset, days.time_zone) == (pb.PERIOD_DAILY, "Europe/Berlin")
half = admin.CreateTag(pb.CreateTagRequest(tag="half", step=10, shape="interleave:1/2"))
assert half.shape == "interleave:1/2"
refused(code.ALREADY_EXISTS, admin.CreateTag, pb.CreateTagRequest(tag="orders", step=10), "orders")
refused(code.INVALID_ARGUMENT, admin.CreateTag, pb.CreateTagRequest(tag="new"), "step")
refused(code.INVALID_ARGUMENT, admin.CreateTag, pb.CreateTagRequest(tag="new", step=0), "step: give 1 to")
refused(code.INVALID_ARGUMENT, admin.CreateTag, pb.CreateTagRequest(tag="new", step=2**31), "step: give 1 to")
refused(code.INVALID_ARGUMENT, admin.CreateTag, pb.CreateTagRequest(tag="new", step=1, shape="round"), "shape")
refused(code.INVALID_ARGUMENT, admin.CreateTag, pb.CreateTagRequest(tag="new", step=1, order=7), "order")
refused(code.INVALID_ARGUMENT, admin.CreateTag, pb.CreateTagRequest(tag="new", reset=7), "reset")
refused(code.INVALID_ARGUMENT, admin.CreateTag, pb.CreateTagRequest(tag="new", step=1, slice="0/2", slice_bits=300), "slice_bits")
refused(code.INVALID_ARGUMENT, admin.CreateTag, pb.CreateTagRequest(tag=" ", step=1), "")
refused(code.INVALID_ARGUMENT, admin.CreateTag, pb.CreateTagRequest(tag="new", step=1, description="x" * 20_000), "16384")

changed = admin.ChangeTag(pb.ChangeTagRequest(tag="orders", step=2000, max_step=50_000, enabled=False))
assert (changed.step, changed.max_step, changed.enabled) == (2000, 50_000, False)
changed = admin.ChangeTag(pb.ChangeTagRequest(tag="orders", enabled=True, max_step=0))
assert changed.enabled and changed.step == 2000 and not changed.HasField("max_step")
assert admin.GetTag(pb.GetTagRequest(tag="orders")) == changed
refused(code.INVALID_ARGUMENT, admin.ChangeTag, pb.ChangeTagRequest(tag="orders"), "nothing to change")
refused(code.NOT_FOUND, admin.ChangeTag, pb.ChangeTagRequest(tag="nope", step=1), "no such tag")
refused(code.NOT_FOUND, admin.GetTag, pb.GetTagRequest(tag="nope"), "no such tag")

raised = admin.AdvanceTag(pb.AdvanceTagRequest(tag="orders", at_least=10_000))
assert raised.raised and raised.tag.max_id == 10_000
assert not admin.AdvanceTag(pb.AdvanceTagRequest(tag="orders", at_least=9000)).raised
far = pb.AdvanceTagRequest(tag="orders", at_least=2 * 10**12)
refused(code.FAILED_PRECONDITION, admin.AdvanceTag, far, "lost for ever")
far.far = True
assert admin.AdvanceTag(far).tag.max_id == 2 * 10**12
refused(code.FAILED_PRECONDITION, admin.RekeyTag, pb.RekeyTagRequest(tag="orders"), "")

ids = services.IdServiceStub(grpc.insecure_channel(other))
turn = ids.NextId(pb.NextIdRequest(tag="turns")).id
told = admin.DecodeTagId(pb.DecodeTagIdRequest(tag="turns", id=f"N-{turn}"))
assert (told.tag, told.id, told.number, told.granted) == ("turns", turn, turn, True)
assert not told.HasField("key") and not told.HasField("period")
refused(code.NOT_FOUND, admin.DecodeTagId, pb.DecodeTagIdRequest(tag="turns", id="M-1"), "")

refused(code.FAILED_PRECONDITION, admin.DeleteTag, pb.DeleteTagRequest(tag="half"), "as `confirm`")
refused(code.FAILED_PRECONDITION, admin.DeleteTag, pb.DeleteTagRequest(tag="half", confirm="orders"), "as `confirm`")
gone = admin.DeleteTag(pb.DeleteTagRequest(tag="half", confirm="half"))
assert (gone.deleted.tag, gone.next_first) == ("half", half.max_id)
refused(code.NOT_FOUND, admin.DeleteTag, pb.DeleteTagRequest(tag="half", confirm="half"), "no such tag")
assert {tag.tag for tag in tags()} == {"leaf-segment-test", "orders", "turns", "days"}

# More than one message.
for number in range(600):
    admin.CreateTag(pb.CreateTagRequest(tag=f"many-{number:04}", step=1))
names = [tag.tag for tag in tags()]
assert len(names) == 604 and names == sorted(names)

# Asked for before it is there, and found once it is.
refused(code.NOT_FOUND, ids.NextId, pb.NextIdRequest(tag="soon"), "no such tag")
admin.CreateTag(pb.CreateTagRequest(tag="soon", step=1))
assert ids.NextId(pb.NextIdRequest(tag="soon")).id == 1

# What a client is told.
seen = ids.DescribeTag(pb.DescribeTagRequest(tag="orders"))
assert (seen.order, seen.leases, seen.step) == (pb.ORDER_RELAXED, True, 2000)
assert seen.max_take > 0 and seen.max_count > 0
seen = ids.DescribeTag(pb.DescribeTagRequest(tag="turns"))
assert seen.order == pb.ORDER_STRICT and not seen.leases and not seen.HasField("step")
server = ids.DescribeServer(pb.DescribeServerRequest())
assert server.ready and server.segment and server.snowflake and server.version and not server.HasField("zone")

# Worker ids.
(held,) = admin.ListWorkers(pb.ListWorkersRequest()).workers
assert held.state == "held" and held.HasField("holder") and held.ceiling_unix_millis > held.last_report_unix_millis > 0
refused(code.FAILED_PRECONDITION, admin.ReleaseWorker, pb.ReleaseWorkerRequest(worker=held.worker), "would repeat ids")
refused(code.FAILED_PRECONDITION, admin.RetireWorker, pb.RetireWorkerRequest(worker=9), "never used again")
retired = admin.RetireWorker(pb.RetireWorkerRequest(worker=9, for_good=True))
assert retired.worker == 9
states = {one.worker: one.state for one in admin.ListWorkers(pb.ListWorkersRequest()).workers}
assert states == {held.worker: "held", 9: "retired"}, states
refused(code.FAILED_PRECONDITION, admin.RetireWorker, pb.RetireWorkerRequest(worker=2**32 - 1, for_good=True), "")

unknown = channel.unary_unary("/leaf.v1.IdService/NextId", bytes, bytes)
refused(code.UNIMPLEMENTED, unknown, b"", "leaf.v1.AdminService")
unknown = channel.unary_unary("/leaf.v1.AdminService/Nothing", bytes, bytes)
refused(code.UNIMPLEMENTED, unknown, b"", "no such call")
there = services.AdminServiceStub(grpc.insecure_channel(other))
refused(code.UNIMPLEMENTED, there.GetTag, pb.GetTagRequest(tag="orders"), "ops listener")
print("all was as it should be")
