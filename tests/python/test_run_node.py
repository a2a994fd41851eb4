# SPDX-License-Identifier: Apache-2.0
"""gradus.run and gradus.distribute on a real node, where pods are containers that run (GRADUS_KUBE,
as for tests/blackbox/test_submit_cluster.py)."""
import pathlib
import shutil
import subprocess
import sys
import textwrap
from unittest import mock

import pytest

from conftest import SOURCE, blackbox, has

sys.path.append(str(SOURCE / "tests/blackbox"))
with mock.patch.dict(sys.modules, conftest=blackbox):
    from test_submit_cluster import node  # noqa: F401 (a fixture)

pytestmark = pytest.mark.long

IMAGE = "local.test/python:1"
FUNCTIONS = '''
import os
import signal
import gradus

FACTOR = 10


def total(scale):
    with gradus.Communicator() as comm:
        for step in range(1, 4):
            gradus.progress(step, 3, loss=1 / step)
            comm.barrier()
        return comm.rank, sum(comm.allgather_object(FACTOR * scale * comm.rank))


def fail(rank):
    comm = gradus.Communicator()
    comm.barrier()
    if comm.rank == rank:
        raise KeyError("no such sample")
    comm.barrier()


def die(rank):
    comm = gradus.Communicator()
    comm.barrier()
    if comm.rank == rank:
        os._exit(137)
    comm.barrier()


def wait():
    print("begun", flush=True)
    signal.pause()
'''


def make_image(folder, library):
    """Python with its own modules and cloudpickle, this package and the library, and a shell."""
    import cloudpickle
    copy = shutil.copy
    found = ["/bin/sh", sys.executable, library,
             *pathlib.Path(sys.base_prefix).glob(f"lib/{python_name()}/lib-dynload/*.so")]
    for one in found:
        for line in subprocess.run(["ldd", one], check=True, capture_output=True,
                                   text=True).stdout.splitlines():
            for word in line.split():
                if word.startswith("/") and not (folder / word[1:]).exists():
                    (folder / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                    copy(word, folder / word[1:])
    for path, source in {"bin/sh": "/bin/sh", "usr/bin/python3": sys.executable}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        copy(source, folder / path)
    modules = pathlib.Path(sys.base_prefix) / "lib" / python_name()
    skip = shutil.ignore_patterns("test", "__pycache__", "idlelib", "dist-packages", "config-*",
                                  "site-packages", "ensurepip", "tkinter", "sitecustomize.py")
    own = folder / str(modules)[1:]
    shutil.copytree(modules, own, ignore=skip)
    for package in (pathlib.Path(cloudpickle.__file__).parent, SOURCE / "python" / "gradus"):
        shutil.copytree(package, own / package.name, ignore=skip)
    copy(library, own / "gradus")
    (folder / "tmp").mkdir()


def python_name():
    return "python{}.{}".format(*sys.version_info[:2])


@pytest.fixture
def ends(ranks, node, tmp_path):  # noqa: F811
    """Runs a program, whose cluster is the node's; returns what it has written."""
    if not has(sys.executable, "cloudpickle"):
        pytest.skip("cloudpickle is not installed (Debian: python3-cloudpickle)")
    make_image(tmp_path / "image", ranks.gradus.library)
    made = node.run("image", IMAGE, tmp_path / "image")
    assert made.returncode == 0, made.stderr

    def run(text):
        (tmp_path / "functions.py").write_text(FUNCTIONS)
        path = tmp_path / "program.py"
        path.write_text("import gradus\nimport functions as f\n"
                        f"where = dict(namespace='default', image='{IMAGE}')\n"
                        + textwrap.dedent(text))
        process = ranks.gradus.start("exec", sys.executable, path, program=str(node.script),
                                     env={**node.environment, **ranks.environment})
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, out + err
        run.err = err
        return out.splitlines()
    return run


def test_functions_run_in_containers_that_meet(ends, node):  # noqa: F811
    lines = ends('''
        print(gradus.distribute(f.total, (1,), workers=3, **where))
        for function in (f.fail, f.die):
            try:
                gradus.run(function, (1,), num_proc=3, **where)
            except gradus.RankError as error:
                print(error.peer, str(error).splitlines()[0])
        try:
            gradus.run(f.total, (1,), num_proc=1, namespace="default",
                       image="local.test/nothing:1", start_timeout=5)
        except (gradus.InvalidError, gradus.TimeoutError) as error:
            print("nothing:1 (Err" in str(error), flush=True)
        import os, signal, threading
        threading.Timer(10, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            gradus.run(f.wait, num_proc=2, **where)
        except KeyboardInterrupt:
            print("interrupted")
        ''')
    shown = [line for line in lines if not line.startswith("[1]")]
    assert "[(0, 30), (1, 30), (2, 30)]" in lines and "3/3  loss 0.3333" in ends.err
    assert "1 run: rank 1 failed: KeyError: 'no such sample'" in shown
    lost = [line for line in shown if "the job failed: " in line]
    assert len(lost) == 1 and lost[0].startswith("1 "), shown[-6:]
    assert "137" in lost[0] or "rank 1 was lost: " in lost[0], lost  # if others ended before
    assert lines[-1] == "interrupted" and "True" in lines, shown[-6:]
    blackbox.wait_until(lambda: "No resources" in node.run(
        "kubectl", "get", "jobs,pods,cm", "-l", "job-name", "-n", "default").stderr,
        "the end of what belonged to the jobs", 120)
