# SPDX-License-Identifier: Apache-2.0
"""Workers that another system has placed: here other ranks of a job gather for them, as Ray and
Spark do (test_ray.py, test_spark.py)."""

PLACED = '''
import os
import gradus
from gradus import _placed

job = gradus.Communicator()
rank, gather = job.size - 1 - job.rank, lambda part: job.allgather_object(part)[::-1]


def total(scale):
    comm = gradus.Communicator()
    return comm.rank, comm.size, os.environ["RANK"], sum(comm.allgather_object(scale * comm.rank))


def fail():
    comm = gradus.Communicator()
    comm.barrier()
    if comm.rank == 1:
        raise KeyError("no such sample")
    comm.barrier()


def fail_horovod():
    from gradus import _objects, _world
    _world.init()
    _objects.allgather_object(0)
    if _world.rank() == 1:
        raise KeyError("no such sample")
    _objects.allgather_object(1)


def fail_early():
    """Some wait for the others to make a communicator, and one never does."""
    if os.environ["RANK"] == "1":
        raise ImportError("no such module")
    if os.environ["RANK"] == "0":
        comm = gradus.Communicator()


def return_early():
    if os.environ["RANK"] != "1":
        comm = gradus.Communicator()


def ends(fn, *args):
    """What the one who has placed them does."""
    rounds = _placed.Rounds(gather)
    with _placed.rank_of(rank, job.size, rounds.gather, {"RANK": str(rank), "OTHER": "here"}):
        mine = _placed.outcome_of(fn, args, {}, rank, leave=True)
    rounds.end(mine)
    try:
        return _placed.values_of(job.allgather_object(mine)[::-1])
    except gradus.RankError as error:
        return error.peer, repr(error.__cause__), "raise KeyError" in error.traceback


before = dict(os.environ)
print(ends(total, 10))
print(ends(fail))
print(ends(fail_horovod))
print(ends(fail_early)[:2])
print("rank 1 has returned, and makes no comm" in str(ends(return_early)[1]))
print(ends(total, 1))
print(str(ends(lambda: (i for i in "ab"))[1])[:24])
print(dict(os.environ) == before, gradus._communicator.open_now() == {job})
'''


def test_placed_ranks_meet_fail_and_meet_again(ranks):
    lines = ranks(3, PLACED)
    for rank in range(3):
        assert lines[rank] == [
            f"{[(peer, 3, str(peer), 30) for peer in range(3)]}",
            *["(1, \"KeyError('no such sample')\", True)"] * 2,
            "(1, \"ImportError('no such module')\")", "True",
            f"{[(peer, 3, str(peer), 3) for peer in range(3)]}",
            'InvalidError("the result', "True True"]
