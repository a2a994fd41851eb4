# SPDX-License-Identifier: Apache-2.0
"""What a communicator costs besides the user's buffers: memory for each peer, descriptors, and no
growth over many operations."""
import json
import subprocess

import pytest
from conftest import TIMEOUT_S

MIB = 1 << 20
FEWEST = 50_000  # operations
PEER_MIB = {"shm": 4, "tcp": 2}

MEASURE = """
import gc, json, time
gc.disable()
def pss():
    # Not the pages of files: how they count depends on who else runs the same program just now.
    kinds = ("Pss_Anon:", "Pss_Shmem:")
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(kinds))
def here():
    # All at rest: what several processes map counts in parts, and the parts add up.
    assert barrier() == 0
    figures = {"bytes": pss(), "files": len(os.listdir("/proc/self/fd"))}
    assert barrier() == 0
    return figures
def fill(size):
    memory = ctypes.c_void_p()
    assert library.gr_alloc(comm, ctypes.c_size_t(size), ctypes.byref(memory)) == 0
    ctypes.memset(memory, 0, size)
    return memory
def sum_of(memory, size):
    assert library.gr_allreduce(comm, memory, ctypes.c_size_t(size // 4), 0, 0) == 0
def say(**figures):
    print(json.dumps({"rank": rank} | figures), flush=True)
start = {"bytes": pss(), "files": len(os.listdir("/proc/self/fd"))}
create()
"""


def figures(gradus, comm_script, body, ranks, link, **env):
    words = comm_script(MEASURE + body)
    done = gradus("run", "-np", ranks, "--no-prefix", "--", *words, env={"GRADUS_LINK": link} | env,
                  timeout=2 * TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def skip_under_a_sanitizer(gradus):
    linked = subprocess.run(["ldd", gradus.library], capture_output=True, text=True, check=True)
    if "libasan" in linked.stdout or "libtsan" in linked.stdout:
        pytest.skip("a sanitizer's shadow memory grows with what it shadows")


@pytest.mark.parametrize("ranks, link", [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")])
def test_memory_and_descriptors_per_peer(gradus, comm_script, ranks, link):
    skip_under_a_sanitizer(gradus)
    buffer_bytes = 8 * MIB
    found = figures(gradus, comm_script, f"""
memory = fill({buffer_bytes})
for size in (4, 1024, 65536, 1 << 20, {buffer_bytes}):
    for _ in range(3):
        sum_of(memory, size)
say(start=start, end=here())
""", ranks, link)
    assert len(found) == ranks
    more = sum(row["end"]["bytes"] - row["start"]["bytes"] for row in found) - ranks * buffer_bytes
    # The library's own code and the heap's first pages are no peer's: 2 MiB a process.
    limit = ranks * (2 + (ranks - 1) * PEER_MIB[link]) * MIB
    assert more <= limit, f"{more / MIB:.1f} MiB besides the buffers; at most {limit / MIB:.0f}"
    for row in found:
        # epoll, the coordinator, the memory file, listening sockets, and a few for each peer
        assert row["end"]["files"] - row["start"]["files"] <= 8 + 4 * (ranks - 1)


ALGORITHMS = {
    "allreduce": (0, ["direct", "halving-doubling", "tree", "gather", "ring", "recursive-doubling",
                      "segmented-ring", "double-tree", "hierarchical", "hierarchical-any-order"]),
    "reduce-scatter": (1, ["direct", "ring", "recursive-halving", "hierarchical",
                           "hierarchical-any-order"]),
    "allgather": (2, ["direct", "ring", "recursive-doubling", "bruck", "hierarchical"]),
    "broadcast": (3, ["direct", "binomial", "chain", "double-tree", "hierarchical"]),
    "reduce": (5, ["direct", "binomial", "chain", "double-tree", "hierarchical",
                   "hierarchical-any-order"]),
    "gather": (6, ["direct", "binomial"]),
    "scatter": (7, ["direct", "binomial"]),
    "alltoall": (8, ["pairwise", "bruck"]),
}
BY_BLOCKS = ("reduce-scatter", "allgather", "gather", "scatter", "alltoall")

# Each algorithm has a range of sizes of its own.
STEP_BYTES = 65536
LARGE = f"""
class Call(ctypes.Structure):
    _fields_ = [("coll", ctypes.c_int), ("dtype", ctypes.c_int), ("op", ctypes.c_int),
                ("in_", ctypes.c_void_p), ("out", ctypes.c_void_p), ("count", ctypes.c_size_t),
                ("rest", ctypes.c_size_t * 16)]
algorithms, by_blocks, step = {ALGORITHMS}, {BY_BLOCKS}, {STEP_BYTES}
large = int(os.environ["LARGE"])
ranks = library.gr_comm_size(comm)
one, other = fill(large + 16 * step), fill(large + 16 * step)
def run(name, nth, in_place):
    count = (large + nth * step) // 4 // ranks
    whole, block = ctypes.c_void_p(one.value), ctypes.c_void_p(one.value + rank * count * 4)
    call = Call(coll=algorithms[name][0], out=other,
                count=count if name in by_blocks else count * ranks)
    call.in_ = one
    if in_place:
        call.in_ = block if name in ("allgather", "gather") else whole
        call.out = block if name in ("reduce-scatter", "scatter") else whole
    if library.gr_run(comm, ctypes.byref(call), 1) != 0:
        sys.exit(f"{{name}} has failed")
barrier()
before = here()
for name in algorithms:
    for nth in range(len(algorithms[name][1])):
        for in_place in (False, True):
            run(name, nth, in_place)
            say(what=f"{{name}}={{algorithms[name][1][nth]}}, in place: {{in_place}}",
                before=before, after=here())
"""


def rules_of(name, algorithms, large):
    ends = [large + i * STEP_BYTES - STEP_BYTES // 2 for i in range(len(algorithms) + 1)]
    ranges = [f"{name}:{first}-{end}={algorithm}"
              for first, end, algorithm in zip(ends, ends[1:], algorithms)]
    return ";".join([f"{name}:0-{ends[0]}=auto", *ranges, f"{name}:{ends[-1]}-inf=auto"])


# A slice is half a MiB of a block, so that each of these has several.
@pytest.mark.parametrize("link, ranks, large_mib",
                         [("tcp", 2, 16), ("tcp", 3, 24), ("shm", 4, 16),
                          pytest.param("tcp", 8, 8, marks=pytest.mark.long)])
def test_scratch_does_not_grow_with_the_operation(gradus, comm_script, link, ranks, large_mib):
    skip_under_a_sanitizer(gradus)
    large = large_mib * MIB
    rules = ";".join(rules_of(name, algorithms, large)
                     for name, (_, algorithms) in ALGORITHMS.items())
    found = figures(gradus, comm_script, LARGE, ranks, link, LARGE=str(large), GRADUS_EXACT="0",
                    GRADUS_ALGORITHM=rules)
    more = {}
    for row in found:
        grown = row["after"]["bytes"] - row["before"]["bytes"]
        more[row["what"]] = more.get(row["what"], 0) + grown
    assert len(more) == 2 * sum(len(algorithms) for _, algorithms in ALGORITHMS.values())
    limit = ranks * (ranks - 1) * PEER_MIB[link] * MIB
    worst = max(more, key=more.get)
    assert more[worst] <= limit, (
        f"{worst}: {more[worst] / MIB:.1f} MiB of all ranks; at most {limit / MIB:.0f}")


@pytest.mark.parametrize("link, ranks", [("tcp", 2), ("tcp", 3), ("shm", 3)])
def test_scratch_does_not_grow_with_the_operations_in_flight(gradus, comm_script, link, ranks):
    skip_under_a_sanitizer(gradus)
    found = figures(gradus, comm_script, f"""
size, count = {4 * MIB}, 32
memory = [fill(size) for _ in range(count)]
sum_of(memory[0], size)
before = here()
ops = [ctypes.c_void_p() for _ in memory]
for one, op in zip(memory, ops):
    count = ctypes.c_size_t(size // 4)
    assert library.gr_allreduce_start(comm, one, count, 0, 0, ctypes.byref(op)) == 0
for op in ops:
    assert library.gr_wait(op) == 0
say(before=before, after=here())
""", ranks, link, GRADUS_ALGORITHM="allreduce=direct")
    more = sum(row["after"]["bytes"] - row["before"]["bytes"] for row in found)
    assert more <= ranks * (ranks - 1) * PEER_MIB[link] * MIB, f"{more / MIB:.1f} MiB of all ranks"


# By shared memory without messages, by a plan over shared memory, by a plan over tcp. On a busy
# machine there are fewer of a million: as many as there is time for.
@pytest.mark.parametrize("count", [FEWEST, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("link, algorithm",
                         [("shm", "allreduce=auto"), ("shm", "allreduce=gather"),
                          ("tcp", "allreduce=auto")])
def test_memory_many_operations_does_not_grow(gradus, comm_script, link, algorithm, count):
    skip_under_a_sanitizer(gradus)
    found = figures(gradus, comm_script, f"""
memory = fill(65536)
run = library.gr_allreduce
one, many = ctypes.c_size_t(1), ctypes.c_size_t(4096)
for _ in range(5000):
    run(comm, memory, one, 0, 0)
    run(comm, memory, many, 0, 0)
before = here()
out_of_time = ctypes.cast(memory, ctypes.POINTER(ctypes.c_float))
end_s = time.monotonic() + {TIMEOUT_S / 2}
for done in range({count}):
    if done % 100 == 0:
        out_of_time[0] = done >= {FEWEST} and time.monotonic() > end_s
        if run(comm, memory, many, 0, 0):
            sys.exit("an operation failed")
        if out_of_time[0] > 0:  # of one of them, and so of all
            break
    if run(comm, memory, one, 0, 0):
        sys.exit("an operation failed")
say(before=before, after=here(), done=done)
""", 2, link, GRADUS_ALGORITHM=algorithm)
    assert len({row["done"] for row in found}) == 1 and len(found) == 2
    for row in found:
        assert row["after"]["files"] == row["before"]["files"]
        assert row["after"]["bytes"] - row["before"]["bytes"] < 128 << 10
