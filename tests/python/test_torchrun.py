# SPDX-License-Identifier: Apache-2.0
"""gradus.torchrun: the flags of torchrun, on one node and on several."""
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from conftest import BEFORE_TORCH, blackbox, pythons_with

ALL = """all=$(env | grep -E "^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_RANK|\
GROUP_WORLD_SIZE|ROLE_NAME|ROLE_WORLD_SIZE|TORCHELASTIC_.*)=" | sort | tr "\\n" " ")
echo "$all$@" """


@pytest.fixture
def torchrun(ranks):
    """Runs it in the folder of the test."""
    def start(*words, env=None):
        process = subprocess.Popen(
            [sys.executable, "-m", "gradus.torchrun", *map(str, words)], text=True,
            env=ranks.gradus.environment({**ranks.environment, **(env or {})}), cwd=ranks.folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        ranks.gradus.started.append(process)
        return process

    def run(*words, code=0, env=None):
        process = start(*words, env=env)
        out, err = process.communicate(timeout=blackbox.TIMEOUT_S)
        assert process.returncode == code, out + err
        return out, err
    run.start = start
    return run


def test_torchrun_starts_workers_with_its_variables(torchrun):
    out, _ = torchrun("--nproc_per_node=2", "--max-restarts", 3, "--rdzv-id", "job 1", "--role",
                      "trainer", "--no-python", "sh", "-c", ALL, "sh", "--nnodes", "it's")
    assert sorted(out.splitlines()) == [
        f"GROUP_RANK=0 GROUP_WORLD_SIZE=1 LOCAL_RANK={rank} LOCAL_WORLD_SIZE=2 RANK={rank} "
        f"ROLE_NAME=trainer ROLE_RANK={rank} ROLE_WORLD_SIZE=2 TORCHELASTIC_MAX_RESTARTS=3 "
        "TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_RUN_ID=job 1 "
        "TORCHELASTIC_USE_AGENT_STORE=False WORLD_SIZE=2 --nnodes it's" for rank in range(2)]


@pytest.mark.parametrize("how", ["script", "-m", "--run-path"])
def test_torchrun_runs_python(torchrun, ranks, how):
    path = ranks.write("import sys; print(__name__, sys.argv[1:])")
    words = {"script": [path], "-m": ["-m", path.stem], "--run-path": ["--run-path", path]}[how]
    out, _ = torchrun("--standalone", *words, "--lr", "1", env={
        "PYTHONPATH": f"{ranks.environment['PYTHONPATH']}:{ranks.folder}"})
    assert out == "__main__ ['--lr', '1']\n"


def test_torchrun_begins_all_workers_anew(torchrun, ranks):
    """Also after an exit code; the last one is the job's failure. Rank 1 ends when rank 0 has
    written its line."""
    os.mkfifo(ranks.folder / "written")
    program = ["--no-python", "sh", "-c", "echo $RANK.$TORCHELASTIC_RESTART_COUNT; "
               "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit; "
               "[ $RANK = 0 ] && echo >written && exec sleep 100; read line <written; exit 3"]
    out, err = torchrun("--nproc-per-node", 2, "--max-restarts", 2, *program)
    assert {f"{rank}.{count}" for rank in range(2) for count in range(3)} == set(out.split())
    assert err.count("torchrun: rank 1 ended with exit code 3\n") >= 2
    _, err = torchrun("--nproc-per-node", 2, *program, code=1)
    assert "rank 1" in err and "exited with code 3" in err


def test_torchrun_writes_output_to_files(torchrun, ranks):
    program = ["--no-python", "sh", "-c", "echo out$RANK; echo err$RANK >&2"]
    logs = ranks.folder / "logs"
    out, err = torchrun("--nproc-per-node", 2, "--log-dir", logs, "-r", "0:3,1:2", *program)
    assert out == "out1\n" and err == ""
    there = logs / "none/attempt_0"
    assert (there / "0/stdout.log").read_text() == "out0\n"
    assert (there / "0/stderr.log").read_text() == "err0\n"
    assert (there / "1/stderr.log").read_text() == "err1\n"
    assert not (there / "1/stdout.log").exists()
    out, _ = torchrun("--nproc-per-node", 2, "--log-dir", logs, "--tee", 3, *program)
    assert sorted(out.splitlines()) == ["[0] out0", "[1] out1"]
    assert (logs / "rank.1.out").read_text() == "out1\n"


@pytest.fixture
def port():
    """One that nobody else gets meanwhile, but for who says SO_REUSEADDR, as the first node does.
    A node that looks for it too early does not meet itself there either."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("", 0))
        yield one.getsockname()[1]


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_torchrun_on_two_nodes(torchrun, ranks, port, backend):
    """Both are this host; by c10d it says itself who is first, so the other one is another way."""
    token = ranks.folder / "token"
    token.write_text("ab" * 32)
    token.chmod(0o600)
    env = {"GRADUS_JOIN_TOKEN_FILE": str(token)}
    first = (["--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={port}"]
             if backend == "static" else
             ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"])
    other = ["--node-rank=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    common = ["--nnodes=2", "--nproc-per-node=2", "--no-python", "sh", "-c", ALL, "sh"]
    nodes = [torchrun.start(*which, *common, env=env) for which in (other, first)]
    (out, err), (said, told) = [node.communicate(timeout=blackbox.TIMEOUT_S)
                                for node in reversed(nodes)]
    assert [node.returncode for node in nodes] == [0, 0], (err, told)
    assert said == "" and told == ""
    lines = sorted(out.splitlines())
    for rank in range(4):
        assert lines[rank].startswith(f"GROUP_RANK={rank // 2} GROUP_WORLD_SIZE=2 "
                                      f"LOCAL_RANK={rank % 2} LOCAL_WORLD_SIZE=2 RANK={rank} ")
    ranks.gradus.wait_for_nothing()


def test_torchrun_of_the_first_node_ends_in_order(torchrun, ranks, port):
    token = ranks.folder / "token"
    token.write_text("cd" * 32)
    token.chmod(0o600)
    node = torchrun.start("--nnodes=1:2", "--master-addr=127.0.0.1", f"--master-port={port}",
                          "--no-python", "sh", "-c", "echo up; exec sleep 1000",
                          env={"GRADUS_JOIN_TOKEN_FILE": str(token)})
    assert blackbox.read_lines(node.stdout, 1) == ["up"]
    node.terminate()
    _, err = node.communicate(timeout=blackbox.TIMEOUT_S)
    assert node.returncode == 1 and "the job has 1 nodes" in err and "SIGTERM" in err
    ranks.gradus.wait_for_nothing()


@pytest.mark.parametrize("words, told", [
    ("--nnodes 0 a.py", "neither N nor MIN:MAX"), ("--nnodes 3:2 a.py", "neither N nor MIN:MAX"),
    ("--nproc-per-node many a.py", "a number from 1 on, cpu, gpu or auto"),
    ("--flavour mint a.py", "unrecognized arguments: --flavour"), ("", "program"),
    ("-m --no-python a", "one of them"), ("--tee 4 a.py", "neither 0 to 3 nor like"),
    ("--max-restarts -1 a.py", "no number from 0 on"),
    ("--nnodes 2 --rdzv-backend etcd a.py", "it is c10d or static"),
    ("--nnodes 2 --rdzv-backend c10d a.py", "--rdzv-endpoint is missing"),
    ("--nnodes 2 --node-rank 1 a.py", "--master-addr is missing"),
    ("--nnodes 2 --node-rank 2 --master-addr h a.py", "it is less than that"),
    ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:99999 a.py", "it is HOST or HOST:PORT"),
    ("--nnodes 2 --master-addr h a.py", "set GRADUS_JOIN_TOKEN_FILE")])
def test_torchrun_refuses_wrong_flags(torchrun, words, told):
    assert told in torchrun(*words.split(), code=2)[1]


def test_torchrun_takes_flags_without_effect(torchrun):
    _, err = torchrun("--monitor-interval=5", "--start_method", "spawn", "--virtual-local-rank",
                      "--local-addr", "h", "--no-python", "true")
    assert err.count("has no effect: ") == 4


def test_torchrun_gives_workers_time_to_end(torchrun):
    node = torchrun.start("--shutdown_timeout=1000", "--no-python", "sh", "-c",
                          "echo up; exec sleep 1000")
    assert blackbox.read_lines(node.stdout, 1) == ["up"]
    words = pathlib.Path(f"/proc/{node.pid}/cmdline").read_bytes().split(b"\0")
    assert words[words.index(b"--grace") + 1] == b"1000s"
    node.terminate()
    node.communicate(timeout=blackbox.TIMEOUT_S)


def test_torchrun_prints_what_completes_its_flags(torchrun):
    try:
        import shtab  # noqa: F401
    except ImportError:
        assert "pip install shtab" in torchrun("--print-completion", "bash", code=1)[1]
    else:
        assert "--nproc-per-node" in torchrun("--print-completion", "bash")[0]


FLAGS = '''
from torch.distributed.run import get_args_parser
from gradus import torchrun

def flags(parser):
    return {word: action.nargs == 0 for action in parser._actions for word in action.option_strings}

own = flags(torchrun._parser())
print({word: alone for word, alone in flags(get_args_parser()).items() if own.get(word) != alone})
'''


@pytest.mark.parametrize("python", pythons_with("torch", "Debian: python3-torch"))
def test_torchrun_takes_each_flag_of_torchs(ranks, python):
    done = subprocess.run([python, ranks.write(FLAGS)], text=True, capture_output=True,
                          env=ranks.gradus.environment({**ranks.environment, **BEFORE_TORCH}))
    assert done.stdout == "{}\n", done.stdout + done.stderr


def test_torchrun_counts_workers(torchrun):
    out, _ = torchrun("--nproc-per-node", "cpu", "--no-python", "echo", "up")
    assert out == "up\n" * os.cpu_count()
    assert "torch finds none" in torchrun("--nproc-per-node", "gpu", "a.py", code=2,
                                          env={"CUDA_VISIBLE_DEVICES": ""})[1]
