# SPDX-License-Identifier: Apache-2.0
"""gradus.ray on a cluster of Ray, where an interpreter of GRADUS_PYTHONS has it."""
import os
import subprocess
import tempfile

import pytest

from conftest import SOURCE, pythons_with

pytestmark = pytest.mark.long

# What both tests run on their workers; gradus.ray and gradus.spark take the same functions.
FUNCTIONS = '''
import gradus


def total(scale):
    import os
    import gradus
    with gradus.Communicator() as comm:
        return (comm.rank, comm.size, os.environ["LOCAL_RANK"], os.environ["WORD"],
                sum(comm.allgather_object(scale * comm.rank)))


def fail(rank):
    import gradus
    comm = gradus.Communicator()
    comm.barrier()
    if comm.rank == rank:
        raise KeyError("no such sample")
    comm.barrier()


def fail_early(rank):
    """The others wait for it to make a communicator."""
    import os
    import gradus
    if os.environ["RANK"] == str(rank):
        raise KeyError("no such sample")
    gradus.Communicator()


def die(rank):
    import os
    import signal
    import gradus
    comm = gradus.Communicator()
    comm.barrier()
    if comm.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def go_on():
    """A worker is lost, and then all that holds another one; rank 0 waits for those in their
    places."""
    import os
    import signal
    import gradus
    from gradus import _process
    comm, came = gradus.Communicator(), "GRADUS_JOINING" in os.environ
    if comm.rank == 1 and not came:
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 2 and not came:
        pid, line = os.getpid(), ""
        while not any(word in line for word in ("Slot", "pyspark", "_offered")):
            with open(f"/proc/{pid}/stat") as stat:
                pid = int(stat.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{pid}/cmdline") as file:
                line = file.read()
        os.kill(pid, signal.SIGKILL)
        signal.pause()
    if not came:
        try:
            while True:
                comm.barrier()
        except gradus.Error:
            comm.renew()
    while comm.size < 3:  # each takes up those that wait
        comm.renew()
    if came:
        _process.report(came=1)
    return came, os.environ["WORD"] + os.environ.get("GRADUS_JOIN_TOKEN", "")


def told(call, *words, **more):
    """Behind a mark, since others write as well."""
    try:
        print("##", call(*words, **more), flush=True)
    except gradus.RankError as error:
        print("##", error.peer, repr(error.__cause__), "raise KeyError" in error.traceback,
              str(error).partition(" (pid")[0], flush=True)
    except gradus.Error as error:
        print("##", type(error).__name__, error, flush=True)
'''
TOTALS = "[" + ", ".join(f"({rank}, 4, '{rank}', 'here', 60)" for rank in range(4)) + "]"
WENT_ON = str([(False, "here"), (True, "here"), (True, "here")])
FAILED = ("2 KeyError('no such sample') True "
          "run: rank 2 failed: KeyError: 'no such sample'")

RAY = '''
import os
import ray
from gradus.ray import RayExecutor

ray.init(num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1")
with RayExecutor(num_workers=4) as executor:
    executor.shutdown()
    executor.start(list, ("ab",), extra_env_vars={"WORD": "here"})
    told(executor.run, total, (10,))
    told(executor.execute, lambda letters: letters)
    told(executor.execute_single, lambda letters: letters.append("c"))
    told(executor.execute, len)
    told(executor.run, fail, (2,))
    told(executor.run, total, (10,))
    executor.start()
    told(executor.run, die, (1,))
    told(RayExecutor(RayExecutor.create_settings(timeout_s=0.1), num_workers=9).start)
from horovod.ray import RayExecutor
settings = RayExecutor.create_settings(nics=["lo"])
executor = RayExecutor(settings, num_hosts=1, num_workers_per_host=4)
executor.start(extra_env_vars={"WORD": "here"})
told(executor.run, total, (10,))
told(lambda: ray.get(executor.run_remote(total, (10,))))
told(executor.execute_single, lambda _: __import__("os").environ["GRADUS_INTERFACE"])
executor.shutdown()
from horovod.ray import ElasticRayExecutor, ray_logger
told(lambda: sorted(gradus.ray.run_elastic(
    go_on, min_num_proc=1, num_proc=3, max_num_proc=3, env={"WORD": "here"})))
settings = ElasticRayExecutor.create_settings(min_np=2, max_np=2, nics=["lo"])
executor = ElasticRayExecutor(settings, env_vars={"WORD": "here"})
executor.start()
logs = []
told(executor.run, lambda: ray_logger.log({"word": os.environ["WORD"]}), [logs.append])
told(sorted, map(str, logs))
told(lambda: executor.run(lambda: fail(1)))
ray.shutdown()
'''


def answers(ranks, text, env):
    """Of a program behind the functions."""
    path = ranks.write("")
    path.write_text(FUNCTIONS + text)
    ranks.environment["PYTHONPATH"] += os.pathsep + str(SOURCE / "python" / "horovod")
    done = subprocess.run([ranks.python, path], cwd=ranks.folder, text=True, capture_output=True,
                          env=ranks.gradus.environment({**ranks.environment, **env}))
    assert done.returncode == 0, done.stdout + done.stderr
    return [line[3:] for line in done.stdout.splitlines() if line.startswith("## ")]


@pytest.fixture(params=[one for one in pythons_with("ray", "ray of pip") if one.id != "here"])
def ray_ranks(request, ranks):
    ranks.python = request.param
    return ranks


def test_ray_runs_functions_and_names_a_worker_that_is_lost(ray_ranks):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the paths of its sockets are long
        lines = answers(ray_ranks, RAY, {"RAY_TMPDIR": folder, "HOME": folder,
                                         "RAY_AUTH_MODE": "disabled",
                                         "RAY_USAGE_STATS_ENABLED": "0"})
    assert lines[:5] == [TOTALS, str([["a", "b"]] * 4), "None", "[3, 2, 2, 2]", FAILED]
    assert lines[5] == "InvalidError RayExecutor: there are no workers; call start()"
    assert lines[6] == "1 None False run: rank 1 failed: Ray lost its worker"
    assert lines[7].startswith("TimeoutError start: Ray had no room for 9 workers with {'CPU': 1}")
    assert lines[8:11] == [TOTALS, TOTALS, "lo"]
    assert lines[11:] == [WENT_ON, "[None, None]", "[\"{'word': 'here'}\", \"{'word': 'here'}\"]",
                          "1 KeyError('no such sample') True run: rank 1 failed: KeyError: "
                          "'no such sample'"]
