# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.distributed: every collective against sums made in one process."""
import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (Debian: python3-torch)", allow_module_level=True)

COLLECTIVES = '''
import os
import torch
import torch.distributed as dist
import gradus.torch

dist.init_process_group("gradus")
n, me = dist.get_world_size(), dist.get_rank()
root = n - 1
ALL = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16,
       torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.complex128]


def of(rank, kind, *shape):
    """Small whole numbers."""
    count = 1
    for extent in shape:
        count *= extent
    return ((torch.arange(count) + rank) % 3).reshape(shape).to(kind)


def same(found, expected):
    assert found.dtype == expected.dtype and torch.equal(found, expected), (found, expected)


def total(parts):
    kind = parts[0].dtype
    if kind == torch.bool:
        return torch.stack(parts).any(0)
    wide = torch.complex128 if kind.is_complex else torch.float64
    return torch.stack([part.to(wide) for part in parts]).sum(0).to(kind)


def laid_out(tensor, apart):
    """The same elements, with gaps between if `apart`."""
    if not apart:
        return tensor.clone()
    wide = torch.zeros(tensor.shape + (2,), dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


for kind in ALL:
    for apart in (False, True):
        def mine(*shape):
            return laid_out(of(me, kind, *shape), apart)

        def empty(*shape):
            return laid_out(torch.zeros(shape, dtype=kind), apart)

        every = [of(rank, kind, 2, 3) for rank in range(n)]
        x = mine(2, 3)
        dist.all_reduce(x)
        same(x, total(every))
        x = mine(2, 3)
        dist.reduce(x, root)
        if me == root:
            same(x, total(every))
        x = mine(2, 3)
        work = dist.broadcast(x, root, async_op=True)
        work.wait()
        assert work.is_completed() and work.is_success()
        same(x, every[root])
        out = [empty(2, 3) for _ in range(n)]
        dist.all_gather(out, mine(2, 3))
        for rank in range(n):
            same(out[rank], every[rank])
        out = empty(2 * n, 3)
        dist._all_gather_base(out, mine(2, 3))
        same(out, torch.cat(every))
        out = [empty(2, 3) for _ in range(n)] if me == root else None
        dist.gather(mine(2, 3), out, root)
        for rank in range(n if me == root else 0):
            same(out[rank], every[rank])
        out = empty(2, 3)
        dist.scatter(out, [laid_out(one, apart) for one in every] if me == root else None, root)
        same(out, every[me])
        blocks = [[of(rank + 5 * block, kind, 3) for block in range(n)] for rank in range(n)]
        out = empty(3)
        dist.reduce_scatter(out, [laid_out(block, apart) for block in blocks[me]])
        same(out, total([blocks[rank][me] for rank in range(n)]))
        out = empty(3)
        dist._reduce_scatter_base(out, laid_out(torch.cat(blocks[me]), apart))
        same(out, total([blocks[rank][me] for rank in range(n)]))
        out = empty(2 * n, 3)
        dist.all_to_all_single(out, mine(2 * n, 3))
        same(out, torch.cat([of(rank, kind, 2 * n, 3)[2 * me:2 * me + 2] for rank in range(n)]))
        gives, gets = [rank for rank in range(n)], [me] * n
        out = empty(sum(gets), 3)
        dist.all_to_all_single(out, mine(sum(gives), 3), gets, gives)
        first = sum(gives[:me])
        same(out, torch.cat([of(rank, kind, sum(gives), 3)[first:first + me] for rank in range(n)]))
        out = [empty(me + 1) for _ in range(n)]
        dist.all_to_all(out, [laid_out(of(me, kind, rank + 1), apart) for rank in range(n)])
        for rank in range(n):
            same(out[rank], of(rank, kind, me + 1))
        out = empty(2, 3)
        if me == 0:
            dist.send(mine(2, 3), 1, tag=5)
            dist.send(mine(2, 3), 1, tag=6)
        elif me == 1:
            assert dist.recv(out, 0, tag=6) == 0
            same(out, every[0])
            assert dist.recv(out, tag=5) == 0
            same(out, every[0])

for op, name in ((dist.ReduceOp.AVG, "mean"), (dist.ReduceOp.MAX, "amax"),
                 (dist.ReduceOp.MIN, "amin"), (dist.ReduceOp.PRODUCT, "prod")):
    x = of(me, torch.float64, 4)
    dist.all_reduce(x, op)
    expected = getattr(torch.stack([of(rank, torch.float64, 4) for rank in range(n)]), name)(0)
    assert torch.allclose(x, expected), name
x = [torch.full((2,), float(me)), torch.full((3,), 1.0)]
dist.all_reduce_coalesced(x)
same(torch.cat(x), torch.tensor([n * (n - 1) / 2] * 2 + [float(n)] * 3))
found = torch.ones(2)
future = dist.all_reduce(found, async_op=True).get_future()
same(future.then(lambda one: one.value()[0] * 2).wait(), torch.full((2,), 2.0 * n))

objects = [None] * n
dist.all_gather_object(objects, {"rank": me})
assert objects == [{"rank": rank} for rank in range(n)]
objects = [me, "x" * me] if me == root else [None, None]
dist.broadcast_object_list(objects, root)
assert objects == [root, "x" * root]
out = [None] * n if me == 0 else None
dist.gather_object(me, out, 0)
assert me or out == list(range(n))
out = [None]
dist.scatter_object_list(out, list("abcd"[:n]) if me == 0 else None, 0)
assert out == ["abcd"[me]]

some = dist.new_group([root, 0])
x = torch.ones(1) * me
if me in (0, root):
    dist.all_reduce(x, group=some)
    same(x, torch.ones(1) * root)
    dist.broadcast(x, root, group=some)
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("gradus", init_method=f"file://{os.getcwd()}/again", rank=me, world_size=n)
x = torch.ones(1)
dist.all_reduce(x)
print(x.item())
'''


@pytest.mark.parametrize("count", [2, 3, 4])
def test_torch_collectives_of_all_types_are_what_one_process_computes(ranks, count):
    assert ranks(count, COLLECTIVES) == [[f"{count}.0"]] * count


def test_torch_without_gradus_run_meets_by_the_store(ranks):
    lines = ranks(3, '''
        import os
        for name in [name for name in os.environ if name.startswith("GRADUS_")]:
            del os.environ[name]  # as torchrun starts it
        import torch
        import torch.distributed as dist
        import gradus.torch
        dist.init_process_group("gradus")
        x = torch.ones(3) * dist.get_rank()
        dist.all_reduce(x)
        part = dist.new_group([1, 2])
        if dist.get_rank():
            dist.all_reduce(x, group=part)
        print(x.tolist())
        ''')
    assert lines == [["[3.0, 3.0, 3.0]"], ["[6.0, 6.0, 6.0]"], ["[6.0, 6.0, 6.0]"]]
