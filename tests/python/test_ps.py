# SPDX-License-Identifier: Apache-2.0
"""Parameter servers from Python: values against what one process computes, and what goes wrong."""
import signal
import subprocess
import sys

import pytest

from conftest import blackbox

# What each program begins with.
BEGIN = '''
import array
import ctypes
import os
import signal
import sys
import threading
import gradus

def floats(numbers):
    return array.array("f", numbers)

def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise SystemExit(f"no {kind}")

'''


class Servers:
    """Servers of this host, and programs that are their clients."""

    def __init__(self, ranks, count, *flags):
        self.gradus = ranks.gradus
        self.ranks = ranks
        secret = ranks.folder / "secret"
        words = ("--secret-file", secret, "--listen", "127.0.0.1", *flags)
        if count > 1:
            words += ("--servers", count)
        self.servers, addresses = [], []
        for number in range(count):
            server = self.gradus.start("server", *words, *(("--number", number) if number else ()))
            self.servers.append(server)
            addresses.append(blackbox.read_lines(server.stdout, 1)[0].split("=", 1)[1])
        self.environment = ranks.environment | {"GRADUS_SERVERS": ",".join(addresses),
                                                "GRADUS_SECRET_FILE": str(secret)}

    def start(self, text, *arguments):
        path = self.ranks.write(BEGIN + text)
        return self.gradus.start(path, *arguments, program=self.ranks.python,
                                 env=self.environment)

    def __call__(self, text, *arguments):
        """Returns the lines that the program has written."""
        program = self.start(text, *arguments)
        out, err = program.communicate(timeout=blackbox.TIMEOUT_S)
        assert program.returncode == 0, out + err
        return out.splitlines()


VALUES = '''
def sums(clients):
    """Two workers, three steps of three shards."""
    tensors = [client.declare("sums", 5000, shards=3) for client in clients]
    tensors[0].set(floats([2.0] * 5000))
    tensors[1].set(floats([9.0] * 5000))  # the first one's count
    expected = [2.0] * 5000
    for step in range(3):
        parts = [floats(shard + step + i % 7 for i in range(5000)) for shard in range(3)]
        futures = [tensors[shard % 2].push_pull_start(parts[shard], first=shard, factor=0.5)
                   for shard in range(3)]
        expected = [old + 0.5 * sum(column) for old, *column in zip(expected, *parts)]
        for future in futures:
            values, version = future.result(60)
            assert list(values) == expected and version == step + 1
    assert [tensor.version for tensor in tensors] == [3, 3]
    assert tensors[0].pull(version=3) == (floats(expected), 3)

with gradus.ps.Client(worker=0) as one, gradus.ps.Client(worker=1) as two:
    assert (one.worker, two.rank, one.servers) == (0, 1, 2)
    sums((one, two))

    # The optimizer is the servers', with momentum; its state comes and goes.
    rule = {"kind": "sgd", "momentum": 0.5}
    weight = one.declare("weight", 10, optimizer=rule, refuse_not_finite=True)
    memory = one.alloc(10)
    memory[:] = [1.0] * 10
    weight.set(memory)
    value, momentum = 1.0, 0.0
    for step in range(3):
        memory[:] = [1.0] * 10
        assert weight.push(memory, rate=0.5) is None
        momentum = 0.5 * momentum + 1.0
        value -= 0.5 * momentum
    assert list(weight.pull(memory).values) == [value] * 10 and memory[3] == value
    assert weight.states == 1 and list(weight.pull_state(0).values) == [momentum] * 10
    whole = weight.pull_whole(version=3)
    assert (list(whole.values), [list(x) for x in whole.states], whole.version) == (
        [value] * 10, [[momentum] * 10], 3)
    copy = one.declare("copy", 10, optimizer=rule)
    copy.restore(*whole)
    assert copy.push_pull(memory, rate=0.5, step=3).version == 4
    assert list(copy.pull().values) == [value - 0.5 * (0.5 * momentum + value)] * 10
    error = refused(gradus.NotFiniteError, lambda: weight.push(floats([0.0] * 9 + [float("nan")]),
                                                               rate=1.0))
    assert "element 9" in str(error) and weight.pull().version == 3

    # Each push as it comes; repeats do not count; gradients of 16 bits; the first of two.
    now = one.declare("now", 4, consistency="async")
    now.set(floats([0.0] * 4))
    for push in range(3):
        now.push(floats([1.0, 0.0, 0.0, push]), sparse=True, sequence=push + 1)
    now.push(floats([1.0] * 4), sequence=3)
    assert now.pull() == (floats([3.0, 0.0, 0.0, 3.0]), 3)
    def staleness():
        return sum(one.counters(server).staleness_sum for server in range(2))

    before = staleness()
    old = [client.declare("old", 1, consistency="async", optimizer=rule) for client in (one, two)]
    old[0].set(floats([0.0]))
    for tensor in (old[0], old[1], old[1]):
        tensor.pull()
        tensor.push(floats([1.0]), rate=1.0)
    assert old[0].pull_state(0).version == 3 and old[0].version == 0
    old[0].push(floats([1.0]), rate=1.0)  # computed from values three updates ago
    old[0].pull()
    old[0].push(floats([1.0]), rate=1.0)
    assert staleness() - before == 3
    half = one.declare("half", 2, consistency="async", gradient_type="f16")
    half.set(floats([0.0] * 2))
    half.push(floats([1.0 + 2.0 ** -12, 2.0]))
    assert list(half.pull().values) == [1.0, 2.0]
    first = [client.declare("first", 1, consistency="backup", aggregate=1, total=2)
             for client in (one, two)]
    first[0].set(floats([0.0]))
    first[1].push(floats([5.0]))
    first[0].push(floats([7.0]))  # late
    assert [tensor.pull().values[0] for tensor in first] == [5.0, 5.0]
    assert sum(one.counters(server).late for server in range(2)) == 1

    # ssp: a pull waits while the caller is ahead.
    slow = [client.declare("slow", 1, consistency="ssp", staleness=1) for client in (one, two)]
    slow[0].set(floats([0.0]))
    one.clock(0), two.clock(0)
    slow[0].push(floats([1.0]))
    one.clock(2)
    ahead = slow[0].pull_start()
    assert not ahead.done() and not ahead.wait(0.01)
    two.clock(1)
    assert ahead.result(60) == (floats([1.0]), 1)

    # What the servers know.
    listed = {entry.name: entry for entry in two.entries()}
    assert listed["weight"][1:4] == (10, "bsp", 1) and listed["weight"].states == 1
    assert listed["half"].gradient_type == gradus.DType.F16 and listed["slow"].staleness == 1
    assert list(two.find("weight").pull().values) == [value] * 10
    assert refused(gradus.NotFoundError, lambda: two.find("none")).rank == 1
    assert one.counters(1).clients == 2

    # All meet; a callback; what is left when it is closed.
    met = threading.Thread(target=two.barrier, args=("end", 2))
    met.start()
    one.barrier("end", 2)
    met.join()
    assert refused(gradus.TimeoutError, lambda: one.barrier("end", 2, timeout=0.01)).rank == 0
    called = threading.Event()
    ahead = slow[0].pull_start()
    ahead.add_done_callback(lambda future: called.set())
    called.wait()
    never = now.pull_start(version=99)
    kept = memoryview(memory).cast("B")
assert isinstance(never.exception(), gradus.CancelledError)
kept[0], memory[1] = 1, 2.0  # still there
assert "closed" in str(refused(gradus.InvalidError, now.pull_start))
print("ok")
'''


def test_ps_values_are_what_one_process_computes(ranks):
    assert Servers(ranks, 2)(VALUES) == ["ok"]


ROWS = '''
import itertools

with gradus.ps.Client(worker=0) as one, gradus.ps.Client(worker=1) as two:
    # A row that nobody has pushed follows from the seed, alike for all; pushes of one row add up.
    rule = {"kind": "sgd", "momentum": 0.0}
    tables = [client.declare_table("words", 1000000, 3, seed=7, std=0.5, shards=2, optimizer=rule)
              for client in (one, two)]
    before = tables[0].pull([17, 900000, 17]).values
    assert before[:3] == before[6:] and before == tables[1].pull([17, 900000, 17]).values
    assert len(set(before[:6])) == 6 and max(map(abs, before)) < 3
    wide = array.array("q", [17, 4, 17])
    futures = [tables[0].push_start(wide, floats(range(9)), first=0, rate=0.5),
               tables[1].push_start(array.array("i", [4]), floats([1.0, 1.0, 1.0]), first=1,
                                    rate=0.5)]
    begin = {row: list(tables[1].pull([row], version=1).values) for row in (4, 17)}
    for future in futures:
        future.result(60)
    assert tables[0].version == 1
    fresh = one.declare_table("fresh", 1000000, 3, seed=7, std=0.5).pull([4, 17]).values
    expected = {4: [old - 0.5 * (3.0 + i + 1.0) for i, old in enumerate(fresh[:3])],
                17: [old - 0.5 * (i + 6.0 + i) for i, old in enumerate(fresh[3:])]}
    for row, values in expected.items():
        assert all(abs(x - y) < 1e-6 for x, y in zip(begin[row], values)), (row, begin, values)
    assert [entry.rows for entry in two.entries()] == [2, 0]

    # A worker without rows is waited for all the same.
    future = tables[0].push_start([5], floats([1.0] * 3), rate=1.0)
    assert not future.wait(0.01)
    tables[1].push([], floats([]), first=1, rate=1.0)
    future.result(60)

    # What exists goes to another table, with its state.
    moving = one.declare_table("moving", 1 << 20, 2, consistency="async", optimizer={"kind": "sgd"})
    numbers = list(range(0, 1 << 20, 1 << 8))
    for push in range(2):
        moving.push(numbers, floats(float(row % 97) for row in numbers for _ in range(2)), rate=1.0)
    found = list(moving.scan())
    assert sorted(itertools.chain(*(some.rows for some in found))) == numbers
    for rows, values, (momentum,), version in found:
        assert version == 2
        for at, row in enumerate(rows):
            g = row % 97
            assert abs(values[2 * at] + 2.9 * g) < 1e-3 and abs(momentum[2 * at] - 1.9 * g) < 1e-3
    again = one.declare_table("again", 1 << 20, 2, consistency="async", optimizer={"kind": "sgd"})
    joined = [array.array(kind, b"".join(bytes(column) for column in columns))
              for kind, columns in (("I", [some.rows for some in found]),
                                    ("f", [some.values for some in found]),
                                    ("f", [some.states[0] for some in found]))]
    again.restore(joined[0], joined[1], joined[2:], version=2)
    for table in (moving, again):
        table.push([512, 3], floats([1.0] * 4), rate=1.0)
    assert again.pull([3, 512, 256]) == moving.pull([3, 512, 256])
    assert [len(some.states) for some in again.scan(states=False)][:1] == [0]
print("ok")
'''


def test_ps_rows_are_what_one_process_computes(ranks):
    assert Servers(ranks, 2, "--replicas", 0)(ROWS) == ["ok"]


BAD = '''
client = gradus.ps.Client(worker=3)
other = gradus.ps.Client()  # it only pulls
weight = client.declare("weight", 4, optimizer={"kind": "sgd"})
weight.set(floats([1.0] * 4))
words = client.declare_table("words", 10, 2)
F = floats([0.0] * 4)
for kind, words_of_it, call in (
        (gradus.InvalidError, "gradient has 3 elements, where 4",
         lambda: weight.push(floats([0.0] * 3), rate=1.0)),
        (gradus.InvalidError, "out has 5 elements", lambda: weight.pull(floats([0.0] * 5))),
        (gradus.InvalidError, "gradient is of f64",
         lambda: weight.push(array.array("d", [0.0] * 4), rate=1.0)),
        (gradus.InvalidError, "out cannot be written", lambda: weight.pull(bytes(16))),
        (gradus.InvalidError, "no rate", lambda: weight.push(F)),
        (gradus.InvalidError, "factor is 0", lambda: weight.push(F, rate=1.0, factor=0)),
        (gradus.InvalidError, "step is -1", lambda: weight.push(F, rate=1.0, step=-1)),
        (gradus.InvalidError, "step 5", lambda: weight.push(F, rate=1.0, step=5)),
        (gradus.InvalidError, "subtree", lambda: weight.push(F, rate=1.0, first=1)),
        (gradus.InvalidError, "state", lambda: weight.pull_state(1)),
        (gradus.InvalidError, "consistency is 'sync'",
         lambda: client.declare("x", 1, consistency="sync")),
        (gradus.InvalidError, '"weight"', lambda: client.declare("weight", 5)),
        (gradus.InvalidError, "clip_norm",
         lambda: client.declare("y", 1, optimizer={"clip_norm": 1.0})),
        (gradus.InvalidError, "worker", lambda: other.declare("z", 1).set(floats([0.0]))),
        (gradus.InvalidError, "rows are numbers from 0 to 9", lambda: words.pull([-1])),
        (gradus.InvalidError, "no row 10", lambda: words.pull([10])),
        (gradus.InvalidError, "rows is of f32", lambda: words.pull(F)),
        (gradus.InvalidError, "2 columns", lambda: words.push([1], F)),
        (gradus.InvalidError, "no server 7", lambda: client.counters(7)),
        (gradus.InvalidError, "64 hexadecimal", lambda: gradus.ps.Client(secret="abc")),
        (gradus.InvalidError, "192", lambda: gradus.ps.Client(worker=192)),
        (gradus.InvalidError, "0 elements", lambda: client.alloc(0)),
        (gradus.AuthError, "secret", lambda: gradus.ps.Client(worker=1, secret="ab" * 32)),
        (gradus.InUseError, "of our rank already", lambda: gradus.ps.Client(worker=3)),
        (gradus.PeerLostError, "127.0.0.1:1: Connection refused",
         lambda: gradus.ps.Client(servers=["tcp:127.0.0.1:1"], worker=1))):
    error = refused(kind, call)
    assert words_of_it in str(error), (words_of_it, str(error))
    print(type(error).__name__, error.rank, error.operation, error)
assert list(weight.pull().values) == [1.0] * 4

child = os.fork()
if child == 0:
    try:
        for call in (weight.pull, lambda: weight.set(F)):
            assert "forked" in str(refused(gradus.InvalidError, call))
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
refused(ctypes.ArgumentError, lambda: client.barrier("all", 1.5))
assert list(weight.push_pull(F, rate=1.0).values) == [1.0] * 4
os.environ.update(GRADUS_SECRET=open(os.environ.pop("GRADUS_SECRET_FILE")).read().strip(),
                  GRADUS_RANK="5")
assert gradus.ps.Client().worker == 5 and "GRADUS_SECRET" not in os.environ
assert "pass secret=" in str(refused(gradus.InvalidError, gradus.ps.Client))
'''


def test_ps_what_cannot_be_is_refused_with_a_sentence(ranks):
    lines = Servers(ranks, 1)(BAD)
    assert lines[0].startswith('InvalidError 3 push of "weight" '), lines


INTERRUPTED = '''
def interrupted(call, has_begun=lambda: True):
    """Ctrl-C while call() waits; on a busy machine maybe before, but not before has_begun()."""
    def interrupt():
        threading.Event().wait(0.05)
        while not has_begun():
            pass
        os.kill(os.getpid(), signal.SIGINT)
    try:
        threading.Thread(target=interrupt).start()
        call()
    except KeyboardInterrupt:
        return True
    raise SystemExit("no KeyboardInterrupt")

server = int(sys.argv[1])
one, two = gradus.ps.Client(worker=0), gradus.ps.Client(worker=1)
tensors = [client.declare("both", 3, shards=2) for client in (one, two)]
tensors[0].set(floats([1.0] * 3))

# Ctrl-C ends the wait, and the push goes on; others have their turns meanwhile.
future = tensors[0].push_pull_start(floats([2.0] * 3))
interrupted(future.result)
waits = threading.Thread(target=future.wait)
waits.start()
assert tensors[0].pull().version == 0
tensors[1].push(floats([4.0] * 3), first=1)
waits.join()
assert future.result() == (floats([7.0] * 3), 1)
pushes = two.counters(0).pushes
interrupted(lambda: one.barrier("all", 2), lambda: two.counters(0).pushes > pushes)
interrupted(lambda: two.barrier("none", 3))
two.barrier("all", 2)

# A client that is not wanted any more leaves, also if Ctrl-C comes when its thread has just begun.
start, begun = threading.Thread.start, []

def interrupted_start(thread):
    threading.Thread.start = start
    start(thread)
    begun.append(thread)
    raise KeyboardInterrupt

threading.Thread.start = interrupted_start
refused(KeyboardInterrupt, lambda: gradus.ps.Client(worker=5))
begun[0].join()
again = None
while again is None:
    try:
        again = gradus.ps.Client(worker=5)
    except gradus.InUseError:  # the server has not seen it leave yet
        pass
again.close()

# So it is where the library cannot be left.
os.kill(server, signal.SIGSTOP)
interrupted(lambda: one.declare("later", 3))
interrupted(lambda: gradus.ps.Client(worker=5))
late = (gradus.TimeoutError, gradus.PeerLostError)  # it has accepted the connection, or has not
assert refused(late, lambda: gradus.ps.Client(worker=6, timeout=0.05)).peer == 0
third = tensors[1].pull_start()
assert not third.wait(0.01)
interrupted(lambda: two.declare("later", 3))
two.close()  # when the servers have answered
os.kill(server, signal.SIGCONT)
assert isinstance(third.exception(60), gradus.CancelledError)
one.declare("later", 3).set(floats([3.0] * 3))
assert list(one.find("later").pull().values) == [3.0] * 3

# Who waits when another thread closes hears of it.
left = threading.Event()
waits = one.declare("both", 3, shards=2).pull_start(version=2)
threading.Thread(target=lambda: (one.close(), left.set())).start()
assert isinstance(waits.exception(60), gradus.CancelledError)
left.wait()
one = gradus.ps.Client(worker=0)
later = one.find("later")

# A server that dies is an error of all that it had, again and again.
waits = later.pull_start(version=7)
os.kill(server, signal.SIGKILL)
for call in (waits.result, later.pull, lambda: later.set(floats([0.0] * 3)),
             lambda: one.counters(0)):
    error = refused(gradus.PeerLostError, call)
    assert (error.rank, error.peer, error.usable) == (0, 0, False), error
    assert "parameter server 0 is lost" in str(error), error
print("ok")
'''


def test_ps_waits_end_with_ctrl_c_with_close_and_with_the_server(ranks):
    servers = Servers(ranks, 1)
    assert servers(INTERRUPTED, servers.servers[0].pid) == ["ok"]


LOST = '''
client = gradus.ps.Client(worker=0)
tensors = [client.declare(f"layer {i}", 3000, optimizer={"kind": "sgd", "momentum": 0.0})
           for i in range(8)]
table = client.declare_table("words", 1000, 2, optimizer={"kind": "sgd", "momentum": 0.0})
for tensor in tensors:
    tensor.set(floats([0.0] * 3000))
while client.counters(0).unreplicated or client.counters(1).unreplicated:
    pass
for step in range(6):
    futures = [tensor.push_pull_start(floats([1.0] * 3000), rate=1.0) for tensor in tensors]
    rows = table.push_start(range(20), floats([1.0] * 40), rate=1.0)
    if step == 2:
        os.kill(int(sys.argv[1]), signal.SIGKILL)
    for future in futures:
        assert list(future.result().values) == [-1.0 - step] * 3000
    rows.result()
    assert list(table.pull(range(20), version=step + 1).values) == [-1.0 - step] * 40
assert refused(gradus.PeerLostError, lambda: client.counters(1)).peer == 1
print("ok")
'''


def test_ps_client_goes_on_without_a_killed_server_that_has_replicas(ranks):
    servers = Servers(ranks, 2)
    assert servers(LOST, servers.servers[1].pid) == ["ok"]
