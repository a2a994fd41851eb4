# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.distributed: every collective against sums made in one process."""
import importlib
import os
import pathlib
import re
import sys
import types

import pytest

from conftest import SOURCE

# pytest.mark.long: the interpreters of GRADUS_PYTHONS (conftest.py)
OPERATIONS = pathlib.Path(__file__).parent / "torch_operations.py"

@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_torch_operations_of_all_types_are_what_one_process_computes(torch_ranks, count):
    lines = torch_ranks(count, OPERATIONS.read_text())
    assert [line[0].split()[:2] for line in lines] == [[f"{count}.0", "True"]] * count


@pytest.mark.long
@pytest.mark.parametrize("members", [(1, 2), (0, 2, 3)])
def test_torch_operations_in_a_group_are_what_one_process_computes(torch_ranks, members):
    lines = torch_ranks(4, OPERATIONS.read_text(), *members)
    assert [line[0].split()[:2] for line in lines] == [["4.0", "True"]] * 4


def test_torch_without_gradus_run_meets_by_the_store(torch_ranks):
    lines = torch_ranks(3, '''
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


def test_torch_import_loads_the_backend_and_what_is_used(torch_ranks):
    lines = torch_ranks(1, '''
        import sys
        import gradus.torch
        print("gradus.torch._ops" in sys.modules, hasattr(gradus.torch, "__wrapped__"),
              "gradus.torch._ops" in sys.modules)
        from gradus.torch import *
        print(allreduce is gradus.torch.allreduce, elastic.run.__name__, monitored_barrier.__name__,
              {"ProcessGroup", "allreduce"} <= set(dir(gradus.torch)),
              hasattr(gradus.torch, "none"))
        ''')
    assert lines == [["False False False", "True run monitored_barrier True False"]]


def test_torch_operations_that_cannot_be_say_why(torch_ranks):
    lines = torch_ranks(2, '''
        from datetime import timedelta
        import torch
        import torch.distributed as dist
        import gradus.torch
        dist.init_process_group("gradus", timeout=timedelta(seconds=60))
        me = dist.get_rank()
        x = torch.ones(2)
        for call in (lambda: dist.broadcast(x.to_sparse(), 0),
                     lambda: dist.all_reduce(x.to_sparse(), dist.ReduceOp.MAX),
                     lambda: dist.all_reduce(torch.ones(2 + me).to_sparse()),
                     lambda: dist.all_reduce(torch.ones(2, device="meta")),
                     lambda: dist.all_reduce(x, dist.ReduceOp.BAND),
                     lambda: dist.all_reduce(x, dist._make_nccl_premul_sum(2.0)),
                     lambda: dist.all_to_all_single(torch.ones(2), x, [1, 2], [1, 1])):
            try:
                call()
            except (RuntimeError, ValueError) as error:
                print(error)
        if me == 0:  # rank 1 comes too late
            try:
                gradus.torch.monitored_barrier(timeout=timedelta(milliseconds=20))
            except RuntimeError as error:
                print(error)
        dist.barrier()
        if me == 0:
            work = dist.irecv(torch.ones(1), 1)
            try:
                work.wait(timedelta(milliseconds=10))
            except RuntimeError as error:
                print(error)
            dist.send(torch.ones(1), 1)
            work.wait()
        else:
            dist.recv(torch.ones(1), 0)
            dist.send(torch.ones(1), 0)
        try:
            dist.all_reduce(torch.ones(3 + me))
        except RuntimeError as error:
            print(error)
        ''')
    barrier, late = lines[0][7:9]
    assert "rank 1 did not come to the monitored barrier within 0.02 s" in barrier
    assert "not over after 0.01 s" in late
    for own in (lines[0][:7] + lines[0][9:], lines[1]):
        sparse, greatest, sizes, device, bits, factor, splits, shapes = own
        assert "to_dense" in sparse and "max of a sparse tensor" in greatest
        assert "of shape [2]" in sizes and "of shape [3]" in sizes
        assert "meta" in device and "2 rows" in splits
        assert "f32" in bits and "band" in bits
        assert "the operation PREMUL_SUM is not one of sum, average" in factor
        for words in ("rank 1", "3 f32", "4 f32"):
            assert words in shapes


def test_torch_group_for_a_list_of_devices_is_for_the_cpu(torch_ranks):
    lines = torch_ranks(2, '''
        import os
        import torch
        import torch.distributed as dist
        import gradus.torch
        if torch.__version__.startswith("1."):
            print("old")
            raise SystemExit


        def begin(devices):
            dist.init_process_group(devices, init_method=f"file://{os.getcwd()}/{devices}",
                                    rank=int(os.environ["RANK"]), world_size=2)


        for devices in ("cpu:gradus", "cpu:gradus,cuda:nccl"):
            begin(devices)
            x = torch.ones(1)
            dist.all_reduce(x)
            print(x.item())
            dist.destroy_process_group()
        for devices, there in (("cpu:gradus,cuda:gloo", True), ("cuda:gradus,cpu:gloo", False)):
            torch.cuda.is_available = lambda: there
            try:
                begin(devices)
            except ValueError as error:
                print(error)
        ''')
    if lines[0] == ["old"]:
        pytest.skip("torch before 2.0 knows no lists of devices")
    for line in lines:
        assert line[:2] == ["2.0", "2.0"]
        assert "the backends gloo and gradus" in line[2] and "named for cpu, cuda" in line[3]


def test_torch_group_with_a_timeout_ends_an_operation_that_waits(torch_ranks):
    lines = torch_ranks(2, '''
        from datetime import timedelta
        import torch
        import torch.distributed as dist
        import gradus.torch
        dist.init_process_group("gradus")
        # The ranks meet within this time as well.
        short = dist.new_group([0, 1], timeout=timedelta(seconds=3))
        if dist.get_rank() == 0:
            try:
                dist.all_reduce(torch.ones(2), group=short)
            except RuntimeError as error:
                print("rank 1" in str(error), type(error.__cause__ or error).__name__)
        dist.barrier()
        ''')
    assert lines[0][0].startswith("True")


def test_torch_call_with_a_timeout_of_its_own(torch_ranks):
    """By name, as the last argument, in the options; the operation goes on."""
    lines = torch_ranks(2, '''
        from datetime import timedelta
        import torch
        import torch.distributed as dist
        import gradus.torch
        dist.init_process_group("gradus")
        group, me = dist.distributed_c10d._get_default_group(), dist.get_rank()
        short, long = timedelta(milliseconds=20), timedelta(seconds=100)
        named = dist.AllreduceOptions()
        named.timeout = short
        sums, parts = [torch.ones(2) for _ in range(3)], torch.zeros(4)
        calls = (lambda limit: group.allreduce([sums[0]], timeout=limit),
                 lambda limit: group.allreduce(sums[1], dist.ReduceOp.SUM, limit),
                 lambda limit: group.allreduce([sums[2]], named if me == 0 else None),
                 lambda limit: group._allgather_base(parts, torch.ones(2), timeout=limit),
                 lambda limit: group.barrier(timeout=limit))
        if me == 0:
            works = [call(short) for call in calls]
            for work in works:
                try:
                    work.wait()
                except RuntimeError as error:
                    print("not over after 0.02 s" in str(error))
            group.send([torch.ones(1)], 1).wait()
            print(all(work.wait(long) for work in works), sums, parts)
        else:
            group.recv([torch.ones(1)], 0, timeout=long).wait()
            for call in calls:
                call(long).wait()
        ''')
    assert lines[0][:5] == ["True"] * 5
    three = ", ".join(["tensor([2., 2.])"] * 3)
    assert lines[0][5] == f"True [{three}] tensor([1., 1., 1., 1.])"
    assert not lines[1]


def test_ranks_keep_what_they_open(torch_ranks):
    """They are forked by a process that has sockets of its own (fork_server.py)."""
    assert torch_ranks(2, """
        import gc, os, socket
        opened = [socket.socket() for _ in range(64)]
        gc.collect()
        print(len([os.fstat(one.fileno()) for one in opened]))
    """) == [["64"], ["64"]]


@pytest.fixture
def installed(torch_ranks, tmp_path):
    """As pip leaves the package: with its entry points."""
    looks = torch_ranks(1, "import torch; print(hasattr(torch, '_import_device_backends'))")
    if looks != [["True"]]:
        pytest.skip("torch before 2.5 looks for no entry points")
    text = (SOURCE / "python/pyproject.toml").read_text()
    entry = re.search(r"\[project\.entry-points\.\"(.*)\"\]\ngradus = \"(.*)\"", text)
    folder = tmp_path / "site" / "gradus-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gradus\nVersion: 0.1.0\n")
    (folder / "entry_points.txt").write_text(f"[{entry[1]}]\ngradus = {entry[2]}\n")
    torch_ranks.environment["PYTHONPATH"] += f":{folder.parent}"
    torch_ranks.environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
    torch_ranks.forked = ()  # torch looks for them when it is imported
    return torch_ranks


def test_torch_finds_the_backend_without_an_import(installed):
    lines = installed(2, '''
        import torch
        import torch.distributed as dist
        dist.init_process_group("gradus")
        x = torch.ones(1)
        dist.all_reduce(x)
        print(x.item(), dist.get_backend())
        ''')
    assert lines == [["2.0 gradus"]] * 2
    installed.environment["LIBGRADUS"] = "/nowhere.so"
    assert installed(1, "import torch; print(torch.ones(1).item())") == [["1.0"]]
    assert "the backend gradus of torch.distributed is not there" in installed.err


@pytest.mark.parametrize("failure", ["ImportError", "RuntimeError"])
def test_torch_is_imported_where_the_backend_cannot_be(monkeypatch, tmp_path, failure):
    broken = types.ModuleType("gradus")
    broken.__path__ = [str(tmp_path)]
    (tmp_path / "torch.py").write_text(f"raise {failure}('an old torch')\n")
    monkeypatch.setitem(sys.modules, "gradus", broken)
    monkeypatch.delitem(sys.modules, "gradus.torch", raising=False)
    monkeypatch.syspath_prepend(SOURCE / "python")
    with pytest.warns(UserWarning, match="gradus of torch.distributed is not there: an old torch"):
        importlib.import_module("gradus_autoload").register()


def test_torch_work_of_no_tensors_is_over(torch_ranks):
    lines = torch_ranks(1, '''
        import gradus.torch
        print(gradus.torch.Work([], []).get_future().wait())
        ''')
    assert lines == [["[]"]]


def test_torch_sums_of_sparse_tensors_are_those_of_dense_ones(torch_ranks):
    lines = torch_ranks(3, '''
        import torch
        import torch.distributed as dist
        import gradus.torch
        dist.init_process_group("gradus")
        me, n = dist.get_rank(), dist.get_world_size()


        def made(rank, dtype, rows, more):
            """Of rank 1 nothing; of the others some elements twice."""
            generator = torch.Generator().manual_seed(rank)
            count = 0 if rank == 1 else 5 + rank
            where = torch.randint(0, 4, (rows, count), generator=generator)
            what = torch.randint(-9, 9, (count, *more), generator=generator).to(dtype)
            return torch.sparse_coo_tensor(where, what, (4,) * rows + more)


        for dtype in (torch.float32, torch.float64, torch.int64, torch.int32):
            for rows, more in ((1, ()), (1, (3,)), (2, (3, 2)), (3, ())):
                x = made(me, dtype, rows, more)
                work = dist.all_reduce(x, async_op=True)
                result, = work.get_future().wait()
                whole = sum(made(rank, dtype, rows, more).to_dense() for rank in range(n))
                assert result is x and x.is_sparse and x.is_coalesced() and x.dtype == dtype
                assert torch.equal(x.to_dense(), whole)
        x = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), (3,))
        dist.all_reduce(x)  # nothing on any rank
        assert x._nnz() == 0 and x.shape == (3,)
        ''')
    assert lines == [[], [], []]


def test_torch_groups_take_tensors_in_place_of_lists(torch_ranks):
    lines = torch_ranks(2, '''
        import torch
        import torch.distributed as dist
        import gradus.torch
        dist.init_process_group("gradus")
        group, me = dist.group.WORLD, dist.get_rank()


        def ones(value):
            return torch.full((2,), float(value))


        def pair(first, second):
            return [ones(first), ones(second)]


        def after(call, x, *words, **named):
            call(x, *words, **named).wait()
            return x[0].item()


        for call, expected in (((group.allreduce,), 3), ((group.allreduce, dist.ReduceOp.MAX), 2)):
            assert after(call[0], ones(me + 1), *call[1:]) == expected
        assert after(group.allreduce, ones(me + 1), op=dist.ReduceOp.MIN) == 1
        x = ones(me + 1)
        group.allreduce([x], dist.ReduceOp.PRODUCT).wait()
        assert x[0] == 2
        assert after(group.broadcast, ones(me + 1), 1) == 2
        assert after(group.broadcast, ones(me + 1), root=1) == 2
        for root in (0, 1):
            mine = me == root
            assert not mine or after(group.reduce, ones(me + 1), root) == 3
            assert mine or after(group.reduce, ones(me + 1), root) == me + 1
            assert not mine or after(group.reduce, ones(me), root, dist.ReduceOp.MAX) == 1
            assert mine or after(group.reduce, ones(me), root=root, op=dist.ReduceOp.MAX) == me
            out = pair(0, 0) if mine else []
            group.gather(out, ones(me + 1), root).wait()
            assert not mine or [one[0].item() for one in out] == [1, 2]
            assert after(group.scatter, ones(0), pair(7, 8) if mine else [], root) == 7 + me
        out = pair(0, 0)
        group.allgather(out, ones(me + 1)).wait()
        assert [one[0].item() for one in out] == [1, 2]
        assert after(group.reduce_scatter, ones(0), pair(me, 5)) == (1, 10)[me]
        assert after(group.reduce_scatter, ones(0), pair(me, 5), op=dist.ReduceOp.MAX) == (1, 5)[me]
        x = ones(me + 1)  # twice in one list
        group.allreduce([x, x]).wait()
        assert x.tolist() == [3, 3]
        ''')
    assert lines == [[], []]


def test_torch_results_are_there_without_a_wait(torch_ranks):
    lines = torch_ranks(3, '''
        import torch
        import torch.distributed as dist
        import gradus.torch
        dist.init_process_group("gradus")
        me, n = dist.get_rank(), dist.get_world_size()


        def check(sums, gathered):
            for i, x in enumerate(sums):
                assert torch.equal(x, torch.full(x.shape, float(n * i))), (i, x)
            for i, every in enumerate(gathered):
                assert [one[0].item() for one in every] == [i + rank for rank in range(n)], every


        def over(work):
            """Whether its results are there when its operations are over: nobody calls wait()."""
            for future in work._futures:
                future.wait()
            return work.is_completed()


        def begin(size):
            """Works that nobody keeps, some of whose results are copied at the end."""
            sums = [torch.full((size, 2), float(i)).t() for i in range(40)]
            gathered = [[torch.zeros(size) for _ in range(n)] for _ in range(5)]
            for x in sums:
                dist.all_reduce(x, async_op=True)
            for i, out in enumerate(gathered):
                dist.all_gather(out, torch.full((size,), float(i + me)), async_op=True)
            return sums, gathered


        for size in (10, 5000):
            made = begin(size)
            dist.barrier()
            check(*made)
            made = begin(size)
            dist.barrier(async_op=True).get_future().wait()
            check(*made)
            made = begin(size)
            assert over(dist.barrier(async_op=True))
            check(*made)

        # A message that comes behind the barrier does not hold it up.
        x = torch.zeros(1)
        work = dist.irecv(x, (me - 1) % n)
        dist.barrier()
        dist.send(torch.ones(1), (me + 1) % n)
        assert over(work) and x.item() == 1

        out = [torch.zeros(2) for _ in range(n)]
        work = dist.all_gather(out, torch.full((2,), float(me)), async_op=True)
        assert over(work) and work.is_success()
        assert [one[0].item() for one in out] == [0, 1, 2]
        ''')
    assert lines == [[], [], []]


def test_torch_group_keeps_no_tensors_of_operations_that_are_over(torch_ranks):
    os.mkfifo(torch_ranks.folder / "begun")
    lines = torch_ranks(2, '''
        import gc
        import weakref
        import torch
        import torch.distributed as dist
        import gradus.torch
        dist.init_process_group("gradus")
        tensors = [torch.ones(3) for _ in range(100)]
        if dist.get_rank() == 1:
            open("begun").close()
        works = [dist.all_reduce(x, async_op=True) for x in tensors]
        if dist.get_rank() == 0:
            open("begun", "w").close()  # all of them are under way
        for work in works:
            work.wait()
        kept = [weakref.ref(x) for x in tensors]
        del tensors, works, work
        for _ in range(20):
            dist.all_reduce(torch.ones(1))
        gc.collect()
        print(sum(one() is not None for one in kept))
        ''')
    assert lines == [["0"], ["0"]]


def test_torch_work_that_nobody_asks_stays_without_its_tensors(torch_ranks):
    lines = torch_ranks(2, '''
        import weakref
        import torch
        import torch.distributed as dist
        import gradus.torch
        dist.init_process_group("gradus")
        group = dist.distributed_c10d._get_default_group()
        group = getattr(group, "_get_backend", lambda device: group)(torch.device("cpu"))


        def begin(value):
            """As C++ holds it, which has none of Python's half."""
            x = torch.full((3,), value)
            return weakref.ref(group.allreduce([x])), weakref.ref(x)


        def count(refs):
            return sum(one() is not None for one in refs)


        kept = torch.ones(3)
        first = weakref.ref(group.allreduce([kept]))
        works, tensors = zip(*[begin(float(value)) for value in range(100)])
        message = torch.full((1,), float(dist.get_rank()))
        if dist.get_rank() == 1:
            sent = weakref.ref(group.send([message], 0, 0))
        else:
            work = group.recv([message], 1, 0)
            work.wait()
            sent = weakref.ref(group.recv([message], 1, 1))
            assert sent().exception() is None  # it is under way
        dist.barrier()
        if dist.get_rank() == 1:
            group.send([message], 0, 1).wait()
        for _ in range(60):
            dist.barrier()
        print(count(works), count(tensors), first() is not None, sent() is not None)
        assert first().result()[0] is kept and kept.tolist() == [2, 2, 2]
        assert works[1]().wait() and works[2]().get_future().done()
        if dist.get_rank() == 0:
            assert sent().source_rank() == 1
        print(count(works[:3]), first() is not None)
        ''')
    assert lines == [["100 0 True True", "1 False"]] * 2


def test_torch_callback_within_a_collective_may_begin_another_one(torch_ranks):
    lines = torch_ranks(1, '''
        import torch
        import torch.distributed as dist
        import gradus.torch
        dist.init_process_group("gradus")
        group = dist.distributed_c10d._get_default_group()
        group = getattr(group, "_get_backend", lambda device: group)(torch.device("cpu"))
        group.communicator._context.watch = lambda future: None  # as if its thread had no core
        x, called = torch.ones(3), []
        first = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        second = first.then(lambda future: called.append(dist.all_reduce(x)))
        dist.all_reduce(x)
        second.wait()
        print(called)
        ''', timeout=60)
    assert lines == [["[None]"]]
