# SPDX-License-Identifier: Apache-2.0
"""A rank of test_torch.py: each operation of torch.distributed, with each type that it takes,
waited for at once and later, on tensors with gaps and without, against values made here.

Words of the command line are the ranks of a sub-group, in which all of it is done then."""
import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import gradus.torch

warnings.simplefilter("ignore")  # torch calls some of its functions deprecated
dist.init_process_group("gradus")
number, count = dist.get_rank(), dist.get_world_size()
members = [int(word) for word in sys.argv[1:]] or list(range(count))
group = dist.new_group(members) if sys.argv[1:] else dist.group.WORLD
n, me = len(members), members.index(number) if number in members else -1
root = n - 1  # numbers of ranks are those in the group; torch takes those of the job
REAL = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLE = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
NEW = [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
MIXED = [torch.bool, torch.complex64, torch.complex128]
ALL = REAL + WHOLE + NEW + MIXED
Op = dist.ReduceOp
REDUCTIONS = [(Op.SUM, ALL), (Op.AVG, REAL), (Op.MIN, REAL + WHOLE), (Op.MAX, REAL + WHOLE),
              (Op.PRODUCT, REAL + WHOLE), (Op.BAND, WHOLE), (Op.BOR, WHOLE), (Op.BXOR, WHOLE)]
gather_single = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
scatter_single = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
seen = 0


def of(rank, kind, *shape):
    """Small whole numbers."""
    count = 1
    for extent in shape:
        count *= extent
    made = ((torch.arange(count) + rank) % 3).reshape(shape).to(kind)
    return made * (1 + 1j) if kind.is_complex else made


def wide(tensor):
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def same(found, expected):
    global seen
    seen += 1
    assert found.dtype == expected.dtype and found.shape == expected.shape, (found, expected)
    assert torch.equal(wide(found), wide(expected)), (found, expected)


def reduced(parts, op=Op.SUM):
    kind = parts[0].dtype
    if kind == torch.bool:
        return torch.stack(parts).any(0)
    if op in (Op.BAND, Op.BOR, Op.BXOR):
        result = parts[0].clone()
        for part in parts[1:]:
            result = {Op.BAND: result & part, Op.BOR: result | part}.get(op, result ^ part)
        return result
    every = torch.stack([wide(part) for part in parts])
    if op == Op.MIN or op == Op.MAX:
        return (every.amin(0) if op == Op.MIN else every.amax(0)).to(kind)
    if op == Op.PRODUCT:
        return every.prod(0).to(kind)
    return every.sum(0).to(kind) if op == Op.SUM else every.sum(0).to(kind) / n


def laid_out(tensor, form):
    """The same elements: one behind the other, with gaps between, or on every second rank in memory
    that has their negative or conjugated ones."""
    if form == "apart":
        gaps = torch.zeros(tensor.shape + (2,), dtype=tensor.dtype)
        gaps[..., 0] = tensor
        return gaps[..., 0]
    if form == "lazy" and me % 2 == 1:
        lazy = tensor.conj().resolve_conj().conj() if tensor.dtype.is_complex else \
            torch._neg_view(-tensor)
        assert lazy.is_conj() or lazy.is_neg()
        return lazy
    return tensor.clone()


def do(later, call, *arguments, **more):
    if not later:
        call(*arguments, group=group, **more)
        return
    work = call(*arguments, async_op=True, group=group, **more)
    work.wait()
    assert (work.done if hasattr(work, "done") else work.is_completed)()  # some give a future


def check_reductions(kind, form, later, mine):
    every = [of(rank, kind, 2, 3) for rank in range(n)]
    for op, kinds in REDUCTIONS:
        if kind in kinds:
            x = mine(2, 3)
            do(later, dist.all_reduce, x, op)
            same(x, reduced(every, op))
    x = mine(2, 3)
    do(later, dist.reduce, x, members[root])
    if me == root:
        same(x, reduced(every))
    blocks = [[of(rank + 5 * block, kind, 3) for block in range(n)] for rank in range(n)]
    out = laid_out(torch.zeros(3, dtype=kind), form)
    do(later, dist.reduce_scatter, out, [laid_out(block, form) for block in blocks[me]])
    same(out, reduced([blocks[rank][me] for rank in range(n)]))
    out = laid_out(torch.zeros(3, dtype=kind), form)
    do(later, scatter_single, out, laid_out(torch.cat([wide(one) for one in blocks[me]]).to(kind),
                                            form))
    same(out, reduced([blocks[rank][me] for rank in range(n)]))


def check_moves(kind, form, later, mine, empty):
    every = [of(rank, kind, 2, 3) for rank in range(n)]
    x = mine(2, 3)
    do(later, dist.broadcast, x, members[root])
    same(x, every[root])
    out = [empty(2, 3) for _ in range(n)]
    do(later, dist.all_gather, out, mine(2, 3))
    for rank in range(n):
        same(out[rank], every[rank])
    out = empty(2 * n, 3)
    do(later, gather_single, out, mine(2, 3))
    for rank in range(n):
        same(out[2 * rank:2 * rank + 2], every[rank])
    out = [empty(2, 3) for _ in range(n)] if me == root else None
    do(later, dist.gather, mine(2, 3), out, members[root])
    for rank in range(n if me == root else 0):
        same(out[rank], every[rank])
    out = empty(2, 3)
    do(later, dist.scatter, out, [laid_out(one, form) for one in every] if me == root else None,
       members[root])
    same(out, every[me])
    out = empty(2 * n, 3)
    do(later, dist.all_to_all_single, out, mine(2 * n, 3))
    for rank in range(n):
        same(out[2 * rank:2 * rank + 2], of(rank, kind, 2 * n, 3)[2 * me:2 * me + 2])
    gives, gets = list(range(n)), [me] * n
    out = empty(sum(gets), 3)
    do(later, dist.all_to_all_single, out, mine(sum(gives), 3), gets, gives)
    first = sum(gives[:me])
    for rank in range(n):
        same(out[me * rank:me * rank + me], of(rank, kind, sum(gives), 3)[first:first + me])
    out = [empty(me + 1) for _ in range(n)]
    do(later, dist.all_to_all, out, [laid_out(of(me, kind, rank + 1), form) for rank in range(n)])
    for rank in range(n):
        same(out[rank], of(rank, kind, me + 1))
    check_messages(every, form, empty)


def check_messages(every, form, empty):
    out = empty(2, 3)
    if n > 1 and me == 0:
        dist.send(laid_out(every[0], form), members[1], group, 5)
        dist.isend(laid_out(every[0], form), members[1], group, 6).wait()
    elif me == 1:
        assert dist.recv(out, members[0], group, 6) == members[0]
        same(out, every[0])
        out.zero_()
        assert dist.recv(out, None, group, 5) == members[0]
        same(out, every[0])
    if n > 1:
        out = empty(2, 3)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, laid_out(every[me], form), members[(me + 1) % n], group),
            dist.P2POp(dist.irecv, out, members[(me - 1) % n], group)])
        for work in works:
            work.wait()
        same(out, every[(me - 1) % n])


def check_conjugated():
    """torch itself refuses them in what it takes apart into real numbers."""
    every = [of(rank, torch.complex64, 2, 3) for rank in range(n)]
    x = laid_out(every[me], "lazy")
    options = dist.BroadcastOptions()
    options.rootRank = root
    real_group().broadcast([x], options).wait()
    same(x, every[root])
    out = laid_out(torch.zeros(2, 3, dtype=torch.complex64), "lazy")
    if n > 1 and me == 0:
        real_group().send([laid_out(every[0], "lazy")], 1, 5).wait()
    elif me == 1:
        real_group().recv([out], 0, 5).wait()
        same(out, every[0])
    x = laid_out(every[me], "lazy")
    real_group().allreduce([x]).wait()
    same(x, reduced(every))


def real_group():
    return dist.distributed_c10d._get_default_group() if group is dist.group.WORLD else group


def check_uneven(kind, form, later, empty):
    """Blocks of different sizes: one row for rank 0, two for rank 1 and so on."""
    out = [empty(rank + 1, 2) for rank in range(n)]
    do(later, dist.all_gather, out, laid_out(of(me, kind, me + 1, 2), form))
    for rank in range(n):
        same(out[rank], of(rank, kind, rank + 1, 2))
    blocks = [[of(rank + block, kind, block + 1, 2) for block in range(n)] for rank in range(n)]
    out = empty(me + 1, 2)
    do(later, dist.reduce_scatter, out, [laid_out(block, form) for block in blocks[me]])
    same(out, reduced([blocks[rank][me] for rank in range(n)]))


def check_coalesced(kind):
    every = [[of(rank, kind, 2), of(rank + 1, kind, 3)] for rank in range(n)]
    sums = [reduced([of_rank[i] for of_rank in every]) for i in range(2)]
    for later in (False, True):
        x = [one.clone() for one in every[me]]
        do(later, dist.all_reduce_coalesced, x)
        same(x[0], sums[0])
        same(x[1], sums[1])
        out = [[torch.zeros_like(one) for one in of_rank] for of_rank in every]
        do(later, dist.all_gather_coalesced, out, every[me])
        for rank in range(n):
            same(out[rank][0], every[rank][0])
            same(out[rank][1], every[rank][1])
    if not hasattr(dist, "_coalescing_manager") or torch.__version__.startswith("1."):
        return
    for later in (False, True):
        x = [one.clone() for one in every[me]]
        coalesced(later, lambda one: dist.all_reduce(one, group=group), [(one,) for one in x])
        same(x[0], sums[0])
        same(x[1], sums[1])
        out = [torch.zeros(2 * n, dtype=kind), torch.zeros(3 * n, dtype=kind)]
        coalesced(later, lambda *both: gather_single(*both, group=group), list(zip(out, every[me])))
        for i in range(2):
            same(out[i], torch.cat([wide(of_rank[i]) for of_rank in every]).to(kind))
        blocks = [[of(rank + i, kind, (2 + i) * n) for i in range(2)] for rank in range(n)]
        out = [torch.zeros(2, dtype=kind), torch.zeros(3, dtype=kind)]
        coalesced(later, lambda *both: scatter_single(*both, group=group),
                  list(zip(out, blocks[me])))
        for i in range(2):
            whole = reduced([blocks[rank][i] for rank in range(n)])
            same(out[i], whole[(2 + i) * me:(2 + i) * (me + 1)])


def coalesced(later, call, calls):
    with dist._coalescing_manager(group=real_group(), async_ops=later) as manager:
        for arguments in calls:
            call(*arguments)
    if later:
        manager.wait()


def check_works():
    found = torch.ones(2)
    future = dist.all_reduce(found, group=group, async_op=True).get_future()
    same(future.then(lambda one: one.value()[0] * 2).wait(), torch.full((2,), 2.0 * n))
    before = real_group()._get_sequence_number_for_group()
    dist.all_reduce(found, group=group)
    assert real_group()._get_sequence_number_for_group() == before + 1
    work = dist.barrier(group=group, async_op=True)
    assert work.wait(timedelta(seconds=60)) and work.exception() is None and work.is_success()
    gradus.torch.monitored_barrier(real_group(), timeout=timedelta(seconds=60))
    gradus.torch.monitored_barrier(real_group(), wait_all_ranks=True)


def check_objects():
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": me}, group)
    assert objects == [{"rank": rank} for rank in range(n)]
    objects = [me, "x" * me] if me == root else [None, None]
    dist.broadcast_object_list(objects, members[root], group)
    assert objects == [root, "x" * root]
    out = [None] * n if me == 0 else None
    dist.gather_object(me, out, members[0], group)
    assert me or out == list(range(n))
    if group is dist.group.WORLD or not torch.__version__.startswith("1."):  # which mixes up ranks
        out = [None]
        dist.scatter_object_list(out, list("abcd"[:n]) if me == 0 else None, members[0], group)
        assert out == ["abcd"[me]]
    if n > 1 and hasattr(dist, "send_object_list"):
        if me == 0:
            dist.send_object_list([{"a": 1}, None], members[1], group)
        elif me == 1:
            out = [None, 0]
            dist.recv_object_list(out, members[0], group)
            assert out == [{"a": 1}, None]


def check_groups():
    some = dist.new_group(sorted({root, 0}))
    x = torch.ones(1) * me
    if me in (0, root):
        dist.all_reduce(x, group=some)
        same(x, torch.ones(1) * root)
        dist.broadcast(x, root, group=some)
        gradus.torch.monitored_barrier(some)
    alone = [dist.new_group([rank]) for rank in range(n)]
    x = torch.ones(1) * me
    dist.all_reduce(x, group=alone[me])
    same(x, torch.ones(1) * me)


def check_functional():
    """What torch.compile and DTensor call."""
    try:
        import torch.distributed._functional_collectives as functional
    except ImportError:
        return
    if torch.__version__.startswith("2.0"):
        return
    same(functional.all_reduce(torch.ones(3) * me, "sum", group) + 0,
         torch.full((3,), n * (n - 1) / 2))
    same(functional.all_gather_tensor(torch.ones(1, 2) * me, 0, group) + 0,
         torch.arange(n).float().repeat_interleave(2).view(n, 2))
    same(functional.reduce_scatter_tensor(torch.arange(2.0 * n), "sum", 0, group) + 0,
         torch.arange(2.0 * n)[2 * me:2 * me + 2] * n)
    same(functional.all_to_all_single(torch.arange(float(n)), None, None, group) + 0,
         torch.full((n,), float(me)))
    same(functional.broadcast(torch.ones(2) * me, root, group) + 0, torch.ones(2) * root)
    two = functional.all_reduce_coalesced([torch.ones(1), torch.ones(2) * me], "sum", group)
    same(torch.cat([one + 0 for one in two]), torch.tensor([float(n)] + [n * (n - 1) / 2] * 2))


for one in ALL if me >= 0 else []:
    for layout in ("dense", "apart", "lazy") if one == torch.float32 else ("dense", "apart"):
        for waits_later in (False, True):
            def given(*shape, kind=one, form=layout):
                return laid_out(of(me, kind, *shape), form)

            def room(*shape, kind=one, form=layout):
                return laid_out(torch.zeros(shape, dtype=kind), form)
            check_reductions(one, layout, waits_later, given)
            check_moves(one, layout, waits_later, given, room)
            check_uneven(one, layout, waits_later, room)
    check_coalesced(one)
if me >= 0:
    check_conjugated()
    check_works()
    check_objects()
    check_functional()
if group is dist.group.WORLD:
    check_groups()
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("gradus", init_method=f"file://{os.getcwd()}/again", rank=number,
                        world_size=count)
total = torch.ones(1)
dist.all_reduce(total)
print(total.item(), seen > 500 or me < 0)
sys.stdout.flush()
