# SPDX-License-Identifier: Apache-2.0
"""The public names of Horovod 0.28's interfaces for PyTorch, TensorFlow and Keras, and how each is
called. For the latter two something stands in for the frameworks, of which no name is needed."""
import importlib.util
import os

import pytest

from conftest import SOURCE, Ranks, pythons_with

# pytest.mark.long: the interpreters of GRADUS_PYTHONS (conftest.py)

COMMON = '''
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
add_process_set(process_set)
remove_process_set(process_set)
ProcessSet(ranks_or_comm)
ProcessSet.size(self)
ProcessSet.rank(self)
ProcessSet.included(self)
barrier(process_set=global_process_set)
HorovodInternalError()
elastic.run(func)
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
Compression.none.compress(tensor)
Compression.fp16.compress(tensor)
'''

TORCH = COMMON + '''
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
poll(handle)
synchronize(handle)
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
SyncBatchNorm(num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True)
elastic.TorchState(model=None, optimizer=None, **kwargs)
elastic.ElasticSampler(dataset, shuffle=True, seed=0)
elastic.ElasticSampler.set_epoch(self, epoch)
elastic.ElasticSampler.record_batch(self, batch_idx, batch_size)
elastic.ElasticSampler.state_dict(self)
elastic.ElasticSampler.load_state_dict(self, state_dict)
elastic.ElasticSampler.reset(self)
'''

TENSORFLOW = COMMON + '''
allreduce(tensor, average=None, device_dense="", device_sparse="", compression=Compression.none,
    op=None, prescale_factor=1.0, postscale_factor=1.0, name=None, process_set=global_process_set,
    ignore_name_scope=False)
grouped_allreduce(tensors, average=None, device_dense="", device_sparse="",
    compression=Compression.none, op=None, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set, ignore_name_scope=False, name=None)
allgather(tensor, name=None, ignore_name_scope=False, process_set=global_process_set)
grouped_allgather(tensors, name=None, ignore_name_scope=False, process_set=global_process_set)
broadcast(tensor, root_rank, name=None, ignore_name_scope=False, process_set=global_process_set)
broadcast_(variables, root_rank, name=None, process_set=global_process_set)
alltoall(tensor, splits=None, name=None, ignore_name_scope=False, process_set=global_process_set)
reducescatter(tensor, device_dense="", compression=Compression.none, op=Average, name=None,
    process_set=global_process_set, ignore_name_scope=False, prescale_factor=1.0,
    postscale_factor=1.0)
grouped_reducescatter(tensors, device_dense="", compression=Compression.none, op=Average,
    process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0)
join()
size_op(process_set_id=0, name=None)
local_size_op(name=None)
rank_op(name=None)
local_rank_op(name=None)
process_set_included_op(process_set_id=0, name=None)
broadcast_variables(variables, root_rank, process_set=global_process_set, inplace=False)
broadcast_global_variables(root_rank)
BroadcastGlobalVariablesHook(root_rank, device="")
BroadcastGlobalVariablesHook.begin(self)
BroadcastGlobalVariablesHook.after_create_session(self, session, coord)
broadcast_object(obj, root_rank=0, session=None, name=None, process_set=global_process_set)
broadcast_object_fn(root_rank=0, session=None, name=None, process_set=global_process_set)
allgather_object(obj, session=None, name=None, process_set=global_process_set)
DistributedOptimizer(optimizer, name=None, use_locking=False, device_dense="", device_sparse="",
    compression=Compression.none, sparse_as_dense=False, backward_passes_per_step=1, op=Average,
    gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, groups=None,
    process_set=global_process_set, scale_local_gradients=True)
optimizer.register_local_var(var)
optimizer.compute_gradients(*args, **kwargs)
optimizer.apply_gradients(grads_and_vars)
DistributedGradientTape(gradtape, device_dense="", device_sparse="", compression=Compression.none,
    sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None,
    process_set=global_process_set, scale_local_gradients=True)
PartialDistributedGradientTape(gradtape, device_dense="", device_sparse="",
    compression=Compression.none, sparse_as_dense=False, op=Average,
    gradient_predivide_factor=1.0, num_groups=0, groups=None, process_set=global_process_set,
    local_layers=None, scale_local_gradients=True)
tape.register_local_source(source)
tape.gradient(target, sources, output_gradients=None, use_generic_names=False)
tape.get_local_and_global_gradients(target, sources, output_gradients=None,
    use_generic_names=False)
SyncBatchNormalization(*, fused=False)
elastic.TensorFlowState(variables=None, session=None, **kwargs)
elastic.TensorFlowKerasState(model, optimizer=None, backend=None, **kwargs)
'''

KERAS = COMMON + '''
DistributedOptimizer(optimizer, name=None, device_dense="", device_sparse="",
    compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average,
    *, backward_passes_per_step=1, average_aggregated_gradients=False, num_groups=0, groups=None,
    process_set=global_process_set, scale_local_gradients=True)
optimizer.register_local_var(var)
PartialDistributedOptimizer(optimizer, name=None, device_dense="", device_sparse="",
    compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average,
    backward_passes_per_step=1, average_aggregated_gradients=False, groups=None,
    process_set=global_process_set, local_layers=None, scale_local_gradients=True)
broadcast_global_variables(root_rank)
allreduce(value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None,
    compression=Compression.none)
allgather(value, name=None)
broadcast(value, root_rank, name=None)
reducescatter(value, name=None, op=Average)
load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none,
    legacy_opts=False)
callbacks.BroadcastGlobalVariablesCallback(root_rank, device="", local_variables=None)
callbacks.BroadcastGlobalVariablesCallback.register_local_var(self, var)
callbacks.MetricAverageCallback(device="")
callbacks.LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, end_epoch=None,
    staircase=True, momentum_correction=True, steps_per_epoch=None)
callbacks.LearningRateWarmupCallback(initial_lr, warmup_epochs=5, momentum_correction=True,
    steps_per_epoch=None, verbose=0)
callbacks.BestModelCheckpoint(monitor="val_loss", verbose=0, *, save_weights_only=False,
    mode="auto", save_freq="epoch")
elastic.KerasState(model, optimizer=None, **kwargs)
elastic.CommitStateCallback(state, batches_per_commit=1)
elastic.UpdateBatchStateCallback(state)
elastic.UpdateEpochStateCallback(state)
'''

STAND_IN = '''
import sys
import types


class Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, Anything(name, (), {}))
        return getattr(cls, name)

    def __call__(cls, *arguments, **words):
        return arguments[0] if arguments and callable(arguments[0]) else lambda thing: thing


keras = Anything("keras", (), {"__version__": "3.0", "backend": types.SimpleNamespace(
    backend=lambda: "tensorflow")})
sys.modules.update(tensorflow=Anything("tensorflow", (), {}), keras=keras)
from gradus.keras._optimizer import _Distributed as optimizer
from gradus.tensorflow._gradients import _Optimizer, _Tape as tape
FRAMEWORK = {"optimizer": _Optimizer if "tensorflow" in sys.argv[3] else optimizer, "tape": tape}
'''

WITH_TENSORFLOW = '''
import tensorflow as tf
import gradus.keras
import gradus.tensorflow
FRAMEWORK = {
    "tape": gradus.tensorflow.DistributedGradientTape(tf.GradientTape()),
    "optimizer": gradus.keras.DistributedOptimizer(gradus.keras._framework.keras.optimizers.SGD())
    if "keras" in sys.argv[3] else gradus.tensorflow.DistributedOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(1.0))}
'''

WITH_TORCH = '''
import torch
import gradus.torch
model = torch.nn.Linear(1, 1)
FRAMEWORK = {"optimizer": gradus.torch.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())}
'''

PROGRAM = '''
import importlib
import inspect
import operator
import sys
from gradus._world import init

NAMES = sys.argv[1].replace("\\n    ", " ").split("\\n")
MORE = ["Average", "Sum", "Adasum", "Min", "Max", "Product", "global_process_set.process_set_id",
        "global_process_set.ranks", "global_process_set.mpi_comm"]
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
ANYWHERE = inspect.Parameter.KEYWORD_ONLY
init()
exec(sys.argv[2])
seen = 0


def parameters_of(function):
    if isinstance(function, type):
        return list(inspect.signature(function.__init__).parameters.values())[1:]
    return list(inspect.signature(function).parameters.values())


def differs(found, wanted):
    """Why a call that fits `wanted` may not fit `found`."""
    have = [one for one in found if one.kind not in VARIABLE]
    if any(one.name in ("self", "cls") for one in have) and wanted[:1] and \\
            wanted[0].name != "self":  # of a class, not of an object
        have = have[1:]
    named = {one.name: one for one in have}
    take_all = any(one.kind in VARIABLE for one in found)
    want = [one for one in wanted if one.kind not in VARIABLE]
    for index, other in enumerate(want):
        mine = named.pop(other.name, None) if other.kind == ANYWHERE or index >= len(have) else \\
            named.pop(have[index].name)
        if mine is None:
            if not take_all:
                return f"no {other.name}"
            continue
        if mine.name != other.name:
            return f"the parameter {other.name} is called {mine.name}"
        if other.default is not other.empty and mine.default != other.default:
            return f"{other.name} is {mine.default!r} by default, not {other.default!r}"
    if any(one.default is one.empty for one in named.values()):
        return "it needs more than Horovod's"


for module in map(importlib.import_module, sys.argv[3].split()):
    words = {**{name: getattr(module, name) for name in (*dir(module), "SyncBatchNormalization")
                if hasattr(module, name)}, **FRAMEWORK}
    for line in filter(None, NAMES):
        name, _, rest = line.partition("(")
        exec(f"def wanted({rest}: pass", words)
        try:
            found = eval(name, words)
            why = name != "HorovodInternalError" and differs(
                parameters_of(found), parameters_of(words["wanted"]))
        except (AttributeError, NameError) as error:
            why = error
        if why:
            print(module.__name__, name, why)
        seen += 1
    for name in MORE:
        operator.attrgetter(name)(module)
    assert issubclass(module.HorovodInternalError, RuntimeError)
    assert isinstance(module.HostsUpdatedInterrupt(False), RuntimeError)
print(seen)
'''


def check(ranks, names, framework, *modules):
    ranks.environment["PYTHONPATH"] += os.pathsep + str(SOURCE / "python" / "horovod")
    count = len([line for line in names.splitlines() if line and line[0] != " "])
    found = ranks(1, PROGRAM, names, framework, " ".join(modules), timeout=300)
    assert found == [[str(count * len(modules))]]


def test_horovod_names_of_torch_are_called_as_horovods(torch_ranks):
    check(torch_ranks, TORCH, WITH_TORCH, "gradus.torch", "horovod.torch")


CASES = [(TENSORFLOW, ("gradus.tensorflow", "horovod.tensorflow")),
         (KERAS, ("gradus.keras", "horovod.keras", "horovod.tensorflow.keras"))]


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None,
                    reason="numpy is not installed (Debian: python3-numpy)")
@pytest.mark.parametrize("names, modules", CASES, ids=["tensorflow", "keras"])
def test_horovod_names_of_tensorflow_and_keras_are_called_as_horovods(ranks, names, modules):
    check(ranks, names, STAND_IN, *modules)


FUNCTIONS = '''
horovod.run(func, args=(), kwargs=None, num_proc=None, min_num_proc=None, max_num_proc=None,
    slots=None, reset_limit=None, cooldown_range=None, hosts=None, hostfile=None,
    host_discovery_script=None, start_timeout=None, ssh_port=None, ssh_identity_file=None,
    disable_cache=None, output_filename=None, verbose=None, use_gloo=None, use_mpi=None,
    mpi_args=None, network_interface=None, network_interfaces=None, executable=None, np=None,
    min_np=None, max_np=None)
horovod.spark.run(fn, args=(), kwargs=None, num_proc=None, start_timeout=None, use_mpi=None,
    use_gloo=None, extra_mpi_args=None, env=None, stdout=None, stderr=None, verbose=1, nics=None,
    prefix_output_with_timestamp=False, executable=None)
horovod.ray.RayExecutor(settings=None, num_workers=None, num_hosts=None, num_workers_per_host=1,
    cpus_per_worker=1, use_gpu=False, gpus_per_worker=None, use_current_placement_group=True,
    min_workers=None, max_workers=None, **elastic)
horovod.ray.RayExecutor.create_settings(timeout_s=30, ssh_identity_file=None, ssh_str=None,
    placement_group_timeout_s=100, nics=None)
horovod.ray.RayExecutor.start(self, executable_cls=None, executable_args=None,
    executable_kwargs=None, extra_env_vars=None)
horovod.ray.RayExecutor.run(self, fn, args=None, kwargs=None, callbacks=None)
horovod.ray.RayExecutor.run_remote(self, fn, args=None, kwargs=None)
horovod.ray.RayExecutor.execute(self, fn, callbacks=None)
horovod.ray.RayExecutor.execute_single(self, fn)
horovod.ray.RayExecutor.shutdown(self)
horovod.ray.elastic.ElasticRayExecutor.run(self, worker_fn, callbacks=None)
horovod.runner.launch.run_commandline(words=None)
'''


def test_horovod_names_that_start_jobs_are_called_as_horovods(ranks):
    ranks.environment["PYTHONPATH"] += os.pathsep + str(SOURCE / "python" / "horovod")
    found, = ranks(1, '''
        import inspect
        import sys
        import horovod.ray.elastic
        import horovod.runner.launch
        import horovod.spark
        for line in filter(None, sys.argv[1].replace("\\n    ", " ").split("\\n")):
            name, _, rest = line.partition("(")
            exec(f"def wanted({rest}: pass")
            kinds = [inspect.signature(what).parameters.values() for what in (eval(name), wanted)]
            words = [[(one.name, one.default) for one in kind] for kind in kinds]
            print("as wanted" if words[0] == words[1] else (name, *words))
        for words in ({}, {"num_workers": 1, "num_hosts": 1}, {"num_workers": 2, "min_workers": 1}):
            try:
                horovod.ray.RayExecutor(**words)
            except Exception as error:
                print(type(error).__name__)
        ''', FUNCTIONS)
    count = sum(line[0] != " " for line in FUNCTIONS.splitlines() if line)
    assert found == ["as wanted"] * count + ["InvalidError", "InvalidError", "UnsupportedError"]


@pytest.mark.long
@pytest.mark.parametrize("python", [one for one in pythons_with(
    "tensorflow", "tensorflow-cpu of pip") if one.id != "here"])
@pytest.mark.parametrize("names, modules", CASES, ids=["tensorflow", "keras"])
def test_horovod_names_are_there_with_tensorflow_itself(gradus, tmp_path, python, names, modules):
    ranks = Ranks(gradus, tmp_path, python)
    ranks.environment.update(KERAS_HOME=str(tmp_path), TF_CPP_MIN_LOG_LEVEL="2",
                             KERAS_BACKEND="tensorflow")
    check(ranks, names, WITH_TENSORFLOW, *modules)
