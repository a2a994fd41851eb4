# SPDX-License-Identifier: Apache-2.0
"""What happens when something dies, hangs or lies; and that nothing is left behind."""
import os
import pathlib
import re
import signal
import socket
import subprocess

import pytest
from conftest import TIMEOUT_S, read_lines, wait_until
from processes import kill_agent

OUTLIVE = "0"  # test_outlive has what happens else


def sh(text):
    return ["--", "sh", "-c", text]


def worker_pids(job, count):
    """Of workers that print "RANK PID" first."""
    found = {}
    for line in read_lines(job.stdout, count):
        rank, pid = line.split("] ")[1].split()
        found[int(rank)] = int(pid)
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


# ---- The first failure ends the job --------------------------------------------------------------

def test_exit_code_is_named_with_the_last_lines(gradus):
    done = gradus("run", "-np", 4, *sh(
        'if [ $RANK = 2 ]; then seq 100 >&2; echo "it broke" >&2; exit 3; fi; exec sleep 1000'))
    assert done.returncode == 1
    message = done.stderr.splitlines()
    at = next(i for i, line in enumerate(message) if line.startswith("gradus: "))
    assert re.fullmatch(r"gradus: rank 2 \(pid \d+\) exited with code 3 after \d+\.\d s; "
                        r"its last lines:", message[at])
    assert message[at + 1:] == [f"    {i}" for i in range(92, 101)] + ["    it broke"]
    gradus.wait_for_nothing()


@pytest.mark.parametrize("number, name",
                         [(signal.SIGKILL, "Killed"), (signal.SIGTERM, "Terminated"),
                                          (signal.SIGSEGV, "Segmentation fault")])
def test_killed_worker_is_named(gradus, number, name):
    job = gradus.start("run", "-np", 3, *sh("ulimit -c 0; echo $RANK $$; exec sleep 1000"))
    pids = worker_pids(job, 3)
    os.kill(pids[1], number)
    _, message = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 1
    assert re.search(rf"gradus: rank 1 \(pid {pids[1]}\) was killed by signal {number:d} "
                     rf"\({name}\) after \d+\.\d s", message), message
    gradus.wait_for_nothing()


def test_a_silent_failure(gradus):
    done = gradus("run", "-np", 2, "false")
    assert done.returncode == 1 and "exited with code 1" in done.stderr
    assert "it wrote nothing" in done.stderr


def test_a_shells_code_for_a_killed_command_is_explained(gradus):
    done = gradus("run", "-np", 1, *sh("exit 139"))
    assert "code 139" in done.stderr and "Segmentation fault" in done.stderr


def test_one_cause_is_chosen_among_many(gradus, tmp_path):
    """Rank 0 ends first, but says by its exit code that it failed only since another one did."""
    first = tmp_path / "first"
    done = gradus("run", "-np", 3, *sh(
        f"case $RANK in 0) echo $$ >{first}.new; mv {first}.new {first}; exit 76;; "
        f"1) while [ ! -e {first} ] || kill -0 $(cat {first}) 2>/dev/null; do :; done; exit 5;; "
        "*) exec sleep 1000; esac"))
    assert done.returncode == 1
    assert "gradus: rank 1" in done.stderr and "code 5" in done.stderr
    assert "rank 0 (" not in done.stderr


def test_who_lost_a_peer_is_named_when_nobody_else_is(gradus):
    done = gradus("run", "-np", 2, *sh("[ $RANK = 1 ] || exit 76"))
    assert done.returncode == 1
    assert re.search(r"gradus: rank 0 \(pid \d+\) ended with code 76 because it lost a peer",
                     done.stderr)


def test_the_others_get_time_and_are_then_killed(gradus):
    """After a failure SIGTERM comes first: rank 0 uses it, rank 1 does not listen."""
    done = gradus("run", "-np", 3, *sh(
        "case $RANK in "
        "0) trap 'echo saved; exit 0' TERM; touch ready; while :; do sleep 0.01; done;; "
        "1) trap '' TERM; while :; do sleep 0.01; done;; "
        "2) while ! [ -e ready ]; do sleep 0.01; done; exit 9; esac"))
    assert done.returncode == 1 and "rank 2" in done.stderr
    assert "[0] saved" in done.stdout
    gradus.wait_for_nothing()


# ---- Signals -------------------------------------------------------------------------------------

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_workers_get_the_signal_and_time(gradus, number):
    name = number.name[3:]
    job = gradus.start("run", "-np", 2, *sh(
        f"trap 'echo saving; echo saved; exit 0' {name}; echo $RANK $$; "
        "while :; do sleep 0.01; done"))
    worker_pids(job, 2)
    job.send_signal(number)
    out, message = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 1
    assert sorted(out.splitlines()) == ["[0] saved", "[0] saving", "[1] saved", "[1] saving"]
    assert f"gradus: ended by {number.name}" in message and "have ended" in message
    gradus.wait_for_nothing()


def test_a_signal_that_is_ignored_stays_so(gradus):
    """As under nohup."""
    job = gradus.start("run", "-np", 1, *sh("echo $RANK $$; while :; do sleep 0.01; done"),
                       preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    worker_pids(job, 1)
    job.send_signal(signal.SIGHUP)
    job.terminate()
    _, message = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 1 and "ended by SIGTERM" in message


def test_the_program_behind_a_shell_gets_the_signal_and_time_too(gradus, tmp_path):
    """The shell dies of SIGTERM at once; its child is saving, and is not killed for that."""
    child = tmp_path / "child.sh"
    child.write_text(f"trap 'mkfifo {tmp_path}/saving; cat {tmp_path}/saving; "
                     f"touch {tmp_path}/saved; exit 0' TERM\necho 0 $$\n"
                     "while :; do sleep 0.01; done\n")
    job = gradus.start("run", "-np", 1, "--grace", "30s", *sh(f"sh {child}; true"))
    pid = worker_pids(job, 1)[0]
    worker = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    job.terminate()
    wait_until(lambda: not alive(worker), "the end of the shell")
    wait_until((tmp_path / "saving").exists, "the child to begin saving")
    assert alive(pid)
    (tmp_path / "saving").write_text("now\n")
    job.communicate(timeout=TIMEOUT_S)
    assert (tmp_path / "saved").exists()


def test_grace_ends_with_sigkill(gradus):
    job = gradus.start("run", "-np", 2, "--grace", "200ms",
                       *sh("trap '' TERM; echo $RANK $$; while :; do sleep 0.01; done"))
    worker_pids(job, 2)
    job.terminate()
    _, message = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 1 and "2 of 2 workers did not end on their own" in message
    gradus.wait_for_nothing()


def test_a_second_sigint_kills_at_once(gradus):
    job = gradus.start("run", "-np", 2, "--grace", "1h", *sh(
        "trap 'echo heard' INT; echo $RANK $$; while :; do sleep 0.01; done"))
    worker_pids(job, 2)
    job.send_signal(signal.SIGINT)
    assert sorted(read_lines(job.stdout, 2)) == ["[0] heard", "[1] heard"]
    job.send_signal(signal.SIGINT)
    _, message = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 1 and "SIGINT" in message
    gradus.wait_for_nothing()


def test_a_stopped_worker_ends_too(gradus):
    job = gradus.start("run", "-np", 2, "--grace", "1h", *sh(
        "trap 'echo saved; exit 0' TERM; echo $RANK $$; while :; do sleep 0.01; done"))
    pids = worker_pids(job, 2)
    os.kill(pids[0], signal.SIGSTOP)
    job.terminate()
    out, _ = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 1 and sorted(out.split("\n")) == ["", "[0] saved", "[1] saved"]


# ---- Nothing is left behind ----------------------------------------------------------------------

# A worker with a child, one that has left its session by a double fork, and one that hears no
# signal.
FAMILY = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"])
ours, theirs = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(theirs, b"%d" % os.getpid())
        os.closerange(0, 100)
        signal.pause()
    os._exit(0)
os.wait()
daemon = int(os.read(ours, 20))
print("up", os.getpid(), child.pid, daemon, flush=True)
mode = sys.argv[1]
if mode == "leave":
    os._exit(0)
if mode == "fail":
    try:
        os.mkfifo("up")
    except FileExistsError:
        pass
    if os.environ["RANK"] == "0":
        open("up", "w").close()
    if os.environ["RANK"] == "1":
        open("up").read()  # until rank 0 is up
        os._exit(4)
signal.pause()
"""


def family_pids(job, workers):
    return [int(word) for line in read_lines(job.stdout, workers) for word in line.split()[2:]]


def launcher_and_agent(gradus, job):
    agent = [pid for pid, name in gradus.remains().items() if name == "gradus-agent"]
    assert len(agent) == 1
    return job.pid, agent[0]


@pytest.mark.parametrize("who", ["launcher", "agent"])
def test_no_orphan_survives_sigkill(gradus, script, who):
    job = gradus.start("run", "-np", 3, "--", *script(FAMILY), "stay")
    pids = family_pids(job, 3)
    assert len(pids) == 9 and all(map(alive, pids))
    launcher, agent = launcher_and_agent(gradus, job)
    if who == "agent":
        kill_agent(agent)
    else:
        os.kill(launcher, signal.SIGKILL)
    out, message = job.communicate(timeout=TIMEOUT_S)
    gradus.wait_for_nothing()
    assert not any(map(alive, pids))
    if who == "agent":
        assert job.returncode == 1 and "gradus-agent" in message and "was killed" in message


@pytest.mark.parametrize("mode, code", [("leave", 0), ("fail", 1)])
def test_no_daemon_survives_the_end(gradus, script, mode, code):
    job = gradus.start("run", "-np", 2, "--grace", "100ms", "--", *script(FAMILY), mode)
    pids = family_pids(job, 2)
    job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == code
    assert not any(map(alive, pids)) and not gradus.remains()


def test_a_fork_storm_is_ended(gradus, tmp_path):
    """Processes that go on forking while they are being killed."""
    job = gradus.start("run", "-np", 2, "--grace", "0s", *sh(
        "trap '' TERM; storm() { setsid sh -c 'echo up; exec sleep 1000' & }; "
        "for i in 1 2 3 4 5 6 7 8 9 10; do storm; done; wait"))
    read_lines(job.stdout, 20)
    job.terminate()
    job.communicate(timeout=TIMEOUT_S)
    assert not gradus.remains()


def abstract_sockets():
    with open("/proc/net/unix") as file:
        return {line.split()[-1] for line in file if "@" in line}


def new_files(before, folder):
    """Those of other tests are among them, which go on meanwhile."""
    paths = [os.path.join(folder, name) for name in set(os.listdir(folder)) - before
             if name.startswith("gr")]
    return [path for path in paths if not os.path.isdir(path)]


@pytest.mark.parametrize("how", ["end", "fail", "kill"])
def test_no_socket_memory_or_temporary_file_is_left(gradus, comm_script, how):
    """A memory file has no name: it lives as long as a process that has it, and none is left."""
    before = {folder: set(os.listdir(folder)) for folder in ("/dev/shm", "/tmp")}
    job = gradus.start("run", "-np", 3, "--", *comm_script("""
create()
print("joined", os.environ["GRADUS_COORDINATOR"], flush=True)
barrier()  # all have said so
if sys.argv[1] == "fail" and rank == 1:
    os._exit(2)
if sys.argv[1] == "end":
    library.gr_comm_destroy(comm)
    sys.exit(0)
import signal
signal.pause()
"""), how)
    address = read_lines(job.stdout, 3)[0].split()[-1]
    name = address.removeprefix("unix:")
    if how == "kill":
        assert name in abstract_sockets()
        job.kill()
    job.communicate(timeout=TIMEOUT_S)
    gradus.wait_for_nothing()
    assert job.returncode == {"end": 0, "fail": 1, "kill": -9}[how]
    wait_until(lambda: name not in abstract_sockets(), "the end of the socket")
    left = [path for folder, names in before.items() for path in new_files(names, folder)]
    wait_until(lambda: not any(map(os.path.lexists, left)), f"the end of {left}")
    assert sorted(path.name for path in gradus.folder.iterdir()) == ["comm.py"]  # TMPDIR, too


# ---- Joining -------------------------------------------------------------------------------------

def test_a_group_joins_and_works(gradus, comm_script):
    done = gradus("run", "-np", 4, "--", *comm_script("""
create()
print("barrier", barrier(), library.gr_comm_rank(comm) == rank, library.gr_comm_size(comm))
library.gr_comm_destroy(comm)
"""))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] barrier 0 True 4" for r in range(4)]


def test_who_never_calls_in_is_named(gradus, comm_script):
    """The time begins when one has joined: only one does, since a second one may be late."""
    done = gradus("run", "-np", 3, "--start-timeout", "500ms", "--", *comm_script("""
if rank != 1:
    import signal
    signal.pause()
create()
"""))
    assert done.returncode == 1
    assert "gradus: ranks 0 and 2 did not join the group within" in done.stderr
    assert "--start-timeout" in done.stderr
    gradus.wait_for_nothing()


def test_who_ends_without_calling_in_is_named_at_once(gradus, comm_script):
    done = gradus("run", "-np", 3, "--start-timeout", "1h", "--", *comm_script("""
if rank == 1:
    sys.exit(0)
create()
"""), timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert "gradus: rank 1 did not join the group that the others wait in" in done.stderr


def test_programs_that_never_join_are_fine(gradus):
    assert gradus("run", "-np", 4, "--start-timeout", "10ms", *sh("sleep 0.1")).returncode == 0


def test_a_killed_member_is_the_cause_not_its_peers(gradus, comm_script):
    job = gradus.start("run", "-np", 4, "--", *comm_script("""
create()
barrier()
print(rank, os.getpid(), flush=True)
status = 0
while status == 0:
    status = barrier()
sys.exit(11)
"""))
    pids = worker_pids(job, 4)
    os.kill(pids[2], signal.SIGKILL)
    _, message = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 1
    assert f"gradus: rank 2 (pid {pids[2]}) was killed by signal 9 (Killed)" in message
    said = message.split("what the ranks did last:\n")[1].splitlines()
    assert len(said) == 4 and said[0].startswith("    rank 2: ")  # the dead one first
    assert all(re.match(r"    rank \d: .*operation.*\d+, barrier", line) for line in said), said
    gradus.wait_for_nothing()


def test_garbage_on_the_coordinators_socket_disturbs_nobody(gradus, comm_script, tmp_path):
    for rank in (0, 1):
        os.mkfifo(tmp_path / f"go{rank}")
    job = gradus.start("run", "-np", 2, "--", *comm_script(f"""
print(os.environ["GRADUS_COORDINATOR"], flush=True)
open({str(tmp_path / 'go')!r} + str(rank)).read()  # a FIFO: waits for the test
create()
print("barrier", barrier(), flush=True)
library.gr_comm_destroy(comm)
"""))
    address = read_lines(job.stdout, 1)[0].split("unix:@")[1]
    intruders = []
    for data in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\0" * 4096, os.urandom(65536)):
        intruder = socket.socket(socket.AF_UNIX)
        intruder.settimeout(20)
        intruder.connect("\0" + address)
        try:
            intruder.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # shown the door
        intruders.append(intruder)
    for rank in (0, 1):
        (tmp_path / f"go{rank}").write_text("go")
    out, message = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 0, message
    assert out.count("barrier 0") == 2
    for intruder in intruders:
        intruder.close()


def test_wrong_secret_is_refused(gradus, comm_script):
    done = gradus("run", "-np", 2, "--start-timeout", "1s", "--", *comm_script("""
if rank == 1:
    os.environ["GRADUS_SECRET"] = "0" * 64
create()
"""))
    assert done.returncode == 1
    gradus.wait_for_nothing()


def test_launcher_in_a_pipeline_ends_with_its_status(gradus):
    """The shell's view: exit codes, and nothing on stdout that is not the workers'."""
    done = subprocess.run(["sh", "-c", '"$0" run -np 2 false | cat; exec "$0" run -np 2 true',
                           gradus.program], env=gradus.environment(), capture_output=True,
                          text=True,
                          timeout=TIMEOUT_S)
    assert done.returncode == 0 and done.stdout == ""
