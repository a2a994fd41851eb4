# SPDX-License-Identifier: Apache-2.0
"""Jobs on slots that another system offers: what run_elastic of gradus.ray and of gradus.spark have
in common (test_ray.py, test_spark.py), with processes in place of actors and tasks."""
import subprocess

PROGRAM = '''
import os
import subprocess
import sys
import gradus
from gradus import _offered

SERVE = """
import sys
from gradus import _offered
print(_offered.serve(_offered.Launcher(sys.argv[1], sys.stdin.read())).code)
"""
slots = []


def add(launcher):
    slots.append(subprocess.Popen([sys.executable, "-c", SERVE, launcher.address], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    slots[-1].stdin.write(launcher.token)
    slots[-1].stdin.close()


def add_three(launcher):
    for _ in range(3):
        add(launcher)


def run(fn, args, begin, **more):
    told = []
    more = {**dict(num_proc=2, min_num_proc=None, max_num_proc=2, reset_limit=None, nics=None,
                   start_timeout=None, env={"WORD": "here"}, on_report=told.append), **more}
    try:
        print(_offered.run(fn, args, None, "127.0.0.1", begin, **more), told)
    except gradus.Error as error:
        print(type(error).__name__, str(error).replace("rank 0", "rank 1"))
    print(sorted(slot.stdout.read().strip() for slot in slots))
    slots.clear()


def meet():
    """All that holds rank 1 is lost; rank 0 waits for the one in its place."""
    import os
    import signal
    import time
    import gradus
    from gradus import _process
    comm, came = gradus.Communicator(), "GRADUS_JOINING" in os.environ
    if comm.rank == 1 and not came:
        pid, slot = os.getpid(), None
        while slot is None:
            with open(f"/proc/{pid}/stat") as stat:
                pid = int(stat.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{pid}/cmdline") as line:
                slot = pid if "_offered" in line.read() else None
        os.kill(slot, signal.SIGKILL)
        time.sleep(1000)
    if not came:
        try:
            comm.barrier()
        except gradus.Error:
            comm.renew()
    while comm.size < 2:
        time.sleep(0.01)
        comm.renew()
    if came:
        _process.report(again=1)
    comm.barrier()
    return came, os.environ["WORD"], os.environ.get("GRADUS_JOIN_TOKEN", "")


def fail():
    raise KeyError("no such sample")


run(meet, (), add_three, min_num_proc=1)
run(fail, (), add_three)
run(fail, (), lambda launcher: None, start_timeout=0.5)
run(fail, (), add, num_proc=3)
'''


def test_lost_slot_is_replaced_and_failures_are_named(ranks):
    path = ranks.write("")
    path.write_text(PROGRAM)
    done = subprocess.run([ranks.python, path], text=True, capture_output=True,
                          env=ranks.gradus.environment(ranks.environment))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[0@")]
    assert lines == [
        "[(False, 'here', ''), (True, 'here', '')] [{'again': 1}]", "['', '0', '0']",
        "RankError run: rank 1 failed: KeyError: 'no such sample'", "['0', '0', '0']",
        "InvalidError run: --listen: agents with 0 slots have joined within 0 s (--start-timeout), "
        "and the job needs 2 to begin; 0 connections were refused", "[]",
        "InvalidError run_elastic: there are 3 workers, at least 3 and at most 2; it is least, "
        "workers, most, and 1 or more", "[]"], done
