# SPDX-License-Identifier: Apache-2.0
"""What torch builds on groups of ranks: averages now and then, meshes, sharded tensors,
checkpoints. All against what one process computes."""
import pytest

from conftest import has

pytestmark = pytest.mark.long
GROUPS = '''
import copy
import warnings
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import gradus.torch
from torch.nn.parallel import DistributedDataParallel as DDP

warnings.simplefilter("ignore")
dist.init_process_group("gradus")
n, me = dist.get_world_size(), dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
x, y = torch.randn(4 * n, 6), torch.randn(4 * n, 4)
parts = [slice(4 * rank, 4 * rank + 4) for rank in range(n)]


def step(model, optimizer, part=slice(None)):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x[part]), y[part]).backward()
    optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def trained(*samples, steps=3):
    model = copy.deepcopy(net)
    for _ in range(steps):
        step(model, sgd(model), torch.cat([torch.arange(4 * n)[one] for one in samples]))
    return list(model.parameters())


def close(found, expected, what, tolerance=1e-5):
    for one, other in zip(found, expected):
        assert torch.allclose(one, other, rtol=tolerance, atol=tolerance), what
    print(what)


# Models of two pairs of ranks.
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
mine = [rank for rank in range(n) if rank // 2 == me // 2]
model = DDP(copy.deepcopy(net), process_group=pairs[me // 2])
optimizer = sgd(model)
for _ in range(3):
    step(model, optimizer, parts[me])
close(model.parameters(), trained(*(parts[rank] for rank in mine)), "pairs")

# Gradients of a pair from the second step on, and the average of all weights at the end.
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.distributed.algorithms.model_averaging import averagers
model = DDP(copy.deepcopy(net))
state = post_localSGD_hook.PostLocalSGDState(None, pairs[me // 2], start_localSGD_iter=0)
model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
averager = averagers.PeriodicModelAverager(period=3, warmup_steps=0)
optimizer = sgd(model)
for number in range(4):  # averaged after the first and the fourth
    step(model, optimizer, parts[me])
    averager.average_parameters(model.parameters())
now = [copy.deepcopy(net) for _ in range(2)]
for number in range(4):
    for pair, one in enumerate(now):
        step(one, sgd(one), slice(8 * pair, 8 * pair + 8))
    if number % 3 == 0:
        with torch.no_grad():
            for both in zip(*(one.parameters() for one in now)):
                average = sum(both) / 2
                for param in both:
                    param.copy_(average)
close(model.parameters(), now[0].parameters(), "post_localSGD")

# Collectives with gradients: a loss on each rank, the sum of which is differentiated.
v = (torch.arange(2.0 * n) + me).requires_grad_()
weight = torch.arange(2.0 * n) * (me + 1)
(differentiable.all_reduce(v) * weight).sum().backward()
close([v.grad], [torch.arange(2.0 * n) * sum(range(1, n + 1))], "all_reduce")
v.grad = None
gathered = differentiable.all_gather(v)
sum((one * weight * rank).sum() for rank, one in enumerate(gathered)).backward()
close([v.grad], [torch.arange(2.0 * n) * sum(range(1, n + 1)) * me], "all_gather")
v.grad = None
out = differentiable.all_to_all_single(torch.zeros(2 * n), v)
(out * weight).sum().backward()
close([v.grad], [torch.cat([(torch.arange(2.0 * n) * (rank + 1))[2 * me:2 * me + 2]
                            for rank in range(n)])], "all_to_all_single")
'''


def test_torch_groups_of_ranks_compute_what_one_process_does(torch_ranks):
    if not has(torch_ranks.python, "numpy"):
        pytest.skip("numpy is not installed")
    assert torch_ranks(4, GROUPS) == [["pairs", "post_localSGD", "all_reduce", "all_gather",
                                       "all_to_all_single"]] * 4


MESH = GROUPS[:GROUPS.index("# Models of two pairs")] + '''
import os
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
whole = torch.arange(35.0).reshape(5, 7)
tensor = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
moved = tensor.redistribute(mesh, [Replicate(), Shard(0)])
other = distribute_tensor(whole.T, mesh, [Shard(1), Replicate()])
close([tensor.full_tensor(), moved.full_tensor(), (moved @ other).full_tensor()],
      [whole, whole, whole @ whole.T], "tensors")

# Weights in shards of a pair, of which there are two copies.
model = copy.deepcopy(net)
fully_shard(model, mesh=mesh)
optimizer = sgd(model)
for _ in range(3):
    step(model, optimizer, parts[me])
close([one.full_tensor() for one in model.parameters()], trained(slice(None)), "hybrid shards")

folder = os.path.join(os.getcwd(), "checkpoint")
checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder)
other = copy.deepcopy(net)
kept = {"model": other.state_dict()}  # whole ones, of shards
checkpoint.load(kept, checkpoint_id=folder)
close(kept["model"].values(), [one.full_tensor() for one in model.parameters()], "checkpoint")

# Each layer on a pair: its columns, then its rows.
model = copy.deepcopy(net)
parallelize_module(model, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = sgd(model)
for _ in range(3):
    step(model, optimizer)
close([one.full_tensor() for one in model.parameters()], trained(slice(None)), "tensor parallel")

# Functional ones, in a part of the mesh, with splits and with gradients.
group = mesh["data"].get_group()
members = dist.get_process_group_ranks(group)
at = members.index(me)
for kind in (torch.float64, torch.bfloat16, torch.int32):
    v = (torch.arange(4) + me).to(kind)
    every = [(torch.arange(4) + rank).to(kind) for rank in members]
    close([functional.all_reduce(v, word, group) + 0 for word in ("sum", "max")],
          [sum(every), torch.stack(every).amax(0)], "all_reduce")
    close([functional.all_gather_tensor(v.view(2, 2), 1, group) + 0],
          [torch.cat([one.view(2, 2) for one in every], 1)], "all_gather")
    close([functional.reduce_scatter_tensor(v, "sum", 0, group) + 0],
          [sum(every)[2 * at:2 * at + 2]], "reduce_scatter")
gives, gets = ([1, 3], [1, 2]) if at == 0 else ([2, 2], [3, 2])
v = (torch.arange(4.0) + me).requires_grad_()
out = functional.all_to_all_single_autograd(v, gets, gives, group)
first = [torch.arange(4.0) + rank for rank in members]
close([out], [torch.cat([first[0][:1], first[1][:2]] if at == 0 else [first[0][1:], first[1][2:]])],
      "all_to_all")
(out * (at + 1)).sum().backward()
close([v.grad], [torch.tensor([1.0, 2, 2, 2] if at == 0 else [1.0, 1, 2, 2])], "gradient")
'''


def test_torch_meshes_of_ranks_compute_what_one_process_does(torch_ranks):
    if not has(torch_ranks.python, "torch.distributed.tensor"):
        pytest.skip("this torch has no meshes of ranks on the CPU")
    three = ["all_reduce", "all_gather", "reduce_scatter"] * 3
    assert torch_ranks(4, MESH) == [["tensors", "hybrid shards", "checkpoint", "tensor parallel",
                                     *three, "all_to_all", "gradient"]] * 4
