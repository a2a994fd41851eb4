# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives of gradus.torch, each against what one process computes."""
import pytest

# pytest.mark.long: the interpreters of GRADUS_PYTHONS (conftest.py)

PROGRAM = '''
import itertools
import math
import os
import random
import signal
import sys
import threading
import torch
import gradus.torch as hvd

import torch.distributed as dist
from gradus import _execute
from gradus._engine import Request, Signature
from gradus._world import world
from gradus.errors import InvalidError

torch.Tensor.numpy = None  # there may be no numpy
if not FIRST:  # torch.distributed and Horovod's interface in one process
    dist.init_process_group("gradus")
hvd.init(process_sets=[hvd.ProcessSet([0])] if FIRST else None)
n, me = hvd.size(), hvd.rank()
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def of(rank, dtype, *shape):
    """What a rank gives: small whole numbers, which every type adds exactly."""
    count = int(torch.tensor(shape).prod())
    return ((torch.arange(count) + rank) % 3 + 1).reshape(shape).to(dtype)


def same(what, found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape, (what, found.shape)
    assert torch.equal(found, expected), (what, me, found, expected)


def total(op, dtype, *shape, ranks=None):
    every = torch.stack([of(r, torch.float64, *shape) for r in ranks or range(n)])
    found = {hvd.Sum: every.sum(0), hvd.Average: every.mean(0), hvd.Min: every.amin(0),
             hvd.Max: every.amax(0), hvd.Product: every.prod(0)}[op]
    return found.to(dtype)


def close(what, found, expected):
    assert torch.allclose(found.double(), expected.double(), rtol=1e-3), (what, found, expected)


def refused(words, kind, call):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError(("accepted", words))


def reductions(process_set, ranks):
    many = len(ranks)
    for dtype, op in itertools.product(FLOATS + WHOLE, [hvd.Sum, hvd.Min, hvd.Max, hvd.Product]):
        for shape in ((17,), (3, 5)) if op is hvd.Sum else ((2, 3, 4),):
            x, expected = of(me, dtype, *shape), total(op, dtype, *shape, ranks=ranks)
            words = {"op": op, "process_set": process_set}
            same("allreduce", hvd.allreduce(x, **words), expected)
            same("its input", x, of(me, dtype, *shape))
            handle = hvd.allreduce_async(x, **words)
            same("allreduce_async", hvd.synchronize(handle), expected)
            y = x.clone()
            assert hvd.allreduce_(y, **words) is y
            same("allreduce_", y, expected)
            y = x.t() if x.dim() == 2 else x.clone()  # with gaps
            hvd.synchronize(hvd.allreduce_async_(y, **words))
            same("allreduce_async_", y, expected.t() if x.dim() == 2 else expected)
        group = [of(me, dtype, 4), of(me, dtype, 2, 3)]
        expected = [total(op, dtype, 4, ranks=ranks), total(op, dtype, 2, 3, ranks=ranks)]
        for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_):
            for found, one in zip(call([x.clone() for x in group], **words), expected):
                same(call.__name__, found, one)
        for call in (hvd.grouped_allreduce_async, hvd.grouped_allreduce_async_):
            for found, one in zip(hvd.synchronize(call([x.clone() for x in group], **words)),
                                  expected):
                same(call.__name__, found, one)
    for dtype in FLOATS:
        close("average", hvd.allreduce(of(me, dtype, 9), process_set=process_set),
              total(hvd.Average, torch.float64, 9, ranks=ranks))
        close("scaled", hvd.allreduce(of(me, dtype, 9), op=hvd.Sum, prescale_factor=2.0,
                                      postscale_factor=0.25, process_set=process_set),
              total(hvd.Sum, torch.float64, 9, ranks=ranks) / 2)
        assert not hvd.allreduce(of(me, dtype, 3), prescale_factor=0.0,
                                 process_set=process_set).any()
    big = torch.full((300_000,), float(me))  # is not copied
    same("large", hvd.allreduce(big, op=hvd.Sum, process_set=process_set),
         torch.full((300_000,), float(sum(ranks))))
    same("nothing", hvd.allreduce(torch.ones(0), process_set=process_set), torch.ones(0))
    half = hvd.allreduce(torch.ones(5, dtype=torch.float64), compression=hvd.Compression.fp16,
                         process_set=process_set)
    same("fp16", half, torch.ones(5, dtype=torch.float64))


def moves(process_set, ranks):
    many, mine = len(ranks), ranks.index(me)
    root = ranks[-1]
    for dtype in FLOATS + WHOLE + [torch.bool]:
        words = {"process_set": process_set}
        expected = torch.cat([of(r, dtype, r + 1, 2) for r in ranks])
        for _ in range(2):  # the second time by the bit that it has got
            same("allgather", hvd.allgather(of(me, dtype, me + 1, 2), name="g", **words), expected)
        same("allgather of other rows", hvd.allgather(of(me, dtype, 1, 2), name="g", **words),
             torch.cat([of(r, dtype, 1, 2) for r in ranks]))
        a, b = hvd.grouped_allgather([of(me, dtype, me + 1, 2), of(me, dtype, 2)], **words)
        same("grouped_allgather", a, expected)
        same("grouped_allgather", b, torch.cat([of(r, dtype, 2) for r in ranks]))
        same("broadcast", hvd.broadcast(of(me, dtype, 4), root, **words), of(root, dtype, 4))
        x = of(me, dtype, 2, 3).t()
        assert hvd.broadcast_(x, root, **words) is x
        same("broadcast_", x, of(root, dtype, 2, 3).t())
        x = of(me, dtype, 4)
        hvd.synchronize(hvd.broadcast_async_(x, root, **words))
        same("broadcast_async_", x, of(root, dtype, 4))
        same("alltoall", hvd.alltoall(of(me, dtype, 2 * many, 2), **words),
             torch.cat([of(r, dtype, 2 * many, 2)[2 * mine:2 * mine + 2] for r in ranks]))
        splits = torch.tensor([mine + 1] * many)
        found, came = hvd.alltoall(of(me, dtype, many * (mine + 1)), splits, **words)
        assert came.tolist() == [i + 1 for i in range(many)]
        same("alltoall of splits", found, torch.cat(
            [of(r, dtype, many * (i + 1))[mine * (i + 1):(mine + 1) * (i + 1)]
             for i, r in enumerate(ranks)]))
        if dtype == torch.bool:
            continue
        rows = [(many + 1) // many + (i < (many + 1) % many) for i in range(many)]
        first = sum(rows[:mine])
        expected = total(hvd.Sum, dtype, many + 1, 2, ranks=ranks)[first:first + rows[mine]]
        x = of(me, dtype, many + 1, 2)
        same("reducescatter", hvd.reducescatter(x, op=hvd.Sum, **words), expected)
        same("reducescatter_async",
             hvd.synchronize(hvd.reducescatter_async(x, op=hvd.Sum, **words)), expected)
        a, b = hvd.grouped_reducescatter([x, x], op=hvd.Sum, **words)
        same("grouped_reducescatter", b, expected)
    i = torch.tensor([[0, me + 1]])
    sparse = torch.sparse_coo_tensor(i, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (8, 2))
    dense = sum(torch.sparse_coo_tensor(torch.tensor([[0, r + 1]]), sparse.coalesce().values(),
                                        (8, 2)).to_dense() for r in ranks)
    wait = hvd.sparse_allreduce_async(sparse, "s", hvd.Sum, process_set)
    same("sparse", wait().to_dense(), dense)
    assert hvd.broadcast_object({"from": me}, root, process_set=process_set) == {"from": root}
    assert hvd.allgather_object(["x" * me], process_set=process_set) == [["x" * r] for r in ranks]
    hvd.barrier(process_set)


def adasum(process_set, ranks):
    def pair(a, b):
        a, b = a.double(), b.double()
        dot = (a * b).sum()
        return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b
    parts = [of(r, torch.float32, 5) for r in ranks]
    while len(parts) > 1:
        parts = [pair(*parts[i:i + 2]) if len(parts[i:i + 2]) == 2 else parts[i]
                 for i in range(0, len(parts), 2)]
    close("adasum", hvd.allreduce(of(me, torch.float32, 5), op=hvd.Adasum,
                                  process_set=process_set), parts[0])
    refused(["complex64 with Adasum"], ValueError, lambda: hvd.allreduce(
        torch.ones(2, dtype=torch.complex64), op=hvd.Adasum, process_set=process_set))


def gradients(process_set, ranks):
    """Of sum(weights * result), whose weights are others on each rank."""
    many, mine = len(ranks), ranks.index(me)

    def gradient(call, weights, *shape):
        x = of(me, torch.float64, *shape).requires_grad_()
        y = call(x)
        (y * weights(me, y.shape)).sum().backward()
        return x.grad

    def w(rank, shape):
        return of(rank + 5, torch.float64, *shape) * (rank + 1)
    words = {"process_set": process_set}
    both = sum(w(r, (4, 2)) for r in ranks)
    same("of a sum", gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, **words), w, 4, 2), both)
    close("of an average", gradient(lambda x: hvd.allreduce(x, **words), w, 4, 2), both / many)
    close("of a group", gradient(lambda x: hvd.grouped_allreduce([x, x], **words)[1], w, 4, 2),
          both / many)
    rows = [r + 1 for r in ranks]
    every = sum(w(r, (sum(rows), 2)) for r in ranks) / many
    first = sum(rows[:mine])
    close("of allgather", gradient(lambda x: hvd.allgather(x, **words), w, me + 1, 2),
          every[first:first + me + 1])
    close("of broadcast", gradient(lambda x: hvd.broadcast(x, ranks[0], **words), w, 4, 2),
          both / many * (me == ranks[0]))
    same("of broadcast that is not finite",
         gradient(lambda x: hvd.broadcast(x, ranks[-1], **words),
                  lambda rank, shape: torch.full(shape, math.inf, dtype=torch.float64), 4, 2),
         torch.full((4, 2), math.inf if me == ranks[-1] else 0.0, dtype=torch.float64))
    splits = [r + 1 for r in range(many)]
    came = [w(r, (many * (i + 1), 2))[mine * (i + 1):(mine + 1) * (i + 1)]
            for i, r in enumerate(ranks)]
    close("of alltoall", gradient(lambda x: hvd.alltoall(x, splits, **words)[0], w, sum(splits), 2),
          torch.cat(came_of(ranks, mine, w)))
    scattered = torch.cat([w(r, (2, 2)) for r in ranks])
    close("of reducescatter", gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum, **words), w,
                                       2 * many, 2), scattered * many)
    close("of reducescatter", gradient(lambda x: hvd.reducescatter(x, **words), w, 2 * many, 2),
          scattered)


def came_of(ranks, mine, w):
    """What rank r weighs of the mine + 1 rows that each rank gets from each other one."""
    parts = []
    for j, r in enumerate(ranks):  # rank j has got j + 1 rows from each
        parts.append(w(r, (len(ranks) * (j + 1), 2))[mine * (j + 1):(mine + 1) * (j + 1)])
    return parts


def inference():
    """The engine's own thread has tensors that are made in inference mode."""
    def over(handle):
        while not hvd.poll(handle):
            threading.Event().wait(0.001)
        return hvd.synchronize(handle)
    combined = hvd.allreduce(of(me, torch.float32, 3), op=hvd.Adasum)
    with torch.inference_mode():
        x, expected = of(me, torch.float32, 3, 5), total(hvd.Sum, torch.float32, 3, 5)
        same("inference", over(hvd.allreduce_async(x, op=hvd.Sum)), expected)
        same("inference", over(hvd.allreduce_async_(x.t(), op=hvd.Sum)), expected.t())
        x = of(me, torch.float32, 3)
        assert not over(hvd.allreduce_async_(x.clone(), prescale_factor=0.0)).any()
        same("inference", over(hvd.allreduce_async(x, op=hvd.Adasum)), combined)
        x = of(me, torch.float32, 2, 3)
        same("inference", over(hvd.broadcast_async_(x.t(), 0)), of(0, torch.float32, 2, 3).t())
    for _ in range(2):
        x = torch.tensor([1 + 2j, 3 + 4j])
        same("conjugated", hvd.allreduce_(x.conj(), name="c", op=hvd.Sum),
             n * torch.tensor([1 - 2j, 3 - 4j]))


def orders():
    """Names are submitted in another order by each rank, and types, groups and kinds mixed."""
    names = [f"t{i}" for i in range(40)]
    for step in range(4):
        random.Random(100 * step + me).shuffle(names)
        handles = {}
        for name in names:
            i = int(name[1:])
            x = of(me, [torch.float32, torch.float64, torch.int32][i % 3], i + 1)
            if i % 7 == 3:
                handles[name] = hvd.allgather_async(x, name)
            elif i % 7 == 5:
                handles[name] = hvd.broadcast_async(x, i % n, name)
            else:
                handles[name] = hvd.allreduce_async(x, name=name, op=hvd.Sum)
        random.Random(me).shuffle(names)
        for name in names:
            i = int(name[1:])
            dtype = [torch.float32, torch.float64, torch.int32][i % 3]
            expected = torch.cat([of(r, dtype, i + 1) for r in range(n)]) if i % 7 == 3 else \
                of(i % n, dtype, i + 1) if i % 7 == 5 else total(hvd.Sum, dtype, i + 1)
            same(name, hvd.synchronize(handles[name]), expected)


def errors():
    """They name the tensor and both ranks, and what follows goes on."""
    bad = {"shape": lambda: hvd.allreduce(torch.ones(2 + me), name="w"),
           "type": lambda: hvd.allreduce(torch.ones(2).to(FLOATS[2 + me % 2]), name="w"),
           "op": lambda: hvd.allreduce(torch.ones(2), name="w", op=[hvd.Sum, hvd.Max][me % 2]),
           "factor": lambda: hvd.allreduce(torch.ones(2), name="w", postscale_factor=float(me)),
           "root": lambda: hvd.broadcast(torch.ones(2), me % 2, name="w"),
           "row": lambda: hvd.allgather(torch.ones(2, 2 + me), name="w")}
    for call in bad.values():
        for _ in range(2):
            refused(["w'", "rank 0", "rank 1"], hvd.HorovodInternalError, call)
    same("after", hvd.allreduce(torch.ones(2), name="w", op=hvd.Sum), torch.full((2,), float(n)))
    refused(["rank 0 waits for 'allreduce.me0'", "rank 1 waits for 'allreduce.me1'"],
            hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(2), name=f"me{me}"))
    handle = hvd.allreduce_async(torch.ones(2), name="twice")
    if me == 0:  # peers may be through with theirs
        hvd.synchronize(hvd.allreduce_async(torch.ones(2), name="between"))
    else:
        hvd.allreduce(torch.ones(2), name="between")
    hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    refused(["no handle"], ValueError, lambda: hvd.synchronize(handle + 1000))
    refused(["splits"], ValueError, lambda: hvd.alltoall(torch.ones(2), [1] * n + [1]))
    refused(["without a dimension"], ValueError, lambda: hvd.allgather(torch.tensor(1.0)))
    refused(["exists already"], ValueError, lambda: hvd.add_process_set(range(n)))
    refused(["allreduce of a tensor of torch.complex32"], ValueError,
            lambda: hvd.allreduce(torch.empty(2, dtype=torch.complex32)))
    # A thread that has what it has waited for is not blocked, before it wakes up.
    engine, woken = hvd.global_process_set._engine, Request("woken", Signature("barrier"), [], [],
                                                            None)
    woken.over = True
    engine._awaited.append(woken)
    assert not engine._is_blocked()
    engine._awaited.remove(woken)


def joins():
    """Rank r has r + 1 batches; those who are through give zeros."""
    for _ in range(2):
        for batch in range(me + 1):
            alive = range(batch, n)
            for name in ("j", "k"):
                found = hvd.allreduce(of(me, torch.float32, 6), name=name, op=hvd.Sum)
                same("join", found, total(hvd.Sum, torch.float32, 6, ranks=alive))
            close("join", hvd.allreduce(torch.ones(3), name="average"),
                  torch.full((3,), len(alive) / n))
            same("unnamed", hvd.allreduce(of(me, torch.float32, 2), op=hvd.Sum),
                 total(hvd.Sum, torch.float32, 2, ranks=alive))
        assert hvd.join() == n - 1
    if me:
        refused(["rank 0 has joined", "allgather"], hvd.HorovodInternalError,
                lambda: hvd.allgather(torch.ones(1)))
    assert 0 <= hvd.join() < n
    same("after a join", hvd.allgather(torch.ones(1)), torch.ones(n))


def sets():
    both = hvd.ProcessSet([0, n - 1])
    assert both.size() is None and both.rank() is None and both.included() == (me in (0, n - 1))
    assert hvd.add_process_set(both) is both
    assert both.size() == 2 and both.included() == (me in (0, n - 1)) and both.process_set_id == 2
    if both.included():
        assert both.rank() == (me > 0)
        for part in (reductions, moves, adasum, gradients):
            part(both, [0, n - 1])
    else:
        refused(["does not belong"], ValueError,
                lambda: hvd.allreduce(torch.ones(1), process_set=both))
    first = [one for one in gradus_sets() if one.ranks == [0]][0]
    if me == 0:
        for part in (reductions, moves, adasum, gradients):
            part(first, [0])
    engine, waits = both._engine, []

    def wait():
        refused(["process set"], hvd.HorovodInternalError,
                lambda: hvd.allreduce(torch.ones(1), name="alone", process_set=both))
        waits.append("no more")
    if me == 0:  # it goes in the midst of a cycle, which a thread moves on
        handle = hvd.allreduce_async(torch.ones(1), name="left", process_set=both)
        thread = threading.Thread(target=wait)
        thread.start()
        while not (engine._awaited and engine._posted):
            threading.Event().wait(0.001)
    assert hvd.remove_process_set(both) and not hvd.remove_process_set(both)
    if me == 0:
        refused(["no handle"], ValueError, lambda: hvd.synchronize(handle))
        thread.join()
        assert waits
    assert not hvd.remove_process_set(hvd.global_process_set)


def gradus_sets():
    return list(world.sets.values())


def shuts_down():
    """Rank 0, while a thread of it waits for what the others have not submitted."""
    engine, told = hvd.global_process_set._engine, []

    def wait():
        refused(["rank 0 has shut down"], hvd.HorovodInternalError,
                lambda: hvd.allreduce(torch.ones(1), name="alone"))
        told.append("alone")
    if me == 0:
        thread = threading.Thread(target=wait)
        thread.start()
        while not engine._awaited:
            threading.Event().wait(0.001)
        hvd.shutdown()
        thread.join()
        assert told
    while not engine.ended:
        threading.Event().wait(0.001)
    hvd.shutdown()


def is_there(process):
    try:
        os.kill(process, 0)
        return True
    except ProcessLookupError:
        return False


def ends():
    """Rank 0's program, while a thread of it waits, and rank 1 takes no part in a cycle."""
    engine, ready = hvd.global_process_set._engine, threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: ready.set())
    first = hvd.allgather_object(os.getpid())[0]
    if me == 0:
        ready.wait()
        threading.Thread(target=refused, daemon=True, args=(
            ["has been shut down"], hvd.HorovodInternalError,
            lambda: hvd.allreduce(torch.ones(1), name="never"))).start()
        while not (engine._awaited and engine._posted):
            threading.Event().wait(0.001)
    elif me == 1:
        engine._drive.acquire()
        while engine._posted:
            engine._drive.release()
            threading.Event().wait(0.001)
            engine._drive.acquire()
        os.kill(first, signal.SIGUSR1)
    while me and is_there(first):
        threading.Event().wait(0.001)
    if me == 1:
        engine._drive.release()


class Counted(_execute.Small):
    """The prepared operations that are there."""

    alive = []

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.alive.append(self)

    def release(self):
        self.alive.remove(self)
        super().release()


def forgets():
    """More names come at a time than the cache holds."""
    for _ in range(2):
        handles = [hvd.allreduce_async(torch.ones(2), name=f"many{i}") for i in range(6)]
        for handle in handles:
            same("many", hvd.synchronize(handle), torch.ones(2))
    kept = [entry.small for entry in hvd.global_process_set._engine._slots]
    assert len(kept) == 2 and {id(one) for one in Counted.alive} <= {id(one) for one in kept}


assert (hvd.local_rank(), hvd.local_size()) == (me, n) and hvd.is_homogeneous()
assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1) and hvd.is_initialized()
assert hvd.gloo_built() and not hvd.mpi_built() and not hvd.nccl_built()
every = list(range(n))
for part in (reductions, moves, adasum, gradients):
    part(hvd.global_process_set, every)
inference()
orders()
if n > 1:
    errors()
    joins()
if n > 2:
    sets()
if not FIRST:
    x = torch.ones(2)
    dist.all_reduce(x)
    same("torch.distributed", x, torch.full((2,), float(n)))
shuts_down()
assert not hvd.is_initialized()
refused(["hvd.init()"], ValueError, hvd.rank)
refused(["two process sets"], ValueError,
        lambda: hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])]))
refused(["where there are"], ValueError, lambda: hvd.init(process_sets=[hvd.ProcessSet([n])]))
_execute.Small = Counted
os.environ["HOROVOD_CACHE_CAPACITY"] = "2"
hvd.init(process_sets=[hvd.ProcessSet([0])])
same("once more", hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(n)))
forgets()
if FIRST:  # what is forked ends as any process does, and ends nothing here
    handle = hvd.allreduce_async(torch.ones(2), name="before" if me else "before, on rank 0")
    engine = hvd.global_process_set._engine
    with engine._mutex:  # as a thread may do that is not in the child
        child = os.fork()
        if not child:
            for call in (lambda: hvd.allreduce(torch.ones(2)), hvd.barrier, hvd.join,
                         lambda: hvd.synchronize(handle), lambda: hvd.add_process_set([0, 1]),
                         lambda: engine.submit(Request("x", Signature("barrier"), [], [], None))):
                refused(["forked"], InvalidError, call)
            hvd.shutdown()
            assert (hvd.rank(), hvd.size()) == (me, n)
            sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    hvd.barrier()  # the handles of all were under way until here
    hvd.allreduce_(torch.ones(2), name="before, on rank 0" if me else "before")
    hvd.synchronize(handle)
    same("forked", hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(n)))
    ends()
print("done")
'''


@pytest.mark.parametrize("count, link", [(2, "tcp"), (3, "shm")])
def test_horovod_collectives_are_what_one_process_computes(torch_ranks, count, link):
    program = PROGRAM.replace("FIRST", str(count > 2))
    assert torch_ranks(count, program, flags=["--link", link]) == [["done"]] * count
