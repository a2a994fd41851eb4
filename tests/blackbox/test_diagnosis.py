# SPDX-License-Identifier: Apache-2.0
"""What is said when ranks disagree, hang or die; and the timeline of what they did."""
import json
import os
import re
import select
import signal
import socket

import pytest
from conftest import TIMEOUT_S, read_lines, wait_until
from processes import state_of
from test_training import short_job

# Behind comm_script's own lines: gr_call as ctypes has it, and gr_run.
CALLS = """
import json, signal
class Call(ctypes.Structure):
    _fields_ = [("coll", ctypes.c_int), ("dtype", ctypes.c_int), ("op", ctypes.c_int),
                ("input", ctypes.c_void_p), ("out", ctypes.c_void_p), ("count", ctypes.c_size_t),
                ("counts", ctypes.c_void_p), ("recv_counts", ctypes.c_void_p),
                ("root", ctypes.c_int), ("tag", ctypes.c_uint32), ("prescale", ctypes.c_double),
                ("postscale", ctypes.c_double), ("reduce", ctypes.c_void_p),
                ("reduce_arg", ctypes.c_void_p), ("shards", ctypes.c_int),
                ("partials", ctypes.c_void_p), ("name", ctypes.c_char_p), ("site", ctypes.c_char_p),
                ("done", ctypes.c_void_p), ("done_arg", ctypes.c_void_p)]
class Full(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int32), ("peer_rank", ctypes.c_int32),
                ("text", ctypes.c_char * 512)]
library.gr_comm_diag.restype = ctypes.POINTER(Full)
COLLS = {"allreduce": 0, "reduce_scatter": 1, "allgather": 2, "broadcast": 3, "barrier": 4,
         "reduce": 5}
memory = ctypes.create_string_buffer(1 << 16)
def run(kind, site, count=100, dtype=0, op=0, root=0, name=None):
    call = Call(coll=COLLS[kind], dtype=dtype, op=op, out=ctypes.addressof(memory), count=count,
                root=root, name=name.encode() if name else None, site=site.encode())
    return library.gr_run(comm, ctypes.byref(call), 1)
def cause():
    return library.gr_comm_diag(comm).contents.text.decode()
"""

ENVIRONMENT = {"GRADUS_TUNE": "off"}


def environment(link, algorithm=None, **more):
    chosen = {"GRADUS_ALGORITHM": algorithm, "GRADUS_EXACT": "no"} if algorithm else {}
    return ENVIRONMENT | {"GRADUS_LINK": link} | chosen | more


# ---- Ranks disagree ------------------------------------------------------------------------------

# What the ranks call, what the last rank calls instead, and what both sides must be called.
MISMATCHES = {
    "kind": (["allreduce"], ["broadcast"], "allreduce of 100 f32", "broadcast of 100 f32"),
    "order": (["allreduce", "barrier"], ["barrier", "allreduce"], "allreduce of 100 f32",
              "barrier"),
    "type": (["allreduce"], [("allreduce", {"dtype": 1})], "of 100 f32", "of 100 f64"),
    "count": (["allreduce"], [("allreduce", {"count": 101})], "of 100 f32", "of 101 f32"),
    "op": (["allreduce"], [("allreduce", {"op": 3})], "(sum over", "(max over"),
    # A root has done its part when it has sent: it learns of it in what comes next.
    "root": (["broadcast", "barrier"], [("broadcast", {"root": 1}), "barrier"], "from rank 0",
             "from rank 1"),
    "name": ([("allreduce", {"name": "grads"})], [("allreduce", {"name": "loss"})],
             '"grads"', '"loss"'),
}


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("link", ["shm", "tcp"])
@pytest.mark.parametrize("what", MISMATCHES)
def test_ranks_that_differ_are_told_on_all_ranks(gradus, comm_script, what, link, workers):
    ours, theirs, our_words, their_words = MISMATCHES[what]
    words = comm_script(CALLS + f"""
ours, theirs = {ours!r}, {theirs!r}
create()
other = rank == {workers} - 1
status = barrier() # which others may have left already, and have failed behind it
for call in (theirs if other else ours):
    kind, more = call if isinstance(call, tuple) else (call, {{}})
    status = status or run(kind, "theirs.c:22" if other else "ours.c:11", **more)
print(json.dumps([rank, status, cause()]), flush=True)
sys.exit(0)
""")
    done = gradus("run", "-np", workers, "--no-prefix", "--", *words, env=environment(link))
    said = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert [line[0] for line in said] == list(range(workers)), done.stdout + done.stderr
    for rank, status, text in said:
        assert status in (-40, -41), (rank, status, text)
        assert f"rank {workers - 1}" in text and "different" in text, text
        assert our_words in text and their_words in text, text
        assert "ours.c:11" in text and "theirs.c:22" in text, text


# ---- It hangs ------------------------------------------------------------------------------------

# Rank 1 stops, or is busy elsewhere, when the others are in operation number `last` + 1.
HANG = CALLS + """
create()
for i in range(5):
    assert run("allreduce", f"loop.c:{i}", name="grads") == 0
open(f"past{rank}", "w").close()
if rank == 1:
    while not all(os.path.exists(f"past{other}")
                  for other in range(int(os.environ["GRADUS_WORLD_SIZE"]))):
        pass  # what dies takes along what it had not sent yet
    print("away", os.getpid(), flush=True)
    leave()
status = run("allreduce", "loop.c:5", name="late")
print(json.dumps([rank, status, cause()]), flush=True)
sys.exit(0 if status == 0 else 76)
"""
STOPS = "def leave():\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
# The others have a moment to say how they were told of it.
DIES = """
def leave():
    os.kill(os.getpid(), signal.SIGKILL)
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
BUSY = "def leave():\n    while not os.path.exists('back'): pass\n"
WAYS = [("shm", None), ("tcp", "allreduce=direct"),
        *(pytest.param("shm", f"allreduce={name}", marks=pytest.mark.long)
          for name in ("direct", "ring"))]
# Longer than a rank on a busy machine waits for a core: only rank 1 is told of.
STALL = "2s"


def check_hang_sentence(text):
    assert re.search(rf"rank 1 \(host {re.escape(socket.gethostname())}\)", text), text
    assert '"late"' in text and "loop.c:5" in text, text  # what it is missing
    # Numbers count the program's own operations.
    assert "operation 6 (allreduce of 100 f32" in text, text
    assert "the last that came from it was of operation 5 (allreduce of 100 f32" in text, text


@pytest.mark.parametrize("link, algorithm", WAYS)
def test_a_stopped_rank_is_named(gradus, comm_script, link, algorithm):
    words = comm_script(STOPS + HANG)
    # By ring rank 2 is beside rank 1, and has a quarter of the time more than rank 3, which may be
    # less than it waits for a core.
    stall = "8s" if algorithm == "allreduce=ring" else STALL
    done = gradus("run", "-np", 4, "--grace", "0.2s", "--", *words,
                  env=environment(link, algorithm, GRADUS_STALL_FAIL=stall))
    assert done.returncode == 1, done
    said = [json.loads(line.split("] ", 1)[1]) for line in done.stdout.splitlines()
            if "away" not in line]
    assert sorted(line[0] for line in said) == [0, 2, 3], done.stdout + done.stderr
    for rank, status, text in said:
        assert status in (-21, -41), (rank, status, text)
        assert "GRADUS_STALL_FAIL" in text and "has waited" in text, text
    # Whoever noticed it first has told the others.
    check_hang_sentence(said[0][2])
    gradus.wait_for_nothing()


@pytest.mark.parametrize("link, algorithm", WAYS)
def test_a_rank_that_comes_back_is_only_told_of(gradus, comm_script, link, algorithm, tmp_path):
    words = comm_script(BUSY + HANG)
    job = gradus.start("run", "-np", 4, "--", *words,
                       env=environment(link, algorithm, GRADUS_STALL_WARN=STALL))
    # Who waits for it by way of others names it as well, but knows less. Lines may come several at
    # once, so the pipe is read as it is. Operations before this one may have waited for a core.
    text, warnings = "", []
    while not any("the last that came" in line for line in warnings):
        ready, _, _ = select.select([job.stderr], [], [], TIMEOUT_S)
        assert ready, f"nobody named rank 1: {text}"
        text += os.read(job.stderr.fileno(), 65536).decode()
        warnings = [line for line in text.split("\n")[:-1] if '"late"' in line]
    assert all("gradus: warning: coll:" in line and "has waited" in line for line in warnings), text
    check_hang_sentence(next(line for line in warnings if "the last that came" in line))
    assert all("for rank 1 (" in line for line in warnings), text
    (tmp_path / "back").touch()
    out, _ = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 0, out


def test_a_stopped_rank_that_goes_on(gradus, comm_script):
    words = comm_script(STOPS + HANG)
    job = gradus.start("run", "-np", 2, "--", *words,
                       env=environment("shm", GRADUS_STALL_WARN="300ms"))
    pid = int(read_lines(job.stdout, 1)[0].split()[-1])
    # Operations before this one may have waited for a core.
    check_hang_sentence(next(line for line in job.stderr if '"late"' in line))
    wait_until(lambda: state_of(pid) == "T", "the stop, which may come after the sentence")
    os.kill(pid, signal.SIGCONT)
    job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 0


# ---- A worker died -------------------------------------------------------------------------------

@pytest.mark.parametrize("link, algorithm", WAYS)
def test_a_dead_rank_is_named_with_its_signal(gradus, comm_script, link, algorithm):
    words = comm_script(DIES + HANG)
    done = gradus("run", "-np", 4, "--", *words, env=environment(link, algorithm))
    assert done.returncode == 1
    assert re.search(r"gradus: rank 1 \(pid \d+\) was killed by signal 9 \(Killed\)",
                     done.stderr), done.stderr
    said = [json.loads(line.split("] ", 1)[1]) for line in done.stdout.splitlines()
            if "away" not in line]
    assert sorted(line[0] for line in said) == [0, 2, 3], done.stdout + done.stderr
    for rank, status, text in said:
        assert status in (-20, -41) and "rank 1" in text, (rank, status, text)


# ---- The timeline --------------------------------------------------------------------------------

def spans(trace, **wanted):
    return [event for event in trace["traceEvents"]
            if event["ph"] == "X" and all(event.get(key) == value for key, value in wanted.items())]


def check_nesting(trace):
    """On each track an event lies in another one or beside it: so the viewers want it."""
    tracks = {}
    for event in spans(trace):
        tracks.setdefault((event["pid"], event["tid"]), []).append(
            (event["ts"], -event["dur"]))
    for track, events in tracks.items():
        open_ends = []
        for start, minus in sorted(events):
            end = start - minus
            while open_ends and open_ends[-1] <= start + 0.002:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.002, (track, start, end, open_ends)
            open_ends.append(end)


@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_timeline_of_a_training(gradus, tmp_path, link):
    steps, workers = 8, 4
    job = short_job(tmp_path, "mlp", steps=steps)
    done = gradus("run", "-np", workers, "--link", link, "--timeline", "t.json", job)
    assert done.returncode == 0, done.stderr
    assert f"timeline {tmp_path}/t.json: {workers} ranks" in done.stderr
    assert sorted(p.name for p in tmp_path.glob("t.json*")) == ["t.json"]
    trace = json.loads((tmp_path / "t.json").read_text())
    check_nesting(trace)
    host = socket.gethostname()
    names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"]
             if event["name"] == "process_name"}
    assert names == {rank: f"rank {rank} on {host}" for rank in range(workers)}
    for rank in range(workers):
        for phase in ("step", "data", "forward", "backward", "wait", "update"):
            found = spans(trace, pid=rank, cat="train", name=phase)
            assert len(found) >= steps, (rank, phase)
        assert [s["args"]["step"]
                for s in spans(trace, pid=rank, name="step")] == list(range(1, steps + 1))
        # Phases lie in their step.
        whole = spans(trace, pid=rank, name="step")
        for phase in spans(trace, pid=rank, name="backward"):
            assert any(s["ts"] <= phase["ts"] and
                       phase["ts"] + phase["dur"] <= s["ts"] + s["dur"] + 0.002 for s in whole)
    # One clock: nobody ends an allreduce before all have begun it.
    by_number = {}
    for event in spans(trace, cat="comm"):
        arguments = event["args"]
        assert arguments.get("bytes", 0) >= 0
        assert "algorithm" in arguments and "status" not in arguments
        if arguments["kind"] == "allreduce":
            by_number.setdefault(arguments["operation"], []).append(event)
    assert len(by_number) >= steps
    for events in by_number.values():
        assert sorted(e["pid"] for e in events) == list(range(workers))
        assert len({(e["args"]["count"], e["args"]["type"], e["args"]["op"]) for e in events}) == 1
        last_start = max(e["ts"] for e in events)
        first_end = min(e["ts"] + e["dur"] for e in events)
        assert last_start <= first_end + 20, events


def test_timeline_of_a_job_that_dies(gradus, comm_script, tmp_path):
    """The one that is killed leaves what it did, the others how they were told of it."""
    words = comm_script(DIES + HANG)
    done = gradus("run", "-np", 3, "--timeline", "t.json", "--", *words, env=environment("shm"))
    assert done.returncode == 1 and "was killed by signal 9" in done.stderr
    trace = json.loads((tmp_path / "t.json").read_text())
    check_nesting(trace)
    assert len(spans(trace, pid=1, name="allreduce grads")) == 5
    for rank in (0, 2):
        assert len(spans(trace, pid=rank, name="allreduce grads")) == 5
        late = spans(trace, pid=rank, name="allreduce late")
        assert [e["args"]["site"] for e in late] == ["loop.c:5"]
        assert late[0]["args"]["status"].startswith("GR_E_")
        failure = [e for e in trace["traceEvents"] if e["name"] == "failure" and e["pid"] == rank]
        assert len(failure) == 1 and "rank 1" in failure[0]["args"]["text"]


def test_timeline_shows_who_was_waited_for(gradus, comm_script, tmp_path):
    words = comm_script(BUSY + HANG)
    job = gradus.start("run", "-np", 4, "--timeline", "t.json", "--", *words,
                       env=environment("shm", GRADUS_STALL_WARN="100ms"))
    waiting = {0, 2, 3}
    while waiting:  # on a busy machine one of them may come long after another one
        line, = read_lines(job.stderr, 1)
        if '"late"' in line:
            waiting -= {int(rank) for rank in re.findall(r"on rank (\d+) has waited", line)}
    (tmp_path / "back").touch()
    job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 0
    trace = json.loads((tmp_path / "t.json").read_text())
    for rank in (0, 2, 3):
        late = spans(trace, pid=rank, name="allreduce late")[0]
        assert late["args"]["waited_for_rank"] == 1
        assert 50e3 < late["args"]["waited_us"] <= late["dur"]
    assert any(e["name"] == "stall" and "rank 1" in e["args"]["text"] for e in trace["traceEvents"])


def test_timeline_without_a_launcher(gradus, comm_script, tmp_path):
    """When the job ends with its launcher, `gradus timeline` makes the file."""
    words = comm_script(STOPS + HANG)
    job = gradus.start("run", "-np", 2, "--outlive", "0", "--timeline", "t.json", "--", *words,
                       env=environment("shm"))
    read_lines(job.stdout, 1)
    job.kill()
    job.communicate()
    gradus.wait_for_nothing()
    assert sorted(p.name for p in tmp_path.glob("t.json*")) == ["t.json.0", "t.json.1"]
    done = gradus("timeline", "t.json")
    assert done.returncode == 0 and "timeline t.json: 2 ranks" in done.stderr
    trace = json.loads((tmp_path / "t.json").read_text())
    check_nesting(trace)
    assert len(spans(trace, name="allreduce grads")) == 10
    again = gradus("timeline", "t.json")
    assert again.returncode == 2 and "no parts of a timeline" in again.stderr


def test_a_timeline_that_cannot_be_written(gradus, comm_script):
    done = gradus("run", "-np", 2, "--", "env", "GRADUS_TIMELINE=none/t.json",
                  *comm_script("create()\n"))
    assert done.returncode == 1
    assert "the timeline cannot be written to" in done.stderr
    assert "none/t.json.0: No such file" in done.stderr
