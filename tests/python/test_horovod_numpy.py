# SPDX-License-Identifier: Apache-2.0
"""The collectives of numpy arrays that those of TensorFlow and Keras are made of."""
import importlib.util

import pytest

if importlib.util.find_spec("numpy") is None:
    pytest.skip("numpy is not installed (Debian: python3-numpy)", allow_module_level=True)

PROGRAM = '''
import sys
import numpy as np
from gradus import _gradients, _numpy as ops
from gradus import _submit as hvd
from gradus._engine import HorovodInternalError
from gradus._objects import allgather_object, broadcast_object
from gradus._world import ProcessSet, global_process_set as everybody, init, rank, size

sys.modules["torch"] = None  # none of this needs a framework
import horovod.common.exceptions
import horovod.common.process_sets

half = ProcessSet([0])
init(process_sets=[half])
n, me = size(), rank()


class Compression:
    """None: what travels are the arrays themselves."""

    compress = decompress = None


def run(request):
    found, = ops.run([request], everybody)
    return found


def same(what, found, expected):
    assert np.shape(found) == np.shape(expected) and np.allclose(found, expected), (what, me, found)


def refused(words, kind, call):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError(("accepted", words))


def reduced(array, op=hvd.Sum, prescale=1.0, postscale=1.0, name=None):
    found, = run(ops.allreduce([array], name, op, prescale, postscale, everybody))
    assert found.dtype == np.asarray(array).dtype
    return found


own = np.arange(6).reshape(2, 3) + me
every = np.stack([np.arange(6).reshape(2, 3) + one for one in range(n)])
for kind in ("float16", "float32", "float64", "uint8", "int32", "int64", "complex64"):
    same(kind, reduced(own.astype(kind)), every.sum(0))
swapped, = run(ops.allreduce([own.astype(">f4")], None, hvd.Sum, 1.0, 1.0, everybody))
same("of the other byte order", swapped, every.sum(0))
same("max", reduced(own, hvd.Max), every.max(0))
same("average", reduced(own * 2.0, hvd.Average, 0.5, 3.0), every.mean(0) * 3)
same("zero", reduced(own, postscale=0.0), np.zeros((2, 3)))
same("transposed", reduced(own.T), every.sum(0).T)
same("a number", reduced(np.float32(me)), n * (n - 1) / 2)
same("large", reduced(np.full(200000, me, "float32")), np.full(200000, n * (n - 1) / 2))
same("adasum", reduced(np.eye(n)[me], hvd.Adasum), np.ones(n))
same("adasum", reduced(np.ones((2, 2)), hvd.Adasum, 2.0, 0.5), np.ones((2, 2)))
a, b = run(ops.allreduce([own, own * 2], "group", hvd.Sum, 1.0, 1.0, everybody))
same("group", b, every.sum(0) * 2)
found, = run(ops.allgather([np.full((me, 2), me)], None, everybody))
same("allgather", found, np.repeat(np.arange(n), np.arange(n))[:, None].repeat(2, 1))
same("broadcast", run(ops.broadcast(own, n - 1, None, everybody)), every[-1])
found, came = run(ops.alltoall(np.arange(n) + 10 * me, None, None, everybody))
same("alltoall", found, 10 * np.arange(n) + me)
same("alltoall", came, np.ones(n))
rows = np.tile(np.arange(n + 1.0), (2, 1)).T + me
found, = run(ops.reducescatter([rows], None, hvd.Sum, 1.0, 1.0, everybody))
total = sum(rows - me + one for one in range(n))
same("reducescatter", found, total[:2] if me == 0 else total[me + 1:me + 2])
assert allgather_object((me, b"")) == [(one, b"") for one in range(n)]
assert broadcast_object([me] * 1000, n - 1) == [n - 1] * 1000
if half.included():
    found, = ops.run([ops.allreduce([own], None, hvd.Sum, 1.0, 1.0, half)], half)[0]
    same("a process set", found, own)

# A step: gradients by number, submitted in another order on each rank.
step = _gradients.reduction_of("sgd", hvd.Average, 2.0, Compression, False, everybody, factor=3.0)
parts = [_gradients.part_of(step, index, f"weight {index}") for index in range(4)]
parts[3] = _gradients.part_of(step, 3, "table", "allgather", ".values")
arrays = [own + index for index in range(3)] + [np.full(me + 1, me)]
order = [(index + me) % 4 for index in range(4)]
found = _gradients.exchange([parts[one] for one in order], [arrays[one] * 1.0 for one in order],
                            step)
for one, array in zip(order, found):
    same("step", array, (every + one).mean(0) * 3 if one < 3 else
         np.repeat(np.arange(n), np.arange(n) + 1))

# What cannot be.
sizes = [2] * 3 + [2 + (me == 1)]
for part in range(3, 4):
    parts[part] = _gradients.part_of(step, part, "dense/kernel")
refused(["'allreduce.sgd.3'", "rank 0", "[2]", "rank 1", "[3]", "(here dense/kernel)"],
        HorovodInternalError, lambda: _gradients.exchange(
            parts, [np.ones(size) for size in sizes], step))
same("after", reduced(own), every.sum(0))
refused(["complex64 with Adasum"], ValueError,
        lambda: reduced(own.astype("complex64"), hvd.Adasum))
refused(["object"], ValueError, lambda: reduced(np.array([None])))
refused(["splits"], ValueError, lambda: ops.alltoall(own, [1] * n + [0], None, everybody))
refused(["without a dimension"], ValueError, lambda: ops.allgather([1.0], None, everybody))
refused(["none of the ranks"], ValueError, lambda: ops.broadcast(own, n, None, everybody))
refused(["Average alone"], ValueError, lambda: _gradients.reduction_of(
    "sgd", hvd.Sum, 2.0, Compression, False, everybody))
refused(["sparse_as_dense"], ValueError, lambda: _gradients.check_sparse(
    step._replace(op=hvd.Max), "table"))
refused(["compress"], ValueError, lambda: _gradients.reduction_of(
    "sgd", hvd.Sum, 1.0, "fp16", False, everybody))
for framework in ("keras", "tf_keras"):
    sys.modules[framework] = None
try:
    import gradus.keras
except ModuleNotFoundError as error:
    assert "pip install keras" in str(error), error
else:
    raise AssertionError("Keras is not there")
print("done")
'''


@pytest.mark.parametrize("count, link", [(2, "tcp"), (3, "shm")])
def test_horovod_collectives_of_numpy_are_what_one_process_computes(ranks, count, link):
    ranks.environment["PYTHONPATH"] += ":" + ranks.environment["PYTHONPATH"] + "/horovod"
    assert ranks(count, PROGRAM, flags=["--link", link]) == [["done"]] * count


ELASTIC = '''
import os
import signal
import sys
import numpy
from gradus import _elastic, _gradients, _numpy, _submit as hvd
from gradus._engine import HorovodInternalError
from gradus._objects import broadcast_object
from gradus._world import global_process_set as everybody, init, rank, size

sys.modules["torch"] = None  # none of this needs a framework
victim = os.environ["GRADUS_RANK"] == "1" and "GRADUS_JOINING" not in os.environ
init()
errors = []


class Compression:
    """None."""

    compress = decompress = None


reduction = _gradients.reduction_of("sgd", hvd.Average, 1.0, Compression, False, everybody)
reduction.register_local(Compression)
parts = [_gradients.part_of(reduction, index, "w", kind) for index, kind in
         enumerate(("allreduce", "values", "local"))]


@_elastic.run
def train(state):
    """Its steps are compiled, so to speak: all that is known when they are made are the parts."""
    while state.step < 12 or size() < 3:
        if victim and state.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            mean, rows, own = _gradients.exchange(
                parts, [numpy.ones(2), numpy.full(1, 6.0), numpy.full(1, 6.0)], reduction)
        except HorovodInternalError as error:
            errors.append(state.step)
            raise ValueError(f"step failed: HorovodInternalError: {error}")  # as frameworks do
        assert rows.tolist() == [6.0 / size()] * size() and own[0] == 6.0 / size()
        state.weights = state.weights - mean
        state.step += 1
        state.commit()
    return state.step


state = _elastic.ObjectState(broadcast_object, rank, step=0, weights=numpy.zeros(2))
step = train(state)
assert state.weights.tolist() == [-step] * 2, (state.weights, step)


@_elastic.run
def fail(state):
    raise ValueError("of the program")


try:
    fail(state)
except ValueError as error:
    print(errors, error)
'''


def test_elastic_goes_on_where_a_framework_raises_an_error_of_its_own(ranks):
    lines = ranks(3, ELASTIC, flags=["--min-workers", 1, "--max-workers", 3, "--restarts", 1])
    assert sorted(lines) == [["[5] of the program"]] * 2 + [["[] of the program"]]
