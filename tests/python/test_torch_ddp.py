# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel over the backend, and what goes wrong in it."""
import pytest

from conftest import SOURCE, has

# pytest.mark.long: the interpreters of GRADUS_PYTHONS (conftest.py)

DDP = '''
import copy
import gzip
import hashlib
import sys
import torch
import torch.distributed as dist
import gradus.torch
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gradus")
n, me = dist.get_world_size(), dist.get_rank()
with gzip.open(sys.argv[1], "rt") as file:
    rows = torch.tensor([[float(word) for word in line.split(",")] for line in file][:480])
pixels, digits = rows[:, :64] / 16, rows[:, 64].long()
torch.manual_seed(me)  # DDP starts all from rank 0's weights
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 96),
                            torch.nn.BatchNorm1d(96), torch.nn.ReLU(), torch.nn.Linear(96, 10))
model.eval()  # a batch norm in training would see only a part of the batch
parallel = DistributedDataParallel(model, bucket_cap_mb=0.02)  # several buckets
alone = copy.deepcopy(model)
loss_of = torch.nn.CrossEntropyLoss()
optimizers = [torch.optim.SGD(one.parameters(), lr=0.2, momentum=0.9) for one in (parallel, alone)]
for step in range(10):
    batch = slice(48 * step, 48 * step + 48)
    x, y = pixels[batch], digits[batch]
    loss_of(parallel(x[me::n]), y[me::n]).backward()
    loss_of(alone(x), y).backward()
    for mine, whole in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(mine.grad, whole.grad, rtol=1e-4, atol=1e-6), step
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
with parallel.no_sync():
    loss_of(parallel(pixels[me:me + 8]), digits[me:me + 8]).backward()
loss_of(parallel(pixels[me:me + 8]), digits[me:me + 8]).backward()
data = b"".join(one.grad.numpy().tobytes() + one.detach().numpy().tobytes()
                for one in model.parameters())
print(hashlib.sha256(data).hexdigest())
'''


@pytest.mark.parametrize("count", [2, 3])
def test_torch_ddp_has_the_gradients_of_one_process(torch_ranks, count):
    if not has(torch_ranks.python, "numpy"):
        pytest.skip("numpy is not installed")
    lines = torch_ranks(count, DDP, SOURCE / "examples" / "digits" / "digits.csv.gz")
    assert len(lines[0]) == 1 and lines == [lines[0]] * count


SPARSE = '''
import copy
import torch
import torch.distributed as dist
import gradus.torch
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gradus")
n, me = dist.get_world_size(), dist.get_rank()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Embedding(20, 4, sparse=True), torch.nn.Flatten(),
                            torch.nn.Linear(12, 3))
alone = copy.deepcopy(model)
parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizers = [torch.optim.SGD(one.parameters(), lr=0.5) for one in (parallel, alone)]
for step in range(6):
    words = torch.randint(0, 20, (4 * n, 3))
    parallel(words[me::n]).square().mean().backward()
    alone(words).square().mean().backward()
    for mine, whole in zip(model.parameters(), alone.parameters()):
        assert mine.grad.is_sparse == whole.grad.is_sparse
        assert torch.allclose(mine.grad.to_dense() if mine.grad.is_sparse else mine.grad,
                              whole.grad.to_dense() if whole.grad.is_sparse else whole.grad,
                              rtol=1e-4, atol=1e-6), step
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
print(model[0].weight.sum().item())
'''


def test_torch_ddp_has_sparse_gradients(torch_ranks):
    lines = torch_ranks(2, SPARSE)
    assert len(lines[0]) == 1 and lines[0] == lines[1]


WAYS = '''
import contextlib
import copy
import sys
import warnings
import torch
import torch.distributed as dist
import gradus.torch
from torch.nn.parallel import DistributedDataParallel as DDP

warnings.simplefilter("ignore")
dist.init_process_group("gradus")
n, me = dist.get_world_size(), dist.get_rank()
torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(6, 16), torch.nn.Linear(16, 4)
        self.other = torch.nn.Linear(16, 4)

    def forward(self, x, which=0):
        x = torch.relu(self.one(x))
        return self.two(x) if which == 0 else self.other(x)


net = Net()
x, y = torch.randn(4 * n, 6), torch.randn(4 * n, 4)
part = slice(4 * me, 4 * me + 4)
loss_of = torch.nn.MSELoss()


def train(model, optimizer, x, y, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()


def weights(model):
    return [param.detach().clone() for param in model.parameters()]


def close(found, expected, what, tolerance=1e-5):
    for one, other in zip(found, expected):
        assert torch.allclose(one, other, rtol=tolerance, atol=tolerance), what
    print(what)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


alone = copy.deepcopy(net)
train(alone, sgd(alone), x, y)
used = [one for name, one in alone.named_parameters() if "other" not in name]

for what, settings in {"find_unused": dict(find_unused_parameters=True),
                       "static_graph": dict(static_graph=True),
                       "bucket_view": dict(gradient_as_bucket_view=True,
                                           find_unused_parameters=True)}.items():
    model = DDP(copy.deepcopy(net), **settings)
    train(model, sgd(model), x[part], y[part])
    close(weights(model), weights(alone), what)

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
for what, hook, tolerance in (("allreduce_hook", default_hooks.allreduce_hook, 1e-5),
                              ("fp16_hook", default_hooks.fp16_compress_hook, 1e-2),
                              ("powerSGD_hook", powerSGD_hook.powerSGD_hook, 0.1)):
    # Of PowerSGD a callback starts operations: no others may go on meanwhile, as of unused weights.
    model = DDP(torch.nn.Sequential(copy.deepcopy(net.one), torch.nn.ReLU(),
                                    copy.deepcopy(net.two)))
    state = None
    if "power" in what:
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    model.register_comm_hook(state, hook)
    train(model, sgd(model), x[part], y[part])
    close(weights(model), used, what, tolerance)

model = DDP(copy.deepcopy(net), find_unused_parameters=True)
with model.no_sync():
    loss_of(model(x[part]), y[part]).backward()
loss_of(model(x[part]), y[part]).backward()
twice = copy.deepcopy(net)
(2 * loss_of(twice(x), y)).backward()
close([one.grad for one in model.module.one.parameters()],
      [one.grad for one in twice.one.parameters()], "no_sync")

model = DDP(torch.nn.Linear(6, 4))
with model.join():  # rank 0 has less to do
    for _ in range(1 if me == 0 else 2):
        loss_of(model(x[part]), y[part]).backward()
print("join")

from torch.distributed.optim import ZeroRedundancyOptimizer
model = DDP(copy.deepcopy(net), find_unused_parameters=True)
train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9),
      x[part], y[part])
close(weights(model), weights(alone), "zero")

new = not torch.__version__.startswith("1.")
if new:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    model = FSDP(copy.deepcopy(net), device_id=torch.device("cpu"), use_orig_params=True)
    train(model, sgd(model), x[part], y[part])
    with FSDP.summon_full_params(model):
        close([one for name, one in model.named_parameters() if "other" not in name], used, "fsdp1")
if new and not torch.__version__.startswith(("2.0", "2.1.", "2.2", "2.3", "2.4", "2.5", "2.6")):
    # Older ones have none, or want streams of a device.
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (n,))
    model = copy.deepcopy(net)
    fully_shard(model.one, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, sgd(model), x[part], y[part])
    close([one.full_tensor() for name, one in model.named_parameters() if "other" not in name],
          used, "fsdp2")
if new and "compile" in sys.argv:
    model = torch.compile(DDP(copy.deepcopy(net), find_unused_parameters=True), backend="aot_eager")
    train(model, sgd(model), x[part], y[part])
    close(weights(model), weights(alone), "compile", 1e-4)
'''
OLD = ["find_unused", "static_graph", "bucket_view", "allreduce_hook", "fp16_hook",
       "powerSGD_hook", "no_sync", "join", "zero"]


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_torch_ways_to_train_in_parallel_lead_to_the_weights_of_one_process(torch_ranks, count):
    """DDP with what it can be told, sharded optimizers and, from torch 2 on, sharded weights."""
    if not has(torch_ranks.python, "numpy"):
        pytest.skip("numpy is not installed")
    lines = torch_ranks(count, WAYS, "compile")
    for line in lines:
        assert line == lines[0] and line[:len(OLD)] == OLD
        assert line[len(OLD):] in ([], ["fsdp1", "compile"], ["fsdp1", "fsdp2", "compile"])


SHARED = '''
import copy
import gc
import torch
import torch.distributed as dist
import gradus.torch
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gradus")
n, me = dist.get_world_size(), dist.get_rank()
comm = dist.distributed_c10d._get_default_group().communicator
for view in (False, True):
    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Linear(6, 16384), torch.nn.ReLU(),
                               torch.nn.Linear(16384, 3))
    alone = copy.deepcopy(wide)
    x, y = torch.randn(4 * n, 6), torch.randn(4 * n, 3)
    padding = [torch.ones(1 + me) for _ in range(me)]  # buckets begin elsewhere on each rank
    model = DistributedDataParallel(wide, gradient_as_bucket_view=view)
    state = gradus.torch.SharedBuckets()
    model.register_comm_hook(state, gradus.torch.shared_buckets_hook)
    held = None
    for step in range(6):
        for one, samples in ((model, slice(4 * me, 4 * me + 4)), (alone, slice(None))):
            one.zero_grad(set_to_none=False)
            torch.nn.functional.mse_loss(one(x[samples]), y[samples]).backward()
        for param, other in zip(model.parameters(), alone.parameters()):
            assert torch.allclose(param.grad, other.grad, rtol=1e-4, atol=1e-6), (view, step)
        if step == 1:
            held = wide[0].weight.grad.view(-1)  # its memory stays where it is
    assert held.data_ptr() == wide[0].weight.grad.data_ptr()
    print(state.shared_bytes // 1024)
    with model.join():  # rank 0 is through, and gives zeros in buckets that are gone then
        for _ in range(8 * me):
            model(x).sum().backward()
    print(state.shared_bytes // 1024)
    shared = state._shared
    del model, wide, state, held, param
    gc.collect()
    assert not shared
    comm.allreduce(torch.ones(1 << 18))
try:
    gradus.torch.SharedBuckets(dist.new_group(backend="gloo"))
except gradus.InvalidError as error:
    print("not one of gradus" in str(error))
'''


def test_torch_buckets_that_peers_share_have_the_gradients_of_one_process(torch_ranks):
    assert torch_ranks(2, SHARED) == [["640"] * 4 + ["True"]] * 2


def test_torch_ddp_names_a_rank_that_dies_in_backward(torch_ranks):
    lines = torch_ranks(3, '''
        import os
        import signal
        import torch
        import torch.distributed as dist
        import gradus.torch
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the job ends: it still has to say why
        dist.init_process_group("gradus")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            model(torch.ones(1, 4)).sum().backward()
        except RuntimeError as error:
            print("rank 1 died" in str(error), flush=True)
        ''', code=1)
    assert lines == [["True"], [], ["True"]], torch_ranks.err
