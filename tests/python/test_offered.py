# SPDX-License-Identifier: Apache-2.0
"""Jobs on slots that another system offers: what run_elastic of gradus.ray and of gradus.spark have
in common (test_ray.py, test_spark.py), with processes in place of actors and tasks."""
import subprocess

from test_ray import FUNCTIONS

PROGRAM = FUNCTIONS + '''
import os
import subprocess
import sys
import gradus
from gradus import _offered

SERVE = """
import sys
from gradus import _offered
print(_offered.serve(_offered.Launcher(sys.argv[1], sys.stdin.read())))
"""
slots = []


def add(launcher):
    slots.append(subprocess.Popen([sys.executable, "-c", SERVE, launcher.address], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    slots[-1].stdin.write(launcher.token)
    slots[-1].stdin.close()


def add_four(launcher):
    for _ in range(4):
        add(launcher)


def run(fn, args, begin, **more):
    told = []
    more = {**dict(num_proc=2, min_num_proc=None, max_num_proc=3, reset_limit=None, nics=None,
                   start_timeout=None, env={"WORD": "here"}, on_report=told.append), **more}
    try:
        print(_offered.run(fn, args, None, "127.0.0.1", begin, **more), told)
    except gradus.Error as error:
        print(type(error).__name__, error)
    print(sorted(slot.stdout.read().strip() for slot in slots))
    slots.clear()


run(go_on, (), add_four, num_proc=3, min_num_proc=1)
run(fail, (1,), add_four)
run(fail, (1,), lambda launcher: None, start_timeout=0.5)
run(fail, (1,), add, num_proc=4)
try:
    _offered.run(die, (1,), None, "127.0.0.1", add_four, num_proc=2, min_num_proc=None,
                 max_num_proc=3, reset_limit=0, nics=None, start_timeout=None, env={},
                 on_report=print)
except gradus.RankError as error:
    print(error.peer, len([slot.stdout.read() for slot in slots]))
slots.clear()
_offered._run.call = lambda *words, **more: words[6].run_flags
run(fail, (1,), add, reset_limit=0)
'''


def test_lost_slot_is_replaced_and_failures_are_named(ranks):
    path = ranks.write("")
    path.write_text(PROGRAM)
    done = subprocess.run([ranks.python, path], text=True, capture_output=True,
                          env=ranks.gradus.environment(ranks.environment))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[0@")]
    # Two have joined; those that begin when the job has failed find no launcher.
    assert lines.pop(3) in [str(sorted(["0", "0", *more])) for more in ("00", "01", "11")]
    assert lines == [
        "[(False, 'here'), (True, 'here'), (True, 'here')] [{'came': 1}, {'came': 1}]",
        "['', '0', '0', '0']", "RankError run: rank 1 failed: KeyError: 'no such sample'",
        "InvalidError run: --listen: agents with 0 slots have joined within 0 s (--start-timeout), "
        "and the job needs 2 to begin; 0 connections were refused", "[]",
        "InvalidError run_elastic: there are 4 workers, at least 4 and at most 3; it is least, "
        "workers, most, and 1 or more", "[]", "1 4",
        "['--min-workers', '2', '--max-workers', '3', '--restarts', '0'] []", "[]"], done


SLOTS = '''
import sys
from unittest import mock

from gradus import ray
# Ray itself is not needed (test_ray.py has it): a cluster of these nodes.
cluster = mock.MagicMock()
cluster.wait.return_value = [], []
sys.modules["ray"] = cluster


def count(cores, *words):
    """Actors that are asked for in three looks, and the pauses behind them."""
    cluster.reset_mock()
    pauses = []
    cluster.nodes.return_value = [{"Alive": True, "Resources": {"CPU": cores}},
                                  {"Alive": False, "Resources": {"CPU": 64}}]
    actor = cluster.remote.return_value.options.return_value.remote
    actor.side_effect = lambda: mock.MagicMock()
    slots = ray._Slots(*words)
    slots._over = mock.MagicMock(wait=pauses.append, is_set=lambda: len(pauses) == 3)
    slots.begin(None)
    slots.close()
    return actor.call_count, pauses


print(count(0, {"CPU": 1}, 2, None), count(1, {"CPU": 0.1}, 2, None), count(1, {"CPU": 0.5}, 1, 4))
'''


def test_slots_of_ray_are_asked_for_where_no_node_has_room(ranks):
    path = ranks.write("")
    path.write_text(SLOTS)
    done = subprocess.run([ranks.python, path], text=True, capture_output=True, timeout=60,
                          env=ranks.gradus.environment(ranks.environment))
    pauses = [1.0] * 3  # a cluster has other things to do than to answer
    assert done.stdout == f"(2, {pauses}) (10, {pauses}) (4, {pauses})\n", done.stderr
