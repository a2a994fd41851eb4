# SPDX-License-Identifier: Apache-2.0
"""The distribution gradus-horovod: horovodrun, horovod.run, and the names of horovod.torch."""
import importlib.util
import os
import subprocess
import sys

import pytest

from conftest import SOURCE


@pytest.fixture
def horovodrun(ranks):
    """Runs it in the folder of the test."""
    path = os.pathsep.join([str(SOURCE / "python" / "horovod"), str(SOURCE / "python")])

    def run(*words, code=0, program=("-m", "horovod.runner.launch")):
        done = subprocess.run([sys.executable, *program, *map(str, words)], text=True,
                              env=ranks.gradus.environment({**ranks.environment,
                                                            "PYTHONPATH": path}),
                              cwd=ranks.folder, capture_output=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done
    return run


def test_horovodrun_starts_workers_that_know_their_rank(horovodrun, ranks):
    done = horovodrun("-np", 2, "-H", "localhost:2", "--output-filename", "logs", "sh", "-c",
                      'echo "$HOROVOD_RANK of $HOROVOD_SIZE, $HOROVOD_LOCAL_RANK $1 $2"; '
                      'echo $HOROVOD_HOSTNAME $HOROVOD_CROSS_RANK $HOROVOD_CROSS_SIZE '
                      '$PYTHONUNBUFFERED >>more', "sh", "-np", "--verbose")
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] {rank} of 2, {rank} -np --verbose" for rank in range(2)]
    assert (ranks.folder / "more").read_text() == "localhost 0 1 1\n" * 2
    assert (ranks.folder / "logs" / "rank.1.out").read_text() == "1 of 2, 1 -np --verbose\n"
    assert "exited with code 3" in horovodrun("-np", 1, "--", "sh", "-c", "exit 3", code=1).stderr


def shown(done):
    """The command that --verbose shows."""
    line, = [line for line in done.stderr.splitlines() if " gradus run " in line]
    settings, _, words = line.partition("gradus run ")
    return set(settings.split()[1:]), words.partition(" -- ")[0].split()


@pytest.mark.parametrize("flags, settings, words", [
    ("--fusion-threshold-mb 64 --cycle-time-ms 2.5 --cache-capacity 100 --no-stall-check",
     "HOROVOD_FUSION_THRESHOLD=67108864 HOROVOD_CYCLE_TIME=2.5 HOROVOD_CACHE_CAPACITY=100 "
     "HOROVOD_STALL_CHECK_DISABLE=1", ""),
    ("--stall-check-warning-time-seconds 5 --stall-check-shutdown-time-seconds 9 "
     "--timeline-filename t.json --timeline-mark-cycles --log-level DEBUG",
     "HOROVOD_STALL_CHECK_TIME_SECONDS=5 HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=9 "
     "HOROVOD_TIMELINE=t.json HOROVOD_TIMELINE_MARK_CYCLES=1 HOROVOD_LOG_LEVEL=DEBUG "
     "GRADUS_LOG=debug", ""),
    ("--network-interface lo --start-timeout 40 --prefix-output-with-timestamp "
     "--gloo-timeout-seconds 20",
     "GRADUS_INTERFACE=lo NCCL_SOCKET_IFNAME=lo HOROVOD_GLOO_IFACE=lo GRADUS_JOIN_TIMEOUT=20s",
     "--start-timeout 40s --timestamps"),
    ("--min-np 1 --max-np 3 --elastic-timeout 50 --reset-limit 4", "HOROVOD_ELASTIC=1",
     "--min-np 1 --max-np 3 --restarts 4 --start-timeout 50s"),
    ("--min-np 1 --max-np 1 --reset-limit 0", "HOROVOD_ELASTIC=1",
     "--min-np 1 --max-np 1 --restarts 0 --start-timeout 600s"),
])
def test_horovodrun_flags_become_those_of_gradus_run(horovodrun, flags, settings, words):
    found = shown(horovodrun("-np", 1, "--verbose", *flags.split(), "true"))
    assert found[1] == ["-np", "1", *words.split()]
    assert found[0] - {"GRADUS_LOG=info"} == set(settings.split())


def test_horovodrun_reads_what_the_environment_says_where_no_flag_does(horovodrun, ranks):
    ranks.environment.update(HOROVOD_START_TIMEOUT="7", HOROVOD_ELASTIC_TIMEOUT="70",
                             HOROVOD_GLOO_TIMEOUT_SECONDS="8", HOROVOD_LOG_LEVEL="debug")
    found = shown(horovodrun("-np", 1, "--verbose", "true"))
    assert found == ({"GRADUS_JOIN_TIMEOUT=8s", "GRADUS_LOG=debug"},
                     ["-np", "1", "--start-timeout", "7s"])
    found = shown(horovodrun("-np", 1, "--min-np", 1, "--gloo-timeout-seconds", 9, "--log-level",
                             "ERROR", "--verbose", "true"))
    assert {"GRADUS_JOIN_TIMEOUT=9s", "GRADUS_LOG=error"} <= found[0]
    assert found[1][-2:] == ["--start-timeout", "70s"]


def test_horovodrun_reads_flags_from_a_file(horovodrun, ranks):
    pytest.importorskip("yaml")
    (ranks.folder / "c.yaml").write_text('''
controller: gloo
verbose: true
params: {fusion_threshold_mb: 32, cycle_time_ms: 5, hierarchical_allreduce: false}
stall_check: {enabled: false}
timeline: {filename: t.json, mark_cycles: true}
autotune: {enabled: true, warmup_samples: 4}
''')
    done = horovodrun("-np", 1, "--config-file", "c.yaml", "--cycle-time-ms", 3, "true")
    assert shown(done)[0] == {
        "HOROVOD_FUSION_THRESHOLD=33554432", "HOROVOD_CYCLE_TIME=3", "HOROVOD_TIMELINE=t.json",
        "HOROVOD_STALL_CHECK_DISABLE=1", "HOROVOD_TIMELINE_MARK_CYCLES=1", "GRADUS_LOG=info"}
    for flag in ("--gloo", "--no-hierarchical-allreduce", "--autotune"):
        assert f"horovodrun: {flag} has no effect: " in done.stderr
    (ranks.folder / "c.yaml").write_text("parameters: {fusion_threshold_mb: 32}")
    done = horovodrun("-np", 1, "--config-file", "c.yaml", "true", code=2)
    assert "the section parameters is unknown" in done.stderr


@pytest.mark.parametrize("words, told", [
    ("-np 2 --flavour mint true", "--flavour"), ("true", "-np is missing"),
    ("-np 2", "command is missing"), ("-np 0 true", "less than 1"),
    ("-np 2 --min-np 3 true", "not between"), ("-np 2 --cycle-time-ms -1 true", "negative"),
    ("-np 2 -H a:2 --hostfile f true", "one of them"),
    ("-np 2 --stall-check-shutdown-time-seconds 9 true", "not more than"),
    ("-np 2 --config-file nowhere.yaml true", "nowhere.yaml")])
def test_horovodrun_refuses_wrong_flags(horovodrun, words, told):
    assert told in horovodrun(*words.split(), code=2).stderr


FLAGS = """-np=2 --num-proc=2 --disable-cache --start-timeout=9 --network-interfaces=lo,eth0
--network-interface=lo --output-filename=logs --verbose -p=22 --ssh-port=22 -i=key
--ssh-identity-file=key --fusion-threshold-mb=1 --cycle-time-ms=1 --cache-capacity=1
--hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather
--no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --autotune --no-autotune
--autotune-log-file=f --autotune-warmup-samples=3 --autotune-steps-per-sample=10
--autotune-bayes-opt-max-samples=20 --autotune-gaussian-process-noise=0.8 --min-np=1
--min-num-proc=1 --max-np=3 --max-num-proc=3 --slots-per-host=2 --elastic-timeout=9
--reset-limit=3 --blacklist-cooldown-range=1,2 --host-discovery-script=s --timeline-filename=f
--timeline-mark-cycles --no-timeline-mark-cycles --no-stall-check --stall-check
--stall-check-warning-time-seconds=5 --stall-check-shutdown-time-seconds=90
--mpi-threads-disable --no-mpi-threads-disable --mpi-args=a --tcp --binding-args=a
--num-nccl-streams=1 --thread-affinity=1 --gloo-timeout-seconds=30 --log-level=INFO
--log-with-timestamp --log-without-timestamp --log-hide-timestamp -prefix-timestamp
--prefix-output-with-timestamp -H=a:2 --hosts=a:2 -hostfile=f --hostfile=f --gloo --mpi
--jsrun"""


def test_horovodrun_takes_each_flag_of_horovod_alone(ranks):
    ranks.environment["PYTHONPATH"] += os.pathsep + str(SOURCE / "python" / "horovod")
    assert ranks(1, """
        import sys
        from horovod.runner.launch import _parse, command_of
        for flag in sys.argv[1].split():
            name, _, values = flag.partition("=")
            words = [name, *filter(None, values.split(","))] if "range" in name else \
                [name, *filter(None, [values])]
            found = _parse(["-np", "2", *words, "program", "--verbose"])
            assert found.command == ["program", "--verbose"], flag
            assert command_of(found)[0][:3] == ["run", "-np", "2"], flag
        print("done")
        """, FLAGS) == [["done"]]


def test_horovodrun_accepts_what_has_no_meaning(horovodrun):
    flags = ["--mpi", "--mpi-args=-x A", "--thread-affinity", "2", "--torus-allreduce", "--tcp",
             "--blacklist-cooldown-range", "1", "9"]
    told = horovodrun("-np", 1, *flags, "true").stderr
    assert told.count("has no effect: ") == 6, told
    assert "[X] Gloo" in horovodrun("--check-build").stdout


def test_horovod_run_returns_results(horovodrun, ranks):
    (ranks.folder / "functions.py").write_text('''
import gradus
def total(scale, plus=0):
    with gradus.Communicator() as comm:
        return sum(comm.allgather_object(scale * comm.rank)) + plus
''')
    program = ranks.write('''
        import gradus
        import horovod
        from functions import total
        print(horovod.run(total, (10,), {"plus": 1}, num_proc=3, hosts="localhost:3"))
        print(horovod.run(total, (10,), hosts="localhost:2"))
        print(horovod.run(total, (1,), np=2, min_np=1, network_interface="lo", use_mpi=True))
        try:
            horovod.run(total, (1,), num_proc=2, hosts="nowhere.invalid:2", start_timeout=20)
        except gradus.InvalidError as error:
            print(error)
        ''')
    lines = horovodrun(program=[str(program)]).stdout.splitlines()
    assert lines[:3] == ["[31, 31, 31]", "[0]", "[1, 1]"] and len(lines) == 4
    assert "nowhere.invalid" in lines[3]


def test_horovod_run_replaces_lost_workers_of_an_elastic_job(horovodrun, ranks):
    (ranks.folder / "functions.py").write_text('''
import array
import os
import signal
import gradus
def survive():
    comm = gradus.Communicator()
    if "GRADUS_JOINING" not in os.environ:
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.barrier()
        except gradus.Error:
            comm.renew()
        while comm.size < 2:
            wanted = array.array("i", [comm.change_wanted()])
            if comm.allreduce(wanted, op="max")[0]:
                comm.renew()
    return comm.size, [os.environ["HOROVOD_" + name] for name in (
        "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME",
        "ELASTIC")]
''')
    program = ranks.write('''
        import horovod
        from functions import survive
        for line in horovod.run(survive, np=2, min_np=1, max_np=2):
            print(*line)
        ''')
    assert horovodrun(program=[str(program)]).stdout.splitlines() == [
        f"2 ['{rank}', '2', '{rank}', '2', '0', '1', 'localhost', '1']" for rank in range(2)]


def test_horovod_jobs_that_fail_say_so_as_horovod_does(horovodrun, ranks):
    (ranks.folder / "functions.py").write_text('''
import os
from horovod.runner.common.util.env import get_env_rank_and_size
def place():
    assert get_env_rank_and_size()[0] == 0, "failing as expected"
    return get_env_rank_and_size()
''')
    program = ranks.write('''
        import sys
        import horovod
        from functions import place
        from horovod.runner import _HorovodArgs
        from horovod.runner.launch import _run, parse_args
        told = _HorovodArgs()
        told.run_func, told.nics = place, ["lo"]
        print(_run(told))
        for count, command in (2, None), (2, ["sh", "-c", "exit 3"]):
            told.num_proc, told.command = count, command
            told.run_func = place if command is None else None
            try:
                print(_run(told))
            except RuntimeError as error:
                print(error)
        sys.argv = ["horovodrun", "-np", "2", "--min-num-proc", "1", "true"]
        found = parse_args()
        print(found.num_proc, found.min_num_proc, found.command, _run(found))
        ''')
    lines = horovodrun(program=[str(program)]).stdout.splitlines()
    assert lines[0] == "[(0, 1)]" and len(lines) == 4, lines
    assert all("Horovod detected that one or more processes exited" in one for one in lines[1:3])
    assert "rank 1 failed: AssertionError: failing as expected" in lines[1]
    assert lines[3:] == ["2 1 ['true'] None"]


def test_horovod_helpers_of_programs(ranks):
    ranks.environment["PYTHONPATH"] += os.pathsep + str(SOURCE / "python" / "horovod")
    assert ranks(1, """
        import os, threading
        from horovod.common import util
        from horovod.runner.common.util.env import get_env_rank_and_size
        from horovod.runner.util.threads import (execute_function_multithreaded, in_thread,
                                                 on_event)
        os.environ["KEPT"] = "before"
        with util.env(KEPT="within", NEW=7):
            assert os.environ["KEPT"] == "within" and os.environ["NEW"] == "7"
            with util.env(KEPT=None):
                assert "KEPT" not in os.environ
        assert os.environ["KEPT"] == "before" and "NEW" not in os.environ
        assert util.split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]
        assert [n for n in range(9) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]
        assert util.gloo_built() and not util.mpi_built()
        assert not util.extension_available("mxnet")

        made = []
        in_thread(made.append, (1,)).join()
        event, stop = threading.Event(), threading.Event()
        waits = on_event(event, made.append, (2,))
        event.set()
        waits.join()
        stop.set()
        on_event(threading.Event(), made.append, (3,), stop, check_stop_interval_s=0.01).join()
        assert made == [1, 2]
        assert execute_function_multithreaded(pow, [(2, 3), (3, 2)]) == {0: 8, 1: 9}

        assert get_env_rank_and_size() == (0, 1)
        with util.env(HOROVOD_RANK=2, HOROVOD_SIZE=3):
            assert get_env_rank_and_size() == (2, 3)
        with util.env(HOROVOD_RANK=2):
            try:
                get_env_rank_and_size()
            except RuntimeError as error:
                print(error)
        """)[0] == ["the environment has HOROVOD_RANK, and not the other one of HOROVOD_RANK and "
                    "HOROVOD_SIZE; the launcher sets both"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_horovodrun_runs_a_script_of_horovod(horovodrun, ranks):
    program = ranks.write('''
        import os
        import torch
        import horovod.torch as hvd
        import horovod.torch.elastic
        from horovod.common.exceptions import HorovodInternalError
        from horovod.torch.compression import Compression
        from horovod.torch.mpi_ops import allreduce, Sum
        hvd.init()
        assert (hvd.rank(), hvd.size()) == (int(os.environ["HOROVOD_RANK"]), 2)
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                             compression=Compression.fp16)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        start = model.weight.item()
        model(torch.tensor([[float(hvd.rank())]])).sum().backward()
        optimizer.step()
        assert abs(start - model.weight.item() - 0.5) < 1e-3
        print(allreduce(torch.ones(1), op=Sum).item(), hvd.join() in (0, 1))
        hvd.add_process_set([1])
        assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0, 1], 1: [1]}
        ''')
    done = horovodrun("-np", 2, "--min-np", 1, sys.executable, program)
    assert sorted(done.stdout.splitlines()) == ["[0] 2.0 True", "[1] 2.0 True"]


def test_horovod_distribution_names_all_its_packages():
    tomllib = pytest.importorskip("tomllib")
    folder = SOURCE / "python" / "horovod"
    told = tomllib.loads((folder / "pyproject.toml").read_text())
    found = {".".join(path.parent.relative_to(folder).parts)
             for path in folder.glob("horovod/**/__init__.py")}
    assert set(told["tool"]["setuptools"]["packages"]) == found
    assert told["project"]["scripts"]["horovodrun"] == "horovod.runner.launch:main"
