# SPDX-License-Identifier: Apache-2.0
"""gradus.distribute: a function on several workers, and what is shown of their progress."""
import os
import pty
import re
import subprocess
import sys
import textwrap

import pytest

MODULE = '''
import sys
import gradus


def train(steps, report=True):
    with gradus.Communicator() as comm:
        for step in range(1, steps + 1):
            loss = comm.rank + 1 / step
            comm.barrier()
            if report:
                gradus.progress(step, steps, loss=loss)
        print("trained", flush=True)
        return comm.rank


def loud(steps):
    gradus.progress(1, steps, loss=1)
    print("a word", file=sys.stderr)
    gradus.progress(steps, steps, loss=0.2)


def endless(steps):
    with gradus.Communicator() as comm:
        gradus.progress(steps, loss=float("nan"), rate=comm.rank)
        return comm.rank


def fail(rank):
    comm = gradus.Communicator()
    gradus.progress(1, 4, loss=0.5)
    comm.barrier()
    if comm.rank == rank:
        raise KeyError("no such sample")
    comm.barrier()
'''

# As much of a notebook as there is to be seen from within: a kernel, and display handles.
NOTEBOOK = '''
import sys
import types

shown = []


class Handle:
    def update(self, thing):
        shown.append(thing._repr_html_())


def display(thing, display_id):
    assert display_id is True and not shown
    shown.append(thing._repr_html_())
    return Handle()


module = sys.modules["IPython"] = types.ModuleType("IPython")
module.get_ipython = lambda: types.SimpleNamespace(kernel=object())
inner = sys.modules["IPython.display"] = types.ModuleType("IPython.display")
inner.display = display
'''


@pytest.fixture
def words(ranks):
    """The command and environment of a program beside the functions."""
    def write(text):
        (ranks.folder / "functions.py").write_text(MODULE)
        path = ranks.folder / "program.py"
        path.write_text("import gradus\nimport functions\n" + textwrap.dedent(text))
        return [sys.executable, path], ranks.gradus.environment(ranks.environment)
    return write


@pytest.fixture
def ends(words, tmp_path):
    def run(text):
        command, env = words(text)
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        run.err = done.stderr
        return done.stdout.splitlines()
    return run


def test_distribute_returns_results_and_shows_lines(ends):
    lines = ends('''
        print(gradus.distribute(functions.train, (40,), workers=2))
        print(gradus.distribute(functions.train, kwargs={"steps": 2, "report": False}, workers=1))
        print(gradus.run(functions.train, (2,)))
        gradus.progress(1, 2, loss=3)
        ''')
    assert [line for line in lines if "trained" not in line] == ["[0, 1]", "[0]", "[0]"]
    assert len(lines) == 3 + 2 + 1 + 1
    bars = ends.err.splitlines()
    # The steps of both, and the mean of 0 + 1/40 and 1 + 1/40.
    assert re.fullmatch(r"\[#{20}\] 40/40  loss 0\.525(  \S+ steps/s)?", bars[-1]), ends.err
    assert all(re.fullmatch(r"\[#*\.*\] \d+/40  loss \S+(  \S+ steps/s)?", bar) for bar in bars)
    tenths = [int(re.search(r"(\d+)/", bar)[1]) // 4 for bar in bars]
    assert tenths == sorted(set(tenths)), ends.err


def test_distribute_waits_for_a_worker_that_has_reported_nothing(ends):
    """The other one is through."""
    ends('''
        from gradus._distribute import LineBoard
        board = LineBoard()
        for rank, step in ((0, 40), (1, 2), (1, 40)):
            board.take({"rank": rank, "step": step, "total": 40, "values": {"loss": rank}})
        board.end()
        ''')
    bars = ends.err.splitlines()
    assert [bar.partition("  ")[0] for bar in bars] == [
        "[#...................] 2/40", "[####################] 40/40"], ends.err
    assert "loss 0.5" in bars[1]


def test_distribute_without_an_end_shows_the_last_step(ends):
    assert ends("print(gradus.distribute(functions.endless, (7,), workers=3))") == ["[0, 1, 2]"]
    assert re.match(r"step 7  loss nan  rate 1$", ends.err.splitlines()[-1]), ends.err


def test_distribute_raises_what_a_rank_raised(ends):
    assert ends('''
        try:
            gradus.distribute(functions.fail, (1,), workers=3)
        except gradus.RankError as error:
            print(error.peer, repr(error.__cause__), 'raise KeyError("no such' in error.traceback)
        ''') == ["1 KeyError('no such sample') True"]
    assert "KeyError: 'no such sample'" in ends.err and "1/4  loss 0.5" in ends.err


def test_distribute_in_a_notebook_updates_one_element(ends):
    lines = ends(NOTEBOOK + '''
gradus.distribute(functions.train, (5,), workers=1)
print(shown[-1])
''')
    assert re.fullmatch(r'<div><progress value="5" max="5"></progress> <code>5/5  loss 0\.2'
                        r"(  \S+ steps/s)?</code></div>", lines[-1]), lines
    assert "/5" not in ends.err


def test_distribute_on_a_terminal_draws_one_line(words, tmp_path):
    command, env = words("gradus.distribute(functions.loud, (5,), workers=1)\n")
    above, below = pty.openpty()
    process = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=below, stderr=below)
    os.close(below)
    shown = b""
    try:
        while True:
            shown += os.read(above, 4096)
    except OSError:  # the other side is closed
        os.close(above)
    assert process.wait() == 0, shown
    text = shown.decode()
    assert "1/5  loss 1\r\033[K[0] a word\r\n\r\033[K[####" in text, repr(text)
    assert re.search(r"\r\033\[K\[#{20}\] 5/5  loss 0\.2(  \S+ steps/s)?\r\n$", text), text


def test_import_loads_nothing_of_others(ends):
    assert ends('''
        import sys
        print(sorted({"IPython", "asyncio", "gradus.jobs", "pyspark", "ray", "yaml", "torch",
                      "numpy"} & {*sys.modules}))
        print(gradus.jobs.train.__module__, "yaml" in sys.modules)
        ''') == ["[]", "gradus._jobs False"]
