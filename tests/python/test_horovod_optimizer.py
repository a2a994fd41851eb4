# SPDX-License-Identifier: Apache-2.0
"""Horovod's DistributedOptimizer and what belongs to it: the weights of one process."""
import json
import os

# pytest.mark.long: the interpreters of GRADUS_PYTHONS (conftest.py)

PROGRAM = '''
import copy
import gc
import logging
import os
import sys
import threading
import warnings
import weakref
import torch
import gradus.torch as hvd
from gradus._engine import handles as _handles

hvd.init()
n, me = hvd.size(), hvd.rank()
torch.manual_seed(7)
DATA = torch.randn(6, 8 * n, 5, dtype=torch.float64)  # steps, samples, features
TARGET = torch.randn(6, 8 * n, 3, dtype=torch.float64)


def new_model(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3),
                               torch.nn.Linear(3, 3)).double()


def loss_of(model, step, part=slice(None)):
    return ((model(DATA[step, part]) - TARGET[step, part]) ** 2).mean()


def alike(what, model, other):
    for a, b in zip(model.parameters(), other.parameters()):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12), (what, me, (a - b).abs().max())


def refused(words, kind, call):
    try:
        call()
    except kind as error:
        assert words in str(error), str(error)
    else:
        raise AssertionError(("accepted", words))


def comes():
    """Waits for told_that_it_waits() of rank 0."""
    os.read(os.open(sys.argv[2], os.O_RDWR), 1)


def told_that_it_waits(name, call):
    """Rank 0 lets rank 1 know that it waits in this call for a collective of such a name."""
    engine = hvd.global_process_set._engine

    def wait(request):
        if request.name.startswith(name) and me == 0 and "wait" in vars(engine):
            del engine.wait
            os.write(os.open(sys.argv[2], os.O_RDWR), b"x")
        return type(engine).wait(engine, request)
    engine.wait = wait
    call()
    vars(engine).pop("wait", None)


def train(what, passes=1, clip=False, groups=None, **words):
    """Some samples of each batch on each rank; one process has all of them."""
    model, alone = new_model(seed=me), new_model(seed=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    alike("broadcast_parameters", model, alone)
    several = [torch.full((3,), float(hvd.rank() + i)) for i in range(40)]
    hvd.broadcast_parameters(several)
    assert [one[2].item() for one in several] == list(range(40))
    kind = {"lr": 0.1, "momentum": 0.9}
    optimizer = torch.optim.SGD(model.parameters(), **kind)
    if groups == "lists":
        groups = [list(model[0].parameters()), list(model[2].parameters())]
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), groups=groups,
                                         backward_passes_per_step=passes, **words)
    assert isinstance(optimizer, torch.optim.SGD)
    one = torch.optim.SGD(alone.parameters(), **kind)
    for step in range(0, 6, passes):
        optimizer.zero_grad()
        one.zero_grad()
        for more in range(passes):
            loss_of(model, step + more, slice(me, None, n)).backward()
            loss_of(alone, step + more).backward()
        if words.get("op") is hvd.Sum:
            for parameter in alone.parameters():
                parameter.grad *= n
        if clip:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        one.step()
        alike(what, model, alone)
    return model, optimizer


train("plain")
train("sum", op=hvd.Sum)
train("predivided", gradient_predivide_factor=float(n))
train("passes", passes=2)
train("clipped", clip=True)
train("groups", groups=2)
train("lists of parameters", groups="lists")

# Parameters that are added, or need gradients, when the optimizer is distributed already.
for names in (False, True):
    model, alone = new_model(), new_model()
    pairs = [(model, lambda made: hvd.DistributedOptimizer(made, model.named_parameters() if names
                                                           else None)), (alone, lambda made: made)]
    optimizers = []
    for one, wrap in pairs:
        one[2].weight.requires_grad_(False)
        optimizers.append(wrap(torch.optim.SGD([*one[0].parameters(), *one[2].parameters()],
                                               lr=0.1)))
    for step in range(4):
        for (one, _), its, part in zip(pairs, optimizers, (slice(me, None, n), slice(None))):
            its.zero_grad()
            if step == 1:
                its.add_param_group({"params": one[3].parameters(), "lr": 0.2})
            if step == 2:
                one[2].weight.requires_grad_(True)
            loss_of(one, step, part).backward()
            its.step()
        alike("added", model, alone)
model = new_model()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model[0].parameters(), lr=0.1), op=hvd.Adasum)
optimizer.add_param_group({"params": model[3].parameters()})
loss_of(model, 0, slice(me, None, n)).backward()
optimizer.step()
for one in hvd.allgather(model[3].weight.detach()[None]):
    assert torch.equal(one, model[3].weight) and not torch.equal(one, new_model()[3].weight)

# Gradients that a closure makes, which LBFGS calls several times.
for kind in (torch.optim.SGD, torch.optim.LBFGS):
    model, alone = new_model(), new_model()
    optimizer = hvd.DistributedOptimizer(kind(model.parameters(), lr=0.1),
                                         model.named_parameters())
    one, losses = kind(alone.parameters(), lr=0.1), []

    def closure(model, optimizer, part):
        optimizer.zero_grad()
        loss = loss_of(model, 0, part)
        loss.backward()
        losses.append(hvd.allreduce(loss.detach(), name="loss"))
        return losses[-1]
    for _ in range(2):
        found = optimizer.step(lambda: closure(model, optimizer, slice(me, None, n)))
        begin, losses = losses[0], []
        expected = one.step(lambda: closure(alone, one, slice(None)))
        assert torch.allclose(found, expected) and torch.equal(found, begin), (found, expected)
        alike("closure", model, alone)
        losses = []

# Of a process set alone, whose other ranks keep their own gradients.
first = hvd.add_process_set([0])
model, other = new_model(), new_model()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                     model.named_parameters(), process_set=first)
one = torch.optim.SGD(other.parameters(), lr=0.1)
for each, its in ((model, optimizer), (other, one)):
    loss_of(each, 0, slice(me, None, n)).backward()
    its.step()
alike("a process set", model, other)
hvd.remove_process_set(first)

# Half of the bits on the way: as exact as these.
model, other = new_model(), new_model()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                     model.named_parameters(), compression=hvd.Compression.fp16)
loss_of(model, 0, slice(me, None, n)).backward()
loss_of(other, 0).backward()
optimizer.synchronize()
for a, b in zip(model.parameters(), other.parameters()):
    assert a.grad.dtype == torch.float64 and torch.allclose(a.grad, b.grad, rtol=2e-3, atol=1e-3)

# A parameter that backward does not reach on one rank.
model = new_model()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0),
                                     model.named_parameters())
(model[3].weight.sum() if me == 0 else model[2].weight.sum() + model[3].weight.sum()).backward()
optimizer.step()
start = new_model()
assert torch.allclose(start[2].weight - model[2].weight, torch.full((3, 7), (n - 1) / n).double())
assert torch.allclose(start[3].weight - model[3].weight, torch.ones(3, 3).double())

# Sparse gradients, as they are and dense.
for dense in (False, True):
    table = torch.nn.Embedding(6, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0),
                                         table.named_parameters(), sparse_as_dense=dense)
    table(torch.tensor([0, me + 1])).sum().backward()
    optimizer.step()
    expected = torch.zeros(6, 2)
    expected[0] = -1
    expected[1:n + 1] = -1 / n
    assert torch.allclose(table.weight, expected), (dense, table.weight)
    torch.nn.init.zeros_(table.weight)
    optimizer.zero_grad(set_to_none=True)
    if me == 0:  # backward reaches it there alone
        table(torch.tensor([0, 1])).sum().backward()
    optimizer.step()
    expected[:2], expected[2:] = -1 / n, 0
    assert torch.allclose(table.weight, expected), (dense, table.weight)
table = torch.nn.Embedding(6, 2, sparse=True)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0),
                                     table.named_parameters())
if me == 0:
    table(torch.tensor([0, 1])).sum().backward()
refused("say sparse_as_dense=True", hvd.HorovodInternalError, optimizer.step)

# A group cannot have them.
table = torch.nn.Embedding(6, 2, sparse=True)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0),
                                     table.named_parameters(), groups=[[table.weight]])
refused("the gradient of weight is sparse", ValueError,
        lambda: table(torch.tensor([0])).sum().backward())

# Adasum combines the steps of two ranks, each with a part of the batch and a state of its own.
model, each = new_model(), [new_model(), new_model()]
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1),
                                     model.named_parameters(), op=hvd.Adasum)
own = [torch.optim.Adam(one.parameters(), lr=0.1) for one in each]
for step in range(3):
    before = [one.detach().clone() for one in model.parameters()]
    optimizer.zero_grad()
    loss_of(model, step, slice(me, None, n)).backward()
    optimizer.step()
    for rank, one in enumerate(each):
        own[rank].zero_grad()
        loss_of(one, step, slice(rank, None, n)).backward()
        own[rank].step()
    with torch.no_grad():
        for start, x, y in zip(before, *(one.parameters() for one in each)):
            a, b = x - start, y - start
            both = (a * b).sum() / 2
            end = start + (1 - both / (a * a).sum()) * a + (1 - both / (b * b).sum()) * b
            assert not torch.allclose(end, start + (a + b) / 2, atol=1e-3)
            x.copy_(end), y.copy_(end)
    alike("adasum", model, each[0])
refused("op=Adasum", AssertionError, lambda: optimizer.skip_synchronize().__enter__())

# What is refused.
model = new_model()
new = lambda *more, **words: hvd.DistributedOptimizer(  # noqa: E731
    torch.optim.SGD(model.parameters(), lr=0.1), *more, **words)
refused("same names: a", ValueError, lambda: new([("a", p) for p in model.parameters()]))
refused("6 of the optimizer's", ValueError, lambda: new([("x", torch.ones(1))]))
refused("named_parameters", ValueError, lambda: new(list(model.parameters())))
refused("op=Average", ValueError, lambda: new(op=hvd.Sum, gradient_predivide_factor=2.0))
optimizer = new(model.named_parameters())
loss_of(model, 0).backward()
refused("more than 1 times", AssertionError, lambda: loss_of(model, 0).backward())
refused("zero_grad()", AssertionError, optimizer.zero_grad)
optimizer.synchronize()
with warnings.catch_warnings(record=True) as told:
    optimizer.step()
assert "skip_synchronize()" in str(told[0].message)

# What nobody waits for any more is over and forgotten. Rank 1 comes when rank 0 waits for it.
if me == 1:
    comes()
loss_of(model, 0).backward()
assert len(_handles) == 6
told_that_it_waits("allreduce.", lambda: optimizer.load_state_dict(optimizer.state_dict()))
assert not _handles
optimizer.zero_grad()
loss_of(model, 0).backward()
optimizer.step()
a, b = torch.ones(2 + me, requires_grad=True), torch.ones(3, requires_grad=True)
failing = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)])
a.sum().backward()
if me == 0:
    b.sum().backward()
else:
    comes()
told_that_it_waits("allreduce.b", lambda: refused("'allreduce.a'", hvd.HorovodInternalError,
                                                  failing.step))
assert hvd.allreduce(torch.ones(1), name="b") == 1 and not _handles

# And so is an optimizer that nobody has.
gone, optimizer = weakref.ref(optimizer), None
assert gone() is None
loss_of(model, 0).backward()
loss_of(model, 0).backward()
assert not _handles
gone, model, new = weakref.ref(model[0].weight), None, None
gc.collect()
assert gone() is None

# The state of an optimizer, with and without one.
for kind in (torch.optim.Adam, torch.optim.SGD):
    model = new_model()
    optimizer = kind(model.parameters(), lr=0.1 * (me + 1), weight_decay=0.5)
    if me == 1:
        loss_of(model, 0).backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0]["lr"] == 0.2
    digest = hvd.allgather_object(
        [(key, [float(v) if not torch.is_tensor(v) else v.double().sum().item()
                for k, v in sorted(state.items()) if v is not None])
         for key, state in optimizer.state_dict()["state"].items()])
    assert digest[0] == digest[1] and len(digest[0]) == (6 if kind is torch.optim.Adam else
                                                         len(digest[1]))

# Hooks of a step are called once, also when the optimizer has got a state.
for op in (hvd.Average, hvd.Adasum) if hasattr(torch.optim.Optimizer, "register_step_pre_hook") \
        else ():
    model, calls = new_model(), []
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()),
                                         model.named_parameters(), op=op)
    if me == 0:
        optimizer.load_state_dict(optimizer.state_dict())
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("behind"))
    loss_of(model, 0).backward()
    optimizer.step()
    assert calls == ["before", "behind"], calls

# A batch norm over all ranks, and its gradients.
x = torch.randn(4 * n, 3, 5, dtype=torch.float64)
w = torch.randn(4 * n, 3, 5, dtype=torch.float64)
mine = slice(4 * me, 4 * me + 4)
for momentum in (0.1, None):
    whole = torch.nn.BatchNorm1d(3, momentum=momentum).double()
    part = hvd.SyncBatchNorm(3, momentum=momentum).double()
    for _ in range(2):
        a = x.clone().requires_grad_()
        b = x[mine].clone().requires_grad_()
        y, z = whole(a), part(b)
        assert torch.allclose(y[mine], z)
        (y * w).sum().backward()
        (z * w[mine]).sum().backward()
        assert torch.allclose(a.grad[mine], b.grad)
    assert torch.allclose(whole.running_mean, part.running_mean)
    assert torch.allclose(whole.running_var, part.running_var)
    assert torch.allclose(whole.weight.grad, hvd.allreduce(part.weight.grad, op=hvd.Sum))
    whole.eval(), part.eval()
    assert torch.allclose(whole(x[mine]), part(x[mine]))

# In half precision, whose largest sums are less than these.
x = torch.randn(2000 * n, 3) + 50
mine = slice(me, None, n)
for kind in (torch.float16, torch.bfloat16):
    whole, part = torch.nn.BatchNorm1d(3), hvd.SyncBatchNorm(3).to(kind)
    y, z = whole(x.to(kind).float()), part(x[mine].to(kind))
    assert z.dtype == kind and torch.allclose(y[mine], z.float(), atol=0.03)
    assert part.running_mean.dtype == kind
    assert torch.allclose(whole.running_mean, part.running_mean.float(), rtol=0.01)
    assert torch.allclose(whole.running_var, part.running_var.float(), rtol=0.01)
    z.sum().backward()
    assert part.bias.grad.dtype == kind

# A timeline of rank 0.
hvd.start_timeline(sys.argv[1], mark_cycles=True)
for _ in range(3):  # the first time with an exchange
    hvd.allreduce(torch.ones(3), name="traced")
hvd.stop_timeline()

# It ends, and nothing else, where it cannot be written.
pipe = sys.argv[1] + ".pipe"
if me == 0:
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
hvd.start_timeline(pipe, mark_cycles=True)
if me == 0:
    os.close(reader)
hvd.allreduce(torch.ones(3), name="traced")
hvd.stop_timeline()


class Told(logging.StreamHandler):
    """Lets rank 1 know that rank 0 has warned."""

    def emit(self, record):
        super().emit(record)
        if "late" in record.getMessage():
            os.write(os.open(sys.argv[2], os.O_RDWR), b"x")




def begin_again(**settings):
    hvd.shutdown()
    os.environ.update({f"HOROVOD_STALL_{name}_TIME_SECONDS": text
                       for name, text in settings.items()})
    hvd.init()


# A rank that submits a tensor late is named. It comes when it was.
os.environ["HOROVOD_TIMELINE"] = "/dev/full"
begin_again(CHECK="0.3")
del os.environ["HOROVOD_TIMELINE"]
if me == 0:
    logging.getLogger("gradus.torch").addHandler(Told())
else:
    comes()
hvd.allreduce(torch.ones(2), name="late")
# And one that never does ends the wait.
begin_again(SHUTDOWN="0.6")
if me == 0:
    refused("'allreduce.never' (rank 1)", hvd.HorovodInternalError,
            lambda: hvd.allreduce(torch.ones(2), name="never"))
else:
    while not hvd.global_process_set._engine.ended:
        threading.Event().wait(0.01)
    refused("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", hvd.HorovodInternalError,
            lambda: hvd.allreduce(torch.ones(2), name="other"))
print("done")
'''


def test_horovod_optimizer_trains_as_one_process(torch_ranks, tmp_path):
    os.mkfifo(tmp_path / "told")
    assert torch_ranks(2, PROGRAM, tmp_path / "trace.json", tmp_path / "told") == [["done"]] * 2
    assert "others wait for since 0.3 s" in torch_ranks.err
    assert "'allreduce.late' (rank 1)" in torch_ranks.err
    assert torch_ranks.err.count(f"{tmp_path}/trace.json.pipe ends here: Broken pipe") == 1
    assert torch_ranks.err.count("/dev/full ends here: No space left on device") == 1
    events = json.loads((tmp_path / "trace.json").read_text())
    assert [event["name"] for event in events].count("ALLREDUCE") == 3
    names = {event["args"]["name"] if event["ph"] == "M" else event["name"] for event in events}
    assert {"allreduce.traced", "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START"} <= names


def test_horovod_optimizer_of_one_process_leaves_gradients_alone(torch_ranks):
    """In an elastic job it reduces: others may come."""
    program = '''
        import torch
        import gradus.torch as hvd
        hvd.init()
        x, loss = torch.zeros(2, requires_grad=True), lambda: (x * 3).sum()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([x], lr=1.0), [("x", x)])
        loss().backward()
        try:
            loss().backward()
            optimizer.step()
            print(x.tolist())
            loss().backward()
            optimizer.zero_grad()
            optimizer.step()
            print(x.tolist())
        except AssertionError as error:
            print(str(error).partition(" (")[0])
        '''
    assert torch_ranks(1, program) == [["[-6.0, -6.0]"] * 2]
    assert torch_ranks(1, program, flags=["--min-workers", 1, "--max-workers", 2]) == [
        ["the gradient of x was computed more than 1 times"]]
