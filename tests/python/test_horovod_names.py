# SPDX-License-Identifier: Apache-2.0
"""The public names of Horovod 0.28's interface for PyTorch, and how each is called."""
import os

from conftest import SOURCE

# pytest.mark.long: the interpreters of GRADUS_PYTHONS (conftest.py)

NAMES = '''
init(comm=None, process_sets=None)
shutdown()
is_initialized()
start_timeline(file_path, mark_cycles=False)
stop_timeline()
rank()
size()
local_rank()
local_size()
cross_rank()
cross_size()
is_homogeneous()
mpi_threads_supported()
mpi_enabled()
mpi_built()
gloo_enabled()
gloo_built()
nccl_built()
ddl_built()
ccl_built()
cuda_built()
rocm_built()
allreduce(tensor, average=None, name=None, compression=Compression.none, op=None,
    prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set)
allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0,
    postscale_factor=1.0, process_set=global_process_set)
allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set)
allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0,
    postscale_factor=1.0, process_set=global_process_set)
grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None,
    prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set)
grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0,
    postscale_factor=1.0, process_set=global_process_set)
grouped_allreduce_(tensors, average=None, name=None, op=None, prescale_factor=1.0,
    postscale_factor=1.0, process_set=global_process_set)
grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0,
    postscale_factor=1.0, process_set=global_process_set)
sparse_allreduce_async(tensor, name, op, process_set=global_process_set)
allgather(tensor, name=None, process_set=global_process_set)
allgather_async(tensor, name=None, process_set=global_process_set)
grouped_allgather(tensors, name=None, process_set=global_process_set)
grouped_allgather_async(tensors, name=None, process_set=global_process_set)
broadcast(tensor, root_rank, name=None, process_set=global_process_set)
broadcast_async(tensor, root_rank, name=None, process_set=global_process_set)
broadcast_(tensor, root_rank, name=None, process_set=global_process_set)
broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set)
alltoall(tensor, splits=None, name=None, process_set=global_process_set)
alltoall_async(tensor, splits=None, name=None, process_set=global_process_set)
reducescatter(tensor, name=None, compression=Compression.none, op=Average,
    process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0)
reducescatter_async(tensor, name=None, op=Average, process_set=global_process_set,
    prescale_factor=1.0, postscale_factor=1.0)
grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average,
    process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0)
grouped_reducescatter_async(tensors, name=None, op=Average, process_set=global_process_set,
    prescale_factor=1.0, postscale_factor=1.0)
join(device=-1)
barrier(process_set=global_process_set)
poll(handle)
synchronize(handle)
add_process_set(process_set)
remove_process_set(process_set)
ProcessSet(ranks_or_comm)
ProcessSet.size(self)
ProcessSet.rank(self)
ProcessSet.included(self)
DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none,
    backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, num_groups=0,
    groups=None, sparse_as_dense=False, process_set=global_process_set)
optimizer.synchronize()
optimizer.skip_synchronize()
optimizer.set_backward_passes_per_step(passes)
optimizer.zero_grad()
optimizer.step(closure=None)
optimizer.load_state_dict(state_dict)
broadcast_parameters(params, root_rank)
broadcast_optimizer_state(optimizer, root_rank, model=None)
broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set)
allgather_object(obj, name=None)
Compression.none.compress(tensor)
Compression.fp16.compress(tensor)
SyncBatchNorm(num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True)
HorovodInternalError()
elastic.run(func)
elastic.TorchState(model=None, optimizer=None, **kwargs)
elastic.ObjectState(bcast_object, get_rank, **kwargs)
elastic.State(bcast_object, get_rank)
elastic.State.commit(self)
elastic.State.save(self)
elastic.State.restore(self)
elastic.State.sync(self)
elastic.State.reset(self)
elastic.State.on_reset(self)
elastic.State.on_hosts_updated(self, timestamp, update_res)
elastic.State.check_host_updates(self)
elastic.State.register_reset_callbacks(self, callbacks)
elastic.ElasticSampler(dataset, shuffle=True, seed=0)
elastic.ElasticSampler.set_epoch(self, epoch)
elastic.ElasticSampler.record_batch(self, batch_idx, batch_size)
elastic.ElasticSampler.state_dict(self)
elastic.ElasticSampler.load_state_dict(self, state_dict)
elastic.ElasticSampler.reset(self)
'''

PROGRAM = '''
import inspect
import operator
import sys
import torch
import gradus.torch
import horovod.torch

NAMES = sys.argv[1].replace("\\n    ", " ").split("\\n")
MORE = ["Average", "Sum", "Adasum", "Min", "Max", "Product", "global_process_set.process_set_id",
        "global_process_set.ranks", "global_process_set.mpi_comm"]
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
horovod.torch.init()
seen = 0


def differs(found, wanted):
    """Why a call that fits `wanted` may not fit `found`."""
    have = [one for one in found.parameters.values() if one.kind not in VARIABLE]
    take_all = any(one.kind in VARIABLE for one in found.parameters.values())
    want = [one for one in wanted.parameters.values() if one.kind not in VARIABLE]
    for mine, other in zip(have, want):
        if mine.name != other.name:
            return f"the parameter {other.name} is called {mine.name}"
        if other.default is not other.empty and mine.default != other.default:
            return f"{other.name} is {mine.default!r} by default, not {other.default!r}"
    if len(have) < len(want) and not take_all:
        return f"no {want[len(have)].name}"
    if any(one.default is one.empty for one in have[len(want):]):
        return "it needs more than Horovod's"


for module in (gradus.torch, horovod.torch):
    model = torch.nn.Linear(1, 1)
    words = {**vars(module), "optimizer": module.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())}
    for line in filter(None, NAMES):
        name, _, rest = line.partition("(")
        exec(f"def wanted({rest}: pass", words)
        try:
            found = eval(name, words)
            why = name != "HorovodInternalError" and differs(
                inspect.signature(found), inspect.signature(words["wanted"]))
        except (AttributeError, NameError) as error:
            why = error
        if why:
            print(module.__name__, name, why)
        seen += 1
    for name in MORE:
        operator.attrgetter(name)(module)
    assert issubclass(module.HorovodInternalError, RuntimeError)
assert isinstance(horovod.torch.HostsUpdatedInterrupt(False), RuntimeError)
print(seen)
'''


def test_horovod_names_are_there_and_called_as_horovods(torch_ranks):
    torch_ranks.environment["PYTHONPATH"] += os.pathsep + str(SOURCE / "python" / "horovod")
    assert torch_ranks(1, PROGRAM, NAMES) == [["178"]]
