# SPDX-License-Identifier: Apache-2.0
"""The job's secret: files that hold it, and what is left of it in processes that have joined."""
import os
import pathlib
import signal
import stat
import subprocess

import pytest
from conftest import is_sanitized, read_lines, sanitizer_words, wait_until

SECRET = "5ec4e7" + "0123456789abcdef" * 3 + "c0ffee0042"
DONE_BEFORE_S = 60


def start_rendezvous(gradus, *more, lines=2, env=None):
    """A coordinator of two ranks, and what it prints."""
    process = gradus.start("rendezvous", "-np", 2, "--listen", "127.0.0.1", "--wait", "30s", *more,
                           env=env)
    return process, dict(line.split("=", 1) for line in read_lines(process.stdout, lines))


def start_bench(gradus, told, rank, env):
    """With a hundred small sizes: it lasts longer than all that is looked at meanwhile, and has
    little memory to look through while it is stopped."""
    return gradus.start("bench", "allreduce", "--time", "300ms", "-e", "64k", "-f", 1.1,
                        env=told | env | {"GRADUS_RANK": str(rank)})


def memory_of(pid):
    """What the process can write to: (flags of the kernel and a name if it has one, bytes) of each
    piece."""
    pieces, here = [], None
    with open(f"/proc/{pid}/smaps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            words = line.split()
            if "-" in words[0] and ":" not in words[0]:
                begin, end = (int(text, 16) for text in words[0].split("-"))
                # What is larger is a sanitizer's own, mostly without memory behind it.
                small = end - begin < 64 << 20
                here = (begin, end) if words[1].startswith("rw") and small else None
                name = words[5:]
            elif words[0] == "VmFlags:" and here is not None and "[v" not in line:
                memory.seek(here[0])
                pieces.append((words[1:] + name, memory.read(here[1] - here[0])))
    return pieces


def stopped_memory_of(pid):
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "\nState:\tT" in pathlib.Path(f"/proc/{pid}/status").read_text(),
               "its threads to stop")
    return memory_of(pid)


def wiped_memory_of(pid, secret, name):
    """Who has just started a worker may not have come to wiping the text that this one got."""
    pieces = []

    def wiped():
        pieces[:] = stopped_memory_of(pid)
        os.kill(pid, signal.SIGCONT)
        return not any(secret.encode() in piece for _, piece in pieces)
    wait_until(wiped, f"{name} to wipe the secret's text")
    return pieces


def held_binary(pieces, secret=SECRET):
    """The flags of each piece of memory that the secret stands in, once for each time."""
    return [flags for flags, piece in pieces for _ in range(piece.count(bytes.fromhex(secret)))]


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("encrypt", ["no", "yes"])
def test_a_rank_that_has_joined_keeps_at_most_one_copy(gradus, elastic, encrypt):
    if sanitizer_words(gradus.library):
        pytest.skip("a sanitizer copies the environment for itself, and locks no memory")
    env = {"GRADUS_SECRET": SECRET, "GRADUS_ENCRYPT": encrypt, "GRADUS_LINK": "tcp"}
    coordinator, told = start_rendezvous(gradus, env=env)
    ranks = [start_bench(gradus, told, rank, env | ({"GRADUS_MIN_WORKERS": "1"} if elastic else {}))
             for rank in range(2)]
    read_lines(ranks[0].stdout, 5)  # the head and a first result: both have joined, and computed
    for process in (*ranks, coordinator):
        pieces = stopped_memory_of(process.pid)
        assert not any(SECRET.encode() in piece for _, piece in pieces)
        with open(f"/proc/{process.pid}/environ", "rb") as file:
            assert SECRET.encode() not in file.read()
        # The coordinator takes workers in as long as it lives; so do ranks that others may join.
        copies = 1 if process is coordinator or elastic else 0
        looks = 1
        while len(held_binary(pieces)) != copies and looks < 5:  # it was in a handshake, perhaps
            os.kill(process.pid, signal.SIGCONT)
            read_lines(ranks[0].stdout, 1)
            pieces = stopped_memory_of(process.pid)
            looks += 1
        held = held_binary(pieces)
        assert len(held) == copies, (process.args[1:3], held)
        # Neither in a dump nor in a child, and not swapped.
        assert all({"dd", "wf", "lo"} <= set(flags) for flags in held), held
        os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("remote", [False, True])
def test_who_starts_joining_workers_keeps_it_apart(gradus, tmp_path, remote):
    """The supervisor and the agents of an elastic job, here and on what passes for another host."""
    if sanitizer_words(gradus.library):
        pytest.skip("a sanitizer copies the environment for itself, and locks no memory")
    (tmp_path / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    (tmp_path / "ssh").chmod(0o755)
    launcher = gradus.start(
        "run", "-np", 2, "--min-workers", 1, "--max-workers", 3, *(["-H", "other:3"] * remote),
        "--", "sh", "-c", "echo $GRADUS_SECRET > secret$RANK; echo up; exec sleep 1000",
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    read_lines(launcher.stdout, 2)
    secret = (tmp_path / "secret0").read_text().strip()
    assert len(secret) == 64 and secret == (tmp_path / "secret1").read_text().strip()
    copies = {}
    for pid, name in gradus.remains().items():
        if name == "sleep" or name == "sh":
            continue
        pieces = wiped_memory_of(pid, secret, name)
        held = held_binary(pieces, secret)
        assert all({"dd", "wf", "lo"} <= set(flags) for flags in held), (name, held)
        copies[name] = len(held)
    # The coordinator has one, and its process for hosts that come later; the launcher needs none.
    between = {"gradus-relay": 0, "gradus-serve": 0} if remote else {}
    guard = {} if is_sanitized() else {"gradus-guard": 1}
    # What stands in for another shares its memory.
    assert copies == {"gradus": 0, "gradus-job": 1 + remote, "gradus-deputy": 1 + remote,
                      "gradus-agent": 1} | guard | between


def test_a_child_of_a_rank_does_not_inherit_it(gradus, comm_script):
    words = comm_script("""
import subprocess
create()
barrier()
child = subprocess.run(["/bin/sh", "-c", 'echo "child [$GRADUS_SECRET] $GRADUS_RANK"'],
                       capture_output=True, text=True)
print(child.stdout.strip())
library.gr_comm_destroy(comm)
""")
    done = gradus("run", "-np", 2, "--no-prefix", "--", *words)
    assert done.returncode == 0, done
    assert sorted(done.stdout.splitlines()) == ["child [] 0", "child [] 1"], done


def test_ranks_take_it_from_a_file(gradus, comm_script, tmp_path):
    path = tmp_path / "secret"
    coordinator, told = start_rendezvous(gradus, "--secret-file", path)
    assert sorted(told) == ["GRADUS_COORDINATOR", "GRADUS_WORLD_SIZE"]  # it is not printed
    made = path.stat()
    assert stat.S_IMODE(made.st_mode) == 0o600
    assert made.st_uid == os.geteuid() and made.st_size == 65
    words = comm_script("create()\nassert barrier() == 0\n"
                        "library.gr_comm_destroy(comm)\nprint('done')\n")
    told["GRADUS_SECRET_FILE"] = str(path)
    ranks = [subprocess.Popen(words, env=gradus.environment(told | {"GRADUS_RANK": str(rank)}),
                              text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    for rank in ranks:
        out, err = rank.communicate(timeout=DONE_BEFORE_S)
        assert rank.returncode == 0 and out == "done\n", err
    out, err = coordinator.communicate(timeout=DONE_BEFORE_S)
    assert coordinator.returncode == 0 and out == "", (out, err)
    # The same file serves the next job: it is taken, not made anew.
    before = path.read_text()
    again, _ = start_rendezvous(gradus, "--secret-file", path)
    again.kill()
    assert path.read_text() == before


@pytest.mark.parametrize("words", [["rendezvous", "-np", "2"], ["server"]])
def test_new_secret_is_not_written_where_no_terminal_is(gradus, words):
    done = gradus(*words)
    assert done.returncode == 2 and done.stdout == "", done
    assert "--secret-file" in done.stderr and "--print-secret" in done.stderr, done
    terminal, end = os.openpty()
    with open(terminal, "rb", buffering=0) as shown:
        process = gradus.start(*words, stdout=end, stderr=subprocess.DEVNULL)
        os.close(end)
        text = b""
        while b"GRADUS_SECRET=" not in text:
            text += shown.read(4096)
        process.terminate()
        process.communicate(timeout=DONE_BEFORE_S)
    asked = gradus.start(*words, "--print-secret")
    read_lines(asked.stdout, len(words))
    asked.terminate()
    asked.communicate(timeout=DONE_BEFORE_S)


def test_a_file_that_others_may_read_is_refused(gradus, comm_script, tmp_path):
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o640)
    done = gradus("rendezvous", "-np", 2, env={"GRADUS_SECRET_FILE": str(path)})
    assert done.returncode == 2 and SECRET not in done.stderr, done
    assert f"{path} holds a secret but has mode 0640" in " ".join(done.stderr.split()), done
    rank = subprocess.run(comm_script("create()"), capture_output=True, text=True,
                          timeout=DONE_BEFORE_S,
                          env=gradus.environment({"GRADUS_SECRET_FILE": str(path),
                                                  "GRADUS_RANK": "0",
                                                  "GRADUS_WORLD_SIZE": "2",
                                                  "GRADUS_COORDINATOR": "tcp:127.0.0.1:9"}))
    assert rank.returncode == 1 and "has mode 0640" in rank.stderr, rank


def test_a_job_of_gradus_run_has_a_secret_of_its_own(gradus, comm_script, tmp_path):
    """Whatever file the user's environment names."""
    done = gradus("run", "-np", 2, "--",
                  *comm_script("create()\nbarrier()\nlibrary.gr_comm_destroy(comm)\n"),
                  env={"GRADUS_SECRET_FILE": str(tmp_path / "missing")})
    assert done.returncode == 0, done
