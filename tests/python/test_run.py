# SPDX-License-Identifier: Apache-2.0
"""gradus.run: a function on several ranks."""
import os
import signal
import subprocess
import sys

import pytest

from conftest import blackbox

MODULE = '''
import os
import signal
import sys
import gradus


def total(scale, plus=0):
    with gradus.Communicator() as comm:
        return comm.rank, sum(comm.allgather_object(scale * comm.rank)) + plus


def fail(rank):
    comm = gradus.Communicator()
    comm.barrier()
    if comm.rank == rank:
        raise KeyError("no such sample")
    comm.barrier()


def die(rank):
    comm = gradus.Communicator()
    if comm.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def die_horovod(rank):
    """The other ranks raise HorovodInternalError."""
    from gradus import _objects, _world
    _world.init()
    if _world.rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    _objects.allgather_object(rank)


class Foreign(Exception):
    def __reduce__(self):
        return made_there, ()


def made_there():
    os.environ["GRADUS_RANK"]
    return Foreign()


def fail_foreign():
    raise Foreign("of a package that only the workers have")


def after_a_death():
    """As if a worker of this rank had been killed while it wrote."""
    open(os.path.join(sys.argv[1], "result.0.partial"), "w").close()
    return 5


def unpicklable():
    return sys._getframe()


def forever():
    print("begun", flush=True)
    gradus.Communicator().recv(bytearray(1), 0)
'''


def program(ranks, text):
    """The words that run it, beside a module of functions."""
    (ranks.folder / "functions.py").write_text(MODULE)
    return [sys.executable, ranks.write(text)]


def ends(ranks, text):
    """Runs it; returns what it has written."""
    words = program(ranks, text)
    done = subprocess.run(words, env=ranks.gradus.environment(ranks.environment), text=True,
                          cwd=ranks.folder, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [name for name in os.listdir(ranks.folder) if name.startswith("gradus-run-")]
    return done.stdout.splitlines()


def test_run_returns_results_by_rank(ranks):
    assert ends(ranks, '''
        import gradus
        import functions
        print(gradus.run(functions.total, (10,), {"plus": 1}, num_proc=3))
        print(gradus.run(functions.total, (1,)))
        ''') == ["[(0, 31), (1, 31), (2, 31)]", "[(0, 0)]"]


def test_run_carries_lambdas_by_cloudpickle(ranks):
    pytest.importorskip("cloudpickle")
    assert ends(ranks, '''
        import os
        import gradus
        factor = 3
        print(gradus.run(lambda: factor * int(os.environ["RANK"]), num_proc=2))
        ''') == ["[0, 3]"]


def test_run_without_cloudpickle_says_what_helps(ranks):
    line, = ends(ranks, '''
        import sys
        sys.modules["cloudpickle"] = None
        import gradus
        def mine():
            pass
        try:
            gradus.run(mine)
        except gradus.InvalidError as error:
            print(error)
        ''')
    assert "move it to a module, or install cloudpickle" in line


def test_run_raises_what_a_rank_raised(ranks):
    assert ends(ranks, '''
        import gradus
        import functions
        try:
            gradus.run(functions.fail, (1,), num_proc=3)
        except gradus.RankError as error:
            print(error.peer, repr(error.__cause__), 'raise KeyError("no such' in error.traceback)
            print(error)
        ''') == ["1 KeyError('no such sample') True",
                "run: rank 1 failed: KeyError: 'no such sample'"]


def test_run_names_a_rank_that_is_killed(ranks):
    assert ends(ranks, '''
        import gradus
        import functions
        try:
            gradus.run(functions.die, (1,), num_proc=2)
        except gradus.RankError as error:
            print(error.peer, "killed by signal 9" in str(error))
        try:
            gradus.run(functions.die_horovod, (1,), num_proc=3)
        except gradus.RankError as error:
            print(error.peer, "killed by signal 9" in str(error))
        ''') == ["1 True", "1 True"]


def test_run_checks_results_and_arguments(ranks):
    lines = ends(ranks, '''
        import sys
        import gradus
        import functions
        for words in ((functions.unpicklable,), (print, (sys._getframe(),)), (print, (), {}, 0)):
            try:
                gradus.run(*words)
            except gradus.Error as error:
                print(str(error).splitlines()[0])
        for call in (lambda: gradus.run(print, env={"Q": 3}),
                     lambda: gradus.run(print, num_procs=2), lambda: gradus.run(print, arg=()),
                     lambda: gradus.run(print, kwarg={}), lambda: gradus.run(print, workers=2),
                     lambda: gradus.run(print, host="h"), lambda: gradus.run(print, xyzzy=1),
                     lambda: gradus.distribute(print, num_proc=2),
                     lambda: gradus.distribute(print, worker=2),
                     lambda: gradus.jobs.train(print, train_parameter={})):
            try:
                call()
            except gradus.InvalidError as error:
                print(error)
        ''')
    assert [line.partition("did you mean ")[2] for line in lines[4:]] == [
        '"num_proc"?', '"args"?', '"kwargs"?', '"num_proc"?', '"hosts"?', "", '"workers"?',
        '"workers"?', '"train_parameters"?']
    assert lines[3] == "run: the variable 'Q' of env is 3; names and values are texts"
    assert "the result, a frame, cannot be pickled" in lines[0]
    assert "cannot be pickled" in lines[1] and "num_proc is 0" in lines[2]


def test_run_names_an_error_that_cannot_travel_and_writes_beside_a_dead_worker(ranks):
    assert ends(ranks, '''
        import gradus
        import functions
        try:
            gradus.run(functions.fail_foreign)
        except gradus.RankError as error:
            print(error.peer, error.__cause__, "only the workers have" in str(error))
        print(gradus.run(functions.after_a_death))
        ''') == ["0 None True", "[5]"]


@pytest.mark.parametrize("how", ["at once", "unseen"])
def test_run_ends_with_ctrl_c_and_leaves_nothing(ranks, how):
    """Also with one that interrupts no call of the main thread, as one that comes just before a
    wait."""
    words = program(ranks, '''
        import signal
        import sys
        import threading
        import gradus
        import functions

        def interrupt():
            if sys.stdin.readline():
                signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            gradus.run(functions.forever, num_proc=2)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        ''')
    process = ranks.gradus.start(*words[1:], program=words[0], env=ranks.environment,
                                 stdin=subprocess.PIPE)
    assert process.stdout.readline().endswith("begun\n")
    if how == "unseen":
        process.stdin.write("now\n")
        process.stdin.flush()
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=blackbox.TIMEOUT_S)
    assert out.splitlines()[-1] == "interrupted" and process.returncode == 0, out + err
    ranks.gradus.wait_for_nothing()


GONE = '''
import os
import socket
import sys
import gradus
from gradus import _elastic, _objects, _world


def name(*lines):
    with open("hosts.new", "w") as file:
        file.write("\\n".join(lines) + "\\n")
    os.replace("hosts.new", "hosts.list")


def train():
    """Until the second host is gone."""
    _world.init()
    state = _elastic.ObjectState(_objects.broadcast_object, _world.rank, named=False)

    @_elastic.run
    def until_alone(state):
        while _world.size() == 2:
            if _world.rank() == 0 and not state.named:
                name("localhost:1")
            state.named = True
            state.commit()
        return _world.size()
    return until_alone(state)


if __name__ == "__main__":
    name("localhost:1", socket.gethostname() + ":1")
    print(gradus.run(train, num_proc=2, min_num_proc=1, max_num_proc=2,
                     host_discovery_script=os.path.abspath("hosts.sh"),
                     flags=["--discovery-interval", "200ms"]))
'''


def test_run_goes_on_without_a_worker_that_is_not_needed_any_more(ranks):
    pytest.importorskip("cloudpickle")
    script = ranks.folder / "hosts.sh"
    script.write_text("#!/bin/sh\ncat hosts.list\n")
    script.chmod(0o755)
    assert ends(ranks, GONE) == ["[1]"]
