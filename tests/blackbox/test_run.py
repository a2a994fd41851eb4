# SPDX-License-Identifier: Apache-2.0
"""`gradus run -- command`: environment, output, cores, and the command line itself."""
import collections
import os
import pty
import re
import resource
import subprocess

import pytest
from conftest import TIMEOUT_S, read_lines, wait_until

CORES = sorted(os.sched_getaffinity(0))
# The kernel gives this port and those above it to connections and listeners.
with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
    GIVEN_PORT = int(file.read().split()[0])


def sh(text):
    return ["--", "sh", "-c", text]


# ---- The environment of a worker -----------------------------------------------------------------

def test_environment_is_complete(gradus, script):
    words = script("import json, os\nprint(json.dumps(dict(os.environ)))")
    done = gradus("run", "-np", 3, "--no-prefix", "--", *words)
    assert done.returncode == 0, done.stderr
    import json
    found = {int(env["GRADUS_RANK"]): env for env in map(json.loads, done.stdout.splitlines())}
    assert sorted(found) == [0, 1, 2]
    for rank, env in found.items():
        for name in ("GRADUS_RANK", "GRADUS_LOCAL_RANK", "RANK", "LOCAL_RANK"):
            assert env[name] == str(rank)
        for name in ("GRADUS_WORLD_SIZE", "GRADUS_LOCAL_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            assert env[name] == "3"
        assert re.fullmatch("[0-9a-f]{64}", env["GRADUS_SECRET"])
        assert env["GRADUS_COORDINATOR"].startswith("unix:@")
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert 20000 <= int(env["MASTER_PORT"]) < (GIVEN_PORT if GIVEN_PORT > 20000 else 65536)
        assert env["OMP_NUM_THREADS"] == "1"
    for name in ("GRADUS_SECRET", "GRADUS_COORDINATOR", "MASTER_PORT"):
        assert len({env[name] for env in found.values()}) == 1
    again = gradus("run", "-np", 1, "--no-prefix", "--", *words)
    assert json.loads(again.stdout)["GRADUS_SECRET"] != found[0]["GRADUS_SECRET"]


def test_the_users_environment_is_kept_or_overridden(gradus):
    echo = sh("echo $OMP_NUM_THREADS $RANK $MINE $GRADUS_LINK")
    env = {"OMP_NUM_THREADS": "7", "RANK": "99", "MINE": "yes"}
    assert gradus("run", "-np", 1, *echo, env=env).stdout == "[0] 7 0 yes\n"
    assert gradus("run", "-np", 1, "--threads", 3, "--link", "tcp", *echo,
                  env=env).stdout == "[0] 3 0 yes tcp\n"


def test_secret_is_in_no_command_line(gradus):
    job = gradus.start("run", "-np", 2, *sh("echo $GRADUS_SECRET; exec sleep 1000"))
    secret = read_lines(job.stdout, 2)[0].split()[1]
    # Launcher, agent, two workers; who is about to become another program has no environment.
    wait_until(lambda: len(gradus.remains()) >= 4, "all processes of the job")
    running = gradus.remains()
    for pid in running:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            assert secret.encode() not in file.read()
    with open(f"/proc/{job.pid}/environ", "rb") as file:
        assert secret.encode() not in file.read()


def writable_memory(pid):
    """The bytes of a process's heap, stack and data."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            begin, end = (int(text, 16) for text in line.split()[0].split("-"))
            # What is larger is a sanitizer's own, mostly without memory behind it.
            if line.split()[1].startswith("rw") and "[v" not in line and end - begin < 64 << 20:
                memory.seek(begin)
                yield memory.read(end - begin)


def test_secret_is_wiped_once_the_workers_have_it(gradus):
    job = gradus.start("run", "-np", 2, *sh("echo $GRADUS_SECRET; exec sleep 1000"))
    secret = read_lines(job.stdout, 2)[0].split()[1].encode()
    agents = [pid for pid, name in gradus.remains().items() if name == "gradus-agent"]
    try:
        open(f"/proc/{job.pid}/mem", "rb").close()
    except PermissionError:
        pytest.skip("this user may not read the memory of other processes")

    def is_held():
        """The launcher has read and forwarded the line above: there only its own copies are
        meant."""
        return any(secret in piece for piece in writable_memory(agents[0])) or \
            any(b"GRADUS_SECRET=" + secret in piece for piece in writable_memory(job.pid))
    wait_until(lambda: not is_held(), "the secret to be wiped")


def test_a_worker_has_only_its_own_descriptors_and_signals(gradus, script):
    words = script("""
import os, signal
fds = sorted(map(int, os.listdir("/proc/self/fd")))[:-1]  # the last is the folder itself
stdin = os.readlink("/proc/self/fd/0")
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":\\t") for line in lines if ":\\t" in line)
print(fds, stdin, int(status["SigBlk"], 16), os.getpgrp() == os.getpid())
""")
    done = gradus("run", "-np", 2, "--", *words)
    assert done.stdout.splitlines().count("[0] [0, 1, 2] /dev/null 0 True") == 1, done.stdout
    assert done.stdout.splitlines().count("[1] [0, 1, 2] /dev/null 0 True") == 1, done.stdout


# ---- Output --------------------------------------------------------------------------------------

def test_each_worker_reads_the_whole_of_a_text(gradus, tmp_path):
    path = tmp_path / "text"
    path.write_text("word\n" * 5000)
    done = gradus("run", "-np", 3, "--no-prefix", "--stdin", path, *sh("cat | wc -c; cat"))
    assert (done.returncode, done.stdout.split()) == (0, ["25000"] * 3), done.stderr
    path.write_bytes(b"a\0b")
    done = gradus("run", "--stdin", path, "--", "cat")
    assert done.returncode == 2 and "has a zero byte" in done.stderr
    done = gradus("run", "--stdin", tmp_path / "none", "--", "cat")
    assert done.returncode == 2 and "none" in done.stderr
    (tmp_path / "job.yaml").write_text("model: {layers: []}\n")
    done = gradus("run", "--stdin", path, tmp_path / "job.yaml")
    assert done.returncode == 2


def test_lines_of_four_ranks_are_intact(gradus, script):
    words = script("""
import os, sys
rank = os.environ["RANK"]
out = os.fdopen(1, "wb", 4093)  # lines are torn at every write
err = os.fdopen(2, "wb", 1021)
for i in range(10000):
    out.write(f"out {rank} {i} {'x' * (i % 97)}\\n".encode())
    err.write(f"err {rank} {i}\\n".encode())
""")
    done = gradus("run", "-np", 4, "--", *words)
    assert done.returncode == 0
    for name, text in (("out", done.stdout), ("err", done.stderr)):
        seen = collections.defaultdict(list)
        for line in text.splitlines():
            match = re.fullmatch(r"\[(\d)\] (\w+) (\d) (\d+)(?: (x*))?", line)
            assert match, line
            assert match[1] == match[3] and match[2] == name
            assert match[5] is None or len(match[5]) == int(match[4]) % 97
            seen[int(match[1])].append(int(match[4]))
        assert seen == {rank: list(range(10000)) for rank in range(4)}


def is_asleep(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "S"


def test_a_slow_reader_loses_nothing_and_stops_nothing(gradus):
    """More than all buffers is on its way and nobody reads: the workers are held until somebody
    does."""
    count = 600000
    job = gradus.start("run", "-np", 2, "seq", str(count))
    lines = read_lines(job.stdout, 1)
    held = [0]

    def are_held():
        asleep = [pid for pid, name in gradus.remains().items() if name == "seq" and is_asleep(pid)]
        held[0] = held[0] + 1 if len(asleep) == 2 else 0
        return held[0] == 20  # in a row: they do not just wait for the next moment
    wait_until(are_held, "the workers to be held")
    lines += job.stdout.read().splitlines()
    assert job.wait(TIMEOUT_S) == 0
    for rank in (0, 1):
        assert [line[4:] for line in lines if line.startswith(f"[{rank}]")] == \
            [str(i) for i in range(1, count + 1)]


def test_a_reader_that_does_not_read_can_be_left(gradus):
    job = gradus.start("run", "-np", 2, "--grace", "1s", 
                       *sh("while :; do echo xxxxxxxxxxxxxxxxx; done"))
    read_lines(job.stdout, 1)
    job.terminate()
    wait_until(lambda: {*gradus.remains().values()} <= {"gradus", "gradus-job", "gradus-deputy"},
               "the end of the workers")
    job.stdout.close()
    assert job.wait(TIMEOUT_S) == 1


def test_a_reader_that_goes_ends_the_job(gradus):
    job = gradus.start("run", "-np", 2, *sh("while :; do echo x; done"))
    read_lines(job.stdout, 1)
    job.stdout.close()
    assert job.wait(TIMEOUT_S) == 1
    assert "cannot be written any more" in job.stderr.read()


def test_partial_long_and_binary_lines(gradus, script):
    words = script("""
import os, sys
raw = os.fdopen(1, "wb", 0)
raw.write(b"zero \\0 high \\xff\\xfe esc \\x1b no newline at the end of " + b"y" * 200000 + b"\\n")
raw.write(b"z" * 65536 + b"\\n" + b"tail")
""")
    done = gradus("run", "-np", 1, "--", *words, text=False)
    lines = done.stdout.split(b"\n")
    assert lines.pop() == b""
    assert all(line.startswith(b"[0] ") for line in lines)
    pieces = [line[4:] for line in lines]
    assert pieces[-1] == b"tail" and pieces[-2] == b"z" * 65536
    assert b"".join(pieces[:-2]) == \
        b"zero \0 high \xff\xfe esc \x1b no newline at the end of " + b"y" * 200000
    assert max(map(len, pieces)) <= 65536 and len(pieces) == 6


def test_quiet_shows_rank_0_only(gradus):
    done = gradus("run", "-np", 3, "-q", *sh("echo out $RANK; echo err $RANK >&2"))
    assert (done.stdout, done.stderr) == ("[0] out 0\n", "[0] err 0\n")


def test_log_dir_has_a_file_for_each_stream(gradus, tmp_path):
    logs = tmp_path / "deep" / "logs"
    done = gradus("run", "-np", 2, "-q", "--log-dir", logs,
                  *sh("printf 'out %s' $RANK; echo err $RANK >&2"))
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_text() for path in logs.iterdir()} == {
        "rank.0.out": "out 0", "rank.0.err": "err 0\n",
        "rank.1.out": "out 1", "rank.1.err": "err 1\n"}
    (tmp_path / "file").write_text("")
    done = gradus("run", "-np", 2, "--log-dir", tmp_path / "file", *sh("echo started"))
    assert done.returncode == 2 and "started" not in done.stdout and "file" in done.stderr


def test_log_dir_with_a_fifo_is_refused(gradus, tmp_path):
    os.mkfifo(tmp_path / "rank.1.err")
    done = gradus("run", "-np", 2, "--log-dir", tmp_path, *sh("echo started"))
    assert done.returncode == 2 and "started" not in done.stdout
    assert 'rank.1.err" cannot be written: it is no regular file' in done.stderr


def test_timestamps(gradus):
    done = gradus("run", "-np", 1, "--timestamps", *sh("echo x"))
    assert re.fullmatch(r"\[0\] \d\d:\d\d:\d\d\.\d\d\d x\n", done.stdout)


def test_color_on_a_terminal_only(gradus):
    def on_terminal(**env):
        ours, theirs = pty.openpty()
        job = gradus.start("run", "-np", 1, *sh("echo $GRADUS_TERMINAL_COLUMNS"), stdout=theirs,
                           env={"TERM": "xterm"} | env)
        os.close(theirs)
        text = b""
        try:
            while chunk := os.read(ours, 4096):
                text += chunk
        except OSError:
            pass  # the other side is closed
        os.close(ours)
        assert job.wait(TIMEOUT_S) == 0
        return text
    assert b"\x1b[36m[0]\x1b[0m 80" in on_terminal()
    assert b"\x1b" not in on_terminal(NO_COLOR="1")
    assert gradus("run", "-np", 1, *sh("echo $GRADUS_TERMINAL_COLUMNS")).stdout == "[0] 0\n"


def test_output_into_a_file_and_a_closed_stdout(gradus, tmp_path):
    with open(tmp_path / "both", "wb") as file:
        job = gradus.start("run", "-np", 2, *sh("echo x; echo y >&2"), stdout=file, stderr=file)
        assert job.wait(TIMEOUT_S) == 0
    lines = sorted((tmp_path / "both").read_text().splitlines())
    assert lines == ["[0] x", "[0] y", "[1] x", "[1] y"]
    closed = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', gradus.program, "run", "-np", "1",
                             "true"], env=gradus.environment(), timeout=TIMEOUT_S)
    assert closed.returncode == 0


def test_output_of_a_grandchild_that_outlives_its_worker(gradus):
    """Its pipe stays open, but the job ends, and what it had written by then is there."""
    done = gradus("run", "-np", 1, *sh("sh -c 'echo from below; exec sleep 1000' & "
                                       "while ! grep -q sleep /proc/$!/comm; do :; done"))
    assert done.returncode == 0 and done.stdout == "[0] from below\n"


# ---- Cores ---------------------------------------------------------------------------------------

AFFINITY = "import os\nprint(sorted(os.sched_getaffinity(0)))"


def bound(done):
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        rank, cores = re.fullmatch(r"\[(\d+)\] \[(.*)\]", line).groups()
        found[int(rank)] = [int(core) for core in cores.split(",")]
    return found


def test_one_worker_for_each_core(gradus, script):
    found = bound(gradus("run", "--", *script(AFFINITY)))
    assert len(found) == len(CORES)
    assert sorted(core for cores in found.values() for core in cores) == CORES
    one = bound(gradus("run", "--cores", CORES[0], "--", *script(AFFINITY)))
    assert one == {0: CORES[:1]}


def test_one_worker_gets_all_cores_and_more_share_them_evenly(gradus, script):
    assert bound(gradus("run", "-np", 1, "--", *script(AFFINITY))) == {0: CORES}
    many = 2 * len(CORES)
    found = bound(gradus("run", "-np", many, "--", *script(AFFINITY)))
    assert sorted(core for cores in found.values() for core in cores) == sorted(2 * CORES)
    if len(CORES) > 1:  # the kernel does what cannot be even
        assert bound(gradus("run", "-np", many + 1, "--", *script(AFFINITY))) == \
            {rank: CORES for rank in range(many + 1)}
    assert bound(gradus("run", "-np", many, "--cores", CORES[0], "--", *script(AFFINITY))) == \
        {rank: CORES[:1] for rank in range(many)}
    assert bound(gradus("run", "--no-bind", "--", *script(AFFINITY))) == \
        {rank: CORES for rank in range(len(CORES))}


@pytest.mark.parametrize("text, says", [
    ("x", "not a list of cores"), ("", "not a list of cores"), ("0,", "not a list of cores"),
    ("0-", "not a list of cores"), ("1-0", "runs backwards"), ("0;1", "not a list of cores"),
    ("1023", "not one that this process may use"), ("99999", "not a list of cores")])
def test_bad_cores(gradus, text, says):
    done = gradus("run", f"--cores={text}", "--", "true")
    assert done.returncode == 2 and says in done.stderr and "--cores" in done.stderr


# ---- The command line ----------------------------------------------------------------------------

def test_command_with_and_without_dashes(gradus):
    assert gradus("run", "-np", 1, "echo", "-q", "--json", "a.yaml").stdout == \
        "[0] -q --json a.yaml\n"
    assert gradus("run", "-np=1", "--", "echo", "--", "x").stdout == "[0] -- x\n"
    assert gradus("run", "-n1", "true").returncode == 0


@pytest.mark.parametrize("arguments, says", [
    (["run"], "nothing to run"),
    (["run", "--"], "nothing to run"),
    (["run", "-np", "0", "true"], "-np"),
    (["run", "-np", "-3", "true"], "-np"),
    (["run", "-np", "two", "true"], "-np"),
    (["run", "-np", "100000", "true"], "-np"),
    (["run", "-np"], "-np"),
    (["run", "--qiet", "true"], '"--quiet"'),
    (["run", "--link", "rdma", "true"], "shm"),
    (["run", "--grace", "soon", "true"], "--grace"),
    (["run", "-np", "2", "no-such-command"], 'command not found: "no-such-command"'),
    (["run", "-np", "2", "./no-such-file"], 'there is no file "./no-such-file"'),
    (["run", "-np", "2", "/"], "chmod +x"),
    (["run", "--nproc_per_node", "2", "true"], "flag of torchrun; here: -np"),
    (["run", "--nproc-per-node=2", "true"], "flag of torchrun; here: -np"),
    (["run", "--nnodes", "2", "true"], "-H host1:4,host2:4"),
    (["run", "--standalone", "true"], "leave it out"),
    (["run", "--num-proc", "2", "true"], "flag of horovodrun; here: -np"),
    (["run", "-x", "PATH", "true"], "flag of mpirun; here: --export NAME"),
    (["run", "--epochs", "3", "job.yaml"], "--set epochs=3"),
    (["rnu"], '"gradus run"'),
    (["eval"], "needs a job file"),
    (["info", "extra"], '"extra"'),
    (["help", "infos"], '"gradus info"'),
])
def test_wrong_command_lines(gradus, arguments, says):
    done = gradus(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr and done.stderr.startswith("gradus: ")
    assert done.stderr.count("\n") == 1


def test_a_variable_of_the_environment_is_checked(gradus):
    done = gradus("run", "true", env={"GRADUS_LINK": "pigeon"})
    assert done.returncode == 2 and "GRADUS_LINK" in done.stderr


def test_script_that_is_not_executable_gets_its_interpreter_named(gradus, tmp_path):
    (tmp_path / "train.py").write_text("print(1)\n")
    for name in ("train.py", "./train.py"):
        done = gradus("run", "-np", 1, name)
        assert done.returncode == 2 and f"python3 {name}\n" in done.stderr, done
    (tmp_path / "train.py").chmod(0o755)
    done = gradus("run", "-np", 1, "train.py")
    assert done.returncode == 2 and "./train.py" in done.stderr, done


def test_flags_of_other_launchers_that_are_ours_are_taken(gradus):
    for words in (["-n", 2], ["--np", 2], ["-H", "localhost:2"]):
        done = gradus("run", *words, "--no-prefix", "echo", "x")
        assert done.returncode == 0 and done.stdout == "x\nx\n", done


def test_a_script_without_interpreter(gradus, tmp_path):
    path = tmp_path / "tool"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    done = gradus("run", "-np", 2, path)
    assert done.returncode == 2 and "interpreter" in done.stderr


def test_no_arguments_help_and_version(gradus):
    bare = gradus()
    assert bare.returncode == 2 and bare.stdout == "" and "usage: gradus" in bare.stderr
    for words in (["help"], ["--help"], ["-h"]):
        done = gradus(*words)
        assert done.returncode == 0 and "gradus run -np 4 job.yaml" in done.stdout
    for verb in ("run", "eval", "info"):
        one, two = gradus("help", verb), gradus(verb, "--help")
        assert one.returncode == two.returncode == 0
        assert one.stdout == two.stdout and f"usage: gradus {verb}" in one.stdout
    version = gradus("version")
    assert re.fullmatch(r"gradus \d+\.\d+\.\d+\n", version.stdout)
    assert gradus("--version").stdout == version.stdout


def test_info(gradus):
    done = gradus("info")
    assert done.returncode == 0
    assert f"{len(CORES)} (" in done.stdout and "shm, tcp" in done.stdout
    assert "lo 127.0.0.1/8, this host only\n" in done.stdout
    assert re.search("^process_vm_readv  (not )?permitted", done.stdout, re.M)
    config = gradus("info", "--config").stdout
    assert "GRADUS_SECRET" in config and "--log-dir" in config and "global_batch" in config


def test_the_reference_page_is_what_the_tables_say(gradus):
    done = gradus("info", "--reference")
    assert done.returncode == 0
    page = (gradus.source / "docs" / "reference.md").read_text()
    assert page == done.stdout, \
        "docs/reference.md is out of date: gradus info --reference >docs/reference.md"


def test_dry_run_of_a_command_starts_nothing(gradus, tmp_path):
    done = gradus("run", "-np", len(CORES), "--dry-run", *sh(f"touch {tmp_path}/started"))
    assert done.returncode == 0 and "rank 0 is bound to core" in done.stdout
    assert not (tmp_path / "started").exists()


def test_workers_of_a_job_in_a_job(gradus):
    """A worker that starts a job of its own: the inner identity counts inside."""
    done = gradus("run", "-np", 2, "--", gradus.program, "run", "-np", 2,
                  *sh("echo $RANK of $WORLD_SIZE"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == \
        ["[0] [0] 0 of 2", "[0] [1] 1 of 2", "[1] [0] 0 of 2", "[1] [1] 1 of 2"]


def run_with_limits(gradus, soft, hard, *words):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return gradus("run", *words, preexec_fn=limit)


def test_many_workers_get_descriptors_and_keep_their_own_limit(gradus):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = run_with_limits(gradus, 256, hard, "-np", "256", "--no-prefix", "--", "sh", "-c",
                           "ulimit -Sn")
    assert done.returncode == 0, done
    assert done.stdout == "256\n" * 256


def test_too_few_descriptors_are_told_before_the_start(gradus):
    done = run_with_limits(gradus, 256, 256, "-np", "200", "true")
    if done.returncode == 0:
        pytest.skip("whoever runs this may raise the hard limit")
    assert done.returncode == 2, done
    said = " ".join(done.stderr.split())
    assert "-np: 200 workers need 1059 descriptors in the launcher, and it may have 256" in said
    assert "ulimit -Hn" in said


def test_where_descriptors_are_few_some_workers_have_no_record(gradus):
    """4 a worker, 3 a host and 256 beside are what it takes; a record is one more."""
    least = 4 * 40 + 3 + 256
    done = run_with_limits(gradus, 256, least + 3, "-np", "40", "--no-prefix",
                           *sh("echo ${GRADUS_RECORD:+record}"))
    assert done.returncode == 0, done
    assert len(done.stdout.splitlines()) == 40
    assert done.stdout.split() in (["record"] * 3, ["record"] * 40)  # root may raise the limit


def test_sub_groups_where_links_are_made_when_needed_agree_on_how_they_meet(gradus, comm_script):
    """With more than 64 ranks on a host; bruck links ranks 1 and 3 of a sub-group, but not 0 and
    3."""
    done = gradus("run", "-np", 68, "--no-prefix", "--", *comm_script("""
create()
part = ctypes.c_void_p()
status = library.gr_comm_split(comm, rank // 4, 0, ctypes.byref(part), ctypes.byref(diag))
for _ in range(5):
    status = status or library.gr_barrier(part)
library.gr_comm_destroy(part)
status = status or barrier()
library.gr_comm_destroy(comm)
sys.exit(status != 0)
"""), env={"GRADUS_ALGORITHM": "allgather=bruck"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words, link, algorithm", [
    ([], "shm", "shm"), (["--link", "tcp"], "tcp", "tree"),
    (["-H", "a:2,b:2"], "tcp", "hierarchical"), (["-H", "a:4,b:4"], "shm", "shm")])
def test_dry_run_tells_the_algorithm_that_the_hosts_would_run(gradus, words, link, algorithm):
    done = gradus("run", "--dry-run", "-np", 4, *words,
                  gradus.source / "examples/digits/cnn.yaml")
    assert done.returncode == 0, done.stderr
    assert f" a step over {link}, exact" in done.stdout
    assert f"            one bucket, about 102.4 KiB: {algorithm}: " in done.stdout
