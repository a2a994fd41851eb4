# SPDX-License-Identifier: Apache-2.0
"""Collectives, messages, objects and sub-groups from Python: each against what one process
computes."""
import pytest

COLLECTIVES = '''
import operator
import struct
from functools import reduce

import gradus
from gradus import DType

comm = gradus.Communicator()
n, me = comm.size, comm.rank
LETTERS = dict(zip(DType, "f d e bf16 i q b B h ? H I Q 2f 2d".split()))


def coded(kind, numbers):
    """Small whole numbers, which every type has."""
    if kind == DType.BF16:
        return bytearray(b"".join(struct.pack("<f", x)[2:] for x in numbers))
    if kind == DType.BOOL:
        return bytearray(bool(x) for x in numbers)
    two = kind in (DType.COMPLEX64, DType.COMPLEX128)
    return bytearray(b"".join(struct.pack("<" + LETTERS[kind], *((x, 0) if two else (x,)))
                              for x in numbers))


def of(rank, count=4):
    return [(rank + i) % 3 for i in range(count)]


def check(what, found, expected):
    assert found == expected, (what, me, bytes(found), bytes(expected))


for kind in DType:
    def run(name, given, *more, out=None, **named):
        data = coded(kind, given)
        out = None if out is None else coded(kind, [0] * out)
        result = getattr(comm, name)(data, *more, out=out, dtype=kind, **named)
        future = getattr(comm, name + "_start")(coded(kind, given), *more, dtype=kind, **named,
                                                out=None if out is None else bytearray(len(out)))
        assert future.result() == result, (name, kind)
        return result

    def all_of(count=4):
        return [of(rank, count) for rank in range(n)]

    sums = [sum(column) for column in zip(*all_of())]
    check("allreduce", run("allreduce", of(me)), coded(kind, sums))
    check("allreduce", run("allreduce", of(me), out=4), coded(kind, sums))
    if kind not in (DType.COMPLEX64, DType.COMPLEX128):
        check("max", run("allreduce", of(me), op="max"),
              coded(kind, [max(column) for column in zip(*all_of())]))
        check("min", run("allreduce", of(me), op="min"),
              coded(kind, [min(column) for column in zip(*all_of())]))
    check("product", run("allreduce", of(me), op="product"),
          coded(kind, [reduce(operator.mul, column) for column in zip(*all_of())]))
    if kind in (DType.F32, DType.F64):
        check("average", run("allreduce", [n * x for x in of(me)], op="average"), coded(kind, sums))
        check("scaled", run("allreduce", of(me), prescale=4, postscale=0.5),
              coded(kind, [2 * x for x in sums]))
    if kind in (DType.I32, DType.U64):
        check("bxor", run("allreduce", of(me), op="bxor"),
              coded(kind, [reduce(operator.xor, column) for column in zip(*all_of())]))
    root = n - 1
    found = run("reduce", of(me), root=root, out=4 if me == root else None)
    check("reduce", found, coded(kind, sums if me == root else of(me)))
    data = coded(kind, of(me))
    check("broadcast", comm.broadcast(data, root, dtype=kind), coded(kind, of(root)))
    joined = sum(all_of(), [])
    check("allgather", run("allgather", of(me), out=4 * n), coded(kind, joined))
    whole = [0] * (4 * n)
    whole[4 * me:4 * me + 4] = of(me)
    check("allgather in place", run("allgather", whole), coded(kind, joined))
    counts = list(range(n))
    check("allgather counts", run("allgather", of(me, me), out=sum(counts), counts=counts),
          coded(kind, sum((of(rank, rank) for rank in range(n)), [])))
    found = run("gather", of(me), root=root, out=4 * n if me == root else None)
    check("gather", found, coded(kind, joined if me == root else of(me)))
    data = coded(kind, of(7, 4 * n)) if me == root else None
    found = comm.scatter(data, coded(kind, [0] * 4), root, dtype=kind)
    check("scatter", found, coded(kind, of(7, 4 * n)[4 * me:4 * me + 4]))
    blocks = [sum(column) for column in zip(*all_of(2 * n))]
    check("reduce_scatter", run("reduce_scatter", of(me, 2 * n), out=2),
          coded(kind, blocks[2 * me:2 * me + 2]))
    counts = [rank + 1 for rank in range(n)]
    first = sum(counts[:me])
    blocks = [sum(column) for column in zip(*all_of(sum(counts)))]
    check("reduce_scatter counts",
          run("reduce_scatter", of(me, sum(counts)), out=me + 1, counts=counts),
          coded(kind, blocks[first:first + me + 1]))
    check("alltoall", run("alltoall", of(me, 2 * n), out=2 * n),
          coded(kind, sum((of(rank, 2 * n)[2 * me:2 * me + 2] for rank in range(n)), [])))
    to, came = [me + 1] * n, [rank + 1 for rank in range(n)]
    check("alltoall counts",
          run("alltoall", [me] * sum(to), out=sum(came), counts=to, recv_counts=came),
          coded(kind, sum(([rank] * (rank + 1) for rank in range(n)), [])))
    check("empty", run("allreduce", []), coded(kind, []))
    if kind == DType.BOOL:
        for factor in "prescale", "postscale":
            try:
                run("allreduce", of(me), **{factor: 0.0})
                raise AssertionError(factor)
            except gradus.InvalidError as error:
                assert factor in str(error), error
        continue
    # Rank 0 alone multiplies by 0.
    whole = [sum(column) for column in zip(*all_of(2 * n))]
    gives, gets = {"prescale": 0.0 if me == 0 else 1.0}, {"postscale": 0.0 if me == 0 else 1.0}
    others = [sum(column) for column in zip(*all_of(2 * n)[1:])]
    for out in (None, 2 * n):
        check("zero given", run("allreduce", of(me, 2 * n), out=out, **gives), coded(kind, others))
        check("zero got", run("allreduce", of(me), out=out and 4, **gets),
              coded(kind, sums if me else [0] * 4))
    check("reduce_scatter zero", run("reduce_scatter", of(me, 2 * n), out=2, **gives),
          coded(kind, others[2 * me:2 * me + 2]))
    for words, expected in (gives, others), (gets, [x if me else 0 for x in whole]):
        found = comm.reduce_scatter(coded(kind, of(me, 2 * n)), dtype=kind, **words)
        size = len(found) // n
        check("reduce_scatter zero in place", found[size * me:size * (me + 1)],
              coded(kind, expected[2 * me:2 * me + 2]))
    others = [sum(column) for column in zip(*all_of(sum(counts))[1:])]
    check("reduce_scatter zero counts",
          run("reduce_scatter", of(me, sum(counts)), out=me + 1, counts=counts, **gives),
          coded(kind, others[first:first + me + 1]))
    found = comm.reduce_scatter(coded(kind, of(me, sum(counts))), counts=counts, dtype=kind,
                                **gives)
    size = len(found) // sum(counts)
    check("reduce_scatter zero counts in place", found[size * first:size * (first + me + 1)],
          coded(kind, others[first:first + me + 1]))
comm.barrier()
print("done")
'''


@pytest.mark.parametrize("count", [2, 3, 4])
def test_collectives_of_all_types_are_what_one_process_computes(ranks, count):
    assert ranks(count, COLLECTIVES) == [["done"]] * count


def test_messages_match_by_source_and_tag(ranks):
    lines = ranks(3, '''
        import array
        import gradus
        with gradus.Communicator() as comm:
            if comm.rank:
                comm.send(array.array("i", [comm.rank, 1]), 0, tag=1)
                comm.send(array.array("d", [comm.rank + 0.5]), 0, tag=7)
                comm.send_object({"rank": comm.rank}, 0, tag=9)
                print(comm.recv_object(0))
            else:
                number = array.array("d", [0])
                assert comm.recv(number, 2, tag=7) == gradus.Message(2, 7) and number[0] == 2.5
                pair, came = array.array("i", [0, 0]), set()
                for _ in range(2):
                    found = comm.recv(pair, gradus.ANY_SOURCE, tag=1)
                    assert found.source == pair[0]
                    came.add(found)
                print(sorted(came))
                future = comm.recv_start(number, 1, gradus.ANY_TAG)
                print(future.result(), number[0])
                objects = [comm.recv_object(tag=9) for _ in range(2)]
                print(sorted(one["rank"] for one in objects))
                for peer in (1, 2):
                    comm.send_object(["large", peer, "x" * 400_000][:2], peer)
        ''')
    assert lines == [["[Message(source=1, tag=1), Message(source=2, tag=1)]",
                      "Message(source=1, tag=7) 1.5", "[1, 2]"],
                     ["['large', 1]"], ["['large', 2]"]]


def test_objects_of_any_size_travel(ranks):
    lines = ranks(3, '''
        import gradus
        comm = gradus.Communicator()
        mine = {"rank": comm.rank, "text": "x" * (100_000 * comm.rank)}
        every = comm.allgather_object(mine)
        assert [one["rank"] for one in every] == [0, 1, 2] and len(every[2]["text"]) == 200_000
        assert comm.broadcast_object(mine if comm.rank == 1 else None, root=1) == every[1]
        found = comm.gather_object(mine, root=2)
        assert found == (every if comm.rank == 2 else None)
        print(comm.scatter_object(["a", 5, None] if comm.rank == 0 else None))
        ''')
    assert lines == [["a"], ["5"], ["None"]]


def test_subgroups_sum_over_their_ranks(ranks):
    lines = ranks(4, '''
        import array
        import gradus
        comm = gradus.Communicator()
        half = comm.split(comm.rank % 2, key=-comm.rank)
        print(half.rank, half.size, half.allreduce(array.array("i", [comm.rank]))[0])
        three = comm.subgroup([3, 0, 1])
        print("out" if three is None else (three.rank, three.allreduce(array.array("i", [1]))[0]))
        assert comm.split(-1) is None
        half.close()
        print(comm.allreduce(array.array("i", [1]))[0], comm.local_rank, comm.local_size)
        ''')
    assert lines == [["1 2 2", "(1, 3)", "4 0 4"], ["1 2 4", "(2, 3)", "4 1 4"],
                     ["0 2 2", "out", "4 2 4"], ["0 2 4", "(0, 3)", "4 3 4"]]


def test_futures_end_and_call_back(ranks):
    lines = ranks(2, '''
        import array
        import threading
        import gradus
        comm = gradus.Communicator()
        number = array.array("i", [0])
        if comm.rank == 0:
            future = comm.recv_start(number, 1)
            assert not future.done() and not future.wait(0.01)
            try:
                future.result(timeout=0.01)
            except TimeoutError as error:
                print(type(error).__module__, error.operation)
            over, order = threading.Event(), []
            future.add_done_callback(lambda one: order.append(one.result()))
            future.add_done_callback(lambda one: 1 / 0)  # is logged
            future.add_done_callback(lambda one: over.set())
            comm.send(array.array("i", [1]), 1)
            assert over.wait(60)
            print(order, number[0], future.done(), future.exception())
            future.add_done_callback(lambda one: print("at once"))
            futures = [comm.allreduce_start(array.array("i", [i])) for i in range(100)]
        else:
            comm.recv(number, 0)
            comm.send(array.array("i", [5]), 0)
            futures = [comm.allreduce_start(array.array("i", [i])) for i in range(100)]
        print([future.result()[0] for future in reversed(futures)] == list(range(198, -1, -2)))
        several = comm.allreduce_start(array.array("i", [1]))
        threads = [threading.Thread(target=several.wait) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(several.result()[0])
        ''')
    assert lines == [["gradus.errors recv", "[Message(source=1, tag=0)] 5 True None", "at once",
                      "True", "2"], ["True", "2"]]
    assert "ZeroDivisionError" in ranks.err


def test_any_memory_of_elements_will_do(ranks):
    pytest.importorskip("numpy")
    lines = ranks(2, '''
        import ctypes
        import numpy as np
        import gradus
        comm = gradus.Communicator()
        for kind in "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 c8 c16".split():
            x = np.arange(6).astype(kind).reshape(2, 3)
            assert (comm.allreduce(x) == 2 * np.arange(6).reshape(2, 3)).all(), kind
        assert comm.allreduce(np.array([comm.rank > 0]), op="max")[0]

        class Interface:
            def __init__(self, array):
                self.array, self.__array_interface__ = array, array.__array_interface__

        class DLPack:
            def __init__(self, array):
                self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

        for wrap in (Interface, DLPack, memoryview):
            x = np.full((3, 2), comm.rank + 1, dtype="i2")
            comm.allreduce(wrap(x))
            assert (x == 3).all(), wrap
        memory = comm.alloc(5, "f64")
        x = np.asarray(memory)
        del memory
        x += comm.rank
        y = comm.allreduce(x[1:], np.zeros(4))
        assert (y == 1).all() and x[0] == comm.rank
        half = comm.alloc(3, gradus.DType.BF16)
        half[:] = [0x3f80] * 3  # 1.0
        comm.allreduce(half)
        assert list(half) == [0x4000] * 3  # 2.0
        frozen = np.zeros(3)
        frozen.flags.writeable = False
        for what, words in ((np.zeros((4, 4))[:, 1], "C order"), (frozen, "read-only"),
                            (b"bytes", "read-only"), ([1, 2], "list"), (None, "None"),
                            (np.zeros(2, "U3"), "no type of Gradus"),
                            (Interface(np.zeros((4, 4))[:, 1]), "not contiguous"),
                            (Interface(frozen), "read-only"),
                            (DLPack(np.zeros((4, 4))[:, 1]), "not contiguous"),
                            (np.zeros(2, ">f4"), "no type of Gradus")):
            try:
                comm.allreduce(what)
                print("accepted", what)
            except gradus.InvalidError as error:
                assert words in str(error) and error.rank == comm.rank, (str(error), words)
        for call, words in ((lambda: comm.allreduce(np.zeros(3), np.zeros(4)), "3 elements, out 4"),
                            (lambda: comm.allreduce(np.zeros(3), np.zeros(3, "f4")), "of one type"),
                            (lambda: comm.reduce_scatter(np.zeros(3)), "not a block for each of 2"),
                            (lambda: comm.allgather(np.zeros(3), np.zeros(5)), "not a block"),
                            (lambda: comm.allgather(np.zeros(3), np.zeros(8)), "2 times as many"),
                            (lambda: comm.allgather(np.zeros(1), np.zeros(3), [2, 1, 1]),
                             "3 numbers"),
                            (lambda: comm.alltoall(np.zeros(2), np.zeros(2), [1, 1]), "give both"),
                            (lambda: comm.allreduce(np.zeros(3), op="mean"), "'mean'"),
                            (lambda: comm.allreduce(bytearray(3), dtype="f32"), "no multiple of"),
                            (lambda: comm.allreduce(bytearray(3), dtype="f33"), "'f33'"),
                            (lambda: comm.send(b"x", 2), "2"),
                            (lambda: comm.alloc(0), "1 or more")):
            try:
                call()
                print("accepted", words)
            except gradus.InvalidError as error:
                assert words in str(error), (str(error), words)
        assert comm.allreduce(np.ones(1))[0] == 2  # still usable
        assert len(comm.broadcast(b"from 0" if comm.rank == 0 else bytearray(6))) == 6
        print("done")
        ''')
    assert lines == [["done"], ["done"]]


def test_communicator_callback_may_wait_for_what_it_starts(ranks):
    """As PowerSGD's hook of PyTorch does, while nobody else waits."""
    lines = ranks(2, '''
        import threading
        import gradus
        comm = gradus.Communicator()
        over = threading.Event()

        def callback(_):
            inner = threading.Event()
            future = comm.recv_start(bytearray(1), 1, 2)
            future.add_done_callback(lambda _: inner.set())
            comm.send(bytes(1), 1, 3)  # only now rank 1 sends
            print(inner.wait(60))
            over.set()
        if comm.rank == 0:
            comm.recv_start(bytearray(1), 1, 1).add_done_callback(callback)
            over.wait()
        else:
            comm.send(bytes(1), 0, 1)
            comm.recv(bytearray(1), 0, 3)
            comm.send(bytes(1), 0, 2)
        ''')
    assert lines[0] == ["True"]


def test_communicator_that_a_callback_closes_leaves_the_callbacks_of_others(ranks):
    lines = ranks(1, '''
        import threading
        import gradus
        comm = gradus.Communicator()
        part = comm.subgroup([0])
        first, second = part.recv_start(bytearray(1), 0), comm.recv_start(bytearray(1), 0)
        closed, told = threading.Event(), threading.Event()

        def close(_):
            part.close()
            closed.set()
        first.add_done_callback(close)
        second.add_done_callback(lambda one: told.set())
        sent = part.send_start(b"x", 0)
        closed.wait()
        comm.send(b"x", 0)
        told.wait()
        print("told")
        ''')
    assert lines == [["told"]]


def test_communicator_whose_renewal_is_refused_keeps_its_callbacks(ranks):
    lines = ranks(1, '''
        import threading
        import gradus
        comm = gradus.Communicator()
        part = comm.subgroup([0])
        future, told = comm.recv_start(bytearray(1), 0), threading.Event()
        future.add_done_callback(lambda one: told.set())
        try:
            comm.renew()
        except gradus.InvalidError as error:
            print("1 sub-groups" in str(error))
        comm.send(b"x", 0)
        told.wait()
        print("told")
        ''', flags=["--min-workers", 1, "--max-workers", 2])
    assert lines == [["True", "told"]]


def test_communicator_calls_back_though_another_thread_looked_before_the_end(ranks):
    lines = ranks(2, '''
        import threading
        import gradus
        comm = gradus.Communicator()
        if comm.rank == 0:
            told, refused = threading.Event(), threading.Event()
            future = comm.recv_start(bytearray(1), 1)
            advance = future._advance

            def look(timeout_s):
                looked = advance(timeout_s)
                if not looked:
                    refused.set()
                return looked

            future._advance = look
            future._lock.acquire()  # as a thread that has just seen that it is not over
            future.add_done_callback(lambda _: told.set())
            comm.send(b"x", 1)
            comm.recv(bytearray(1), 1, 1)
            refused.clear()
            refused.wait(30)  # the thread of callbacks finds the lock taken, and it is over
            future._lock.release()
            print(told.wait(30))
        else:
            comm.recv(bytearray(1), 0)
            comm.send(b"x", 0)
            comm.send(b"x", 0, 1)
        ''')
    assert lines == [["True"], []]


def test_communicator_closes_and_renews_while_a_callback_waits(ranks):
    lines = ranks(1, '''
        import threading
        import gradus


        def begin(comm):
            """A callback that waits for what does not come."""
            waits = threading.Event()

            def callback(_):
                waits.set()
                print(type(never.exception()).__name__, never.done())
            never = comm.recv_start(bytearray(1), 0, 9)
            comm.recv_start(bytearray(1), 0).add_done_callback(callback)
            comm.send(b"x", 0)
            waits.wait()
            return never


        comm = gradus.Communicator()
        begin(comm)
        comm.renew()
        never = begin(comm)
        part = comm.subgroup([0])
        try:
            comm.renew()
        except gradus.InvalidError:
            print("refused")
        part.close()
        comm.send(b"x", 0, 9)
        print(never.wait(30))
        never = begin(comm)
        comm.close()
        print(never.done())
        begin(gradus.Communicator(rank=0, size=1))
        ''', flags=["--min-workers", 1, "--max-workers", 2], timeout=60)
    assert lines == [["CancelledError False", "CancelledError False", "refused", "True",
                      "CancelledError False", "True", "CancelledError False"]]


def test_communicator_leaves_a_start_in_progress_to_its_thread(ranks):
    """Whoever submits looks at all that is under way, and close() does."""
    lines = ranks(1, '''
        import threading
        import gradus
        from gradus._library import lib
        begin, found = lib.gr_start, []

        class Starter(threading.Thread):
            """Receives with tag 1; its start goes on when go() is called."""

            def __init__(self):
                super().__init__()
                self.inside, self.may_go = threading.Event(), threading.Event()
                self.start()
                self.inside.wait()

            def begin(self, *arguments):
                self.inside.set()
                self.may_go.wait()
                return begin(*arguments)

            def run(self):
                self.future = comm.recv_start(bytearray(1), 0, 1)
                found.append(type(self.future.exception()).__name__)

            def go(self):
                self.may_go.set()
                self.join()

        lib.gr_start = lambda *arguments: getattr(threading.current_thread(), "begin", begin)(
            *arguments)
        comm = gradus.Communicator()
        others = [comm.recv_start(bytearray(1), 0, 2) for _ in range(63)]
        starter = Starter()
        others += [comm.recv_start(bytearray(1), 0, 2), comm.send_start(b"x", 0, 1)]
        starter.go()
        starter = Starter()
        closer = threading.Thread(target=comm.close)
        closer.start()
        while not comm._closed:
            pass
        starter.go()
        closer.join()
        print(*found, type(others[0].exception()).__name__)
        ''')
    assert lines == [["NoneType CancelledError CancelledError"]]


@pytest.mark.parametrize("end", ["close", "renew"])
def test_communicator_that_ends_while_an_array_is_made_knows_of_it(ranks, end):
    lines = ranks(1, '''
        import sys
        import threading
        import gradus
        from gradus._library import lib
        comm = gradus.Communicator()
        enter, free, freed = comm._enter, lib.gr_free, []
        lib.gr_free = lambda *arguments: freed.append(free(*arguments))

        def enter_and_end(held):
            """Another thread ends the communicator as soon as this call has left the library."""
            entered = enter(held)
            ender = threading.Thread(target=getattr(comm, sys.argv[1]))
            del comm._enter
            held += [ender.start, ender.join]
            return entered

        comm._enter = enter_and_end
        array = comm.alloc(1000)
        if sys.argv[1] == "close":
            array[:] = [1.0] * 1000
            print(sum(array))
        del array
        print(comm._context.arrays, len(freed))
        ''', end, flags=["--min-workers", 1, "--max-workers", 2])
    assert lines == [["1000.0", "0 1"] if end == "close" else ["0 0"]]  # or it went with renew()


def test_communicator_that_is_copied_says_why_not(ranks):
    """Also the set of all ranks of Horovod's interface, which has one."""
    lines = ranks(1, '''
        import copy
        import pickle
        import gradus
        from gradus import _world as hvd
        hvd.init()
        for call in (lambda: copy.copy(hvd.world.comm()),
                     lambda: pickle.dumps(hvd.world.comm()),
                     lambda: copy.deepcopy(hvd.global_process_set)):
            try:
                call()
            except gradus.InvalidError as error:
                print("each process makes one" in str(error))
        ''')
    assert lines == [["True"] * 3] and "Exception ignored" not in ranks.err
