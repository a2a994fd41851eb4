# SPDX-License-Identifier: Apache-2.0
"""gradus.jobs: functions, components and commands as jobs, and workers of a session, on this
host."""
import json
import subprocess
import sys
import textwrap

import pytest

from conftest import SOURCE, blackbox

sys.path.append(str(SOURCE / "tests/blackbox"))
import kube_api  # noqa: E402
from kube_pods import JOBS, PodApi  # noqa: E402

FUNCTIONS = '''
import os
import sys
import gradus
from gradus import jobs

LIMIT = 3


def place(word):
    import json
    import os
    task = json.loads(os.environ.get("TF_CONFIG", '{"task": null}'))["task"]
    role = " ".join(str(value) for value in (task or {}).values())
    print(word, os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["OMP_NUM_THREADS"], role)


def total(scale, plus=0):
    import gradus
    with gradus.Communicator() as comm:
        print("total", sum(comm.allgather_object(scale * comm.rank)) + plus)


def fail(rank):
    import gradus
    comm = gradus.Communicator()
    comm.barrier()
    if comm.rank == rank:
        raise KeyError("no such sample")
    comm.barrier()


def forever():
    import signal
    print("begun", flush=True)
    signal.pause()


def outside(count):
    return os.getpid() + LIMIT + count


def told(call, *words, **more):
    try:
        print("returned", call(*words, **more))
    except gradus.Error as error:
        print(type(error).__name__, str(error).splitlines()[0])
'''


@pytest.fixture
def ends(ranks):
    """Runs a program behind the functions; returns what it has written."""
    def run(text, code=0, env=None):
        path = ranks.folder / "program.py"
        path.write_text(FUNCTIONS + textwrap.dedent(text))
        done = subprocess.run([sys.executable, path], cwd=ranks.folder, text=True,
                              capture_output=True,
                              env=ranks.gradus.environment({**ranks.environment, **(env or {})}))
        assert done.returncode == code, done.stdout + done.stderr
        run.err = done.stderr
        ranks.gradus.wait_for_nothing()
        return done.stdout.splitlines()
    return run


# ---- train --------------------------------------------------------------------------------------
def test_train_starts_the_ranks_of_each_kind(ends):
    lines = ends('''
        kinds = {"a": {"number_of_workers": 2, "worker_cpus": "1500m"},
                 "b": {"distribution_type": "MPI", "slots_per_worker": 2, "number_of_workers": 1,
                       "launcher_memory": "1Gi"},
                 "c": {"distribution_type": "TF", "worker_memory": "2Gi"},
                 "d": None, "e": {"distribution_type": "PyTorch", "worker_cpus": 3}}
        for word, kind in kinds.items():
            assert jobs.train(place, {"word": word}, kind).state() == "done"
        jobs.train(place, {"word": ""}, {"distribution_type": "TF", "number_of_ps": 1},
                   flags=["--dry-run"])
        ''')
    shown = [line for line in lines if line.startswith("[")]
    assert {"chief: rank 0", "worker: ranks 1 to 2", "ps: rank 3"} <= {*lines}
    assert sorted(line.partition("] ")[2].rstrip() for line in shown) == [
        "a 0 2 2", "a 1 2 2", "b 0 2 1", "b 1 2 1", "c 0 2 1 worker 0", "c 1 2 1 worker 1",
        "d 0 1 1", "e 0 2 3", "e 1 2 3"]


def test_train_sums_and_fails_with_the_traceback_and_the_rank(ends):
    lines = ends('''
        job = jobs.train(total, {"scale": 10, "plus": 1}, {"number_of_workers": 3})
        assert job.logs().count("total 31") == 3
        try:
            jobs.train(fail, {"rank": 1}, {"number_of_workers": 3, "name": "failing"})
        except jobs.JobError as error:
            print(error.peer, error.code, error.job.name, error.job.state())
            print('[1]     raise KeyError("no such sample")' in str(error))
        ''')
    assert sorted(lines[:3]) == [f"[{rank}] total 31" for rank in range(3)]
    assert lines[3:] == ["1 1 failing failed", "True"]


COMPONENT = {
    "name": "Train model",
    "inputs": [{"name": "epochs", "type": "Integer"}, {"name": "rate", "optional": True},
               {"name": "seed", "default": "7"}, {"name": "data"}],
    "outputs": [{"name": "model"}],
    "implementation": {"container": {
        "image": "python", "command": ["sh", "-ec", 'echo "$0" "$@"', "words"],
        "args": ["--epochs", {"inputValue": "epochs"},
                 {"if": {"cond": {"isPresent": "rate"},
                         "then": ["--rate", {"inputValue": "rate"}]}},
                 {"concat": ["seed=", {"inputValue": "seed"}]},
                 {"inputPath": "data"}, {"outputPath": "model"}]}}}


def test_train_runs_components_and_commands(ends, tmp_path):
    yaml = pytest.importorskip("yaml")
    (tmp_path / "component.yaml").write_text(yaml.safe_dump(COMPONENT))
    lines = ends(f'''
        given = {{"epochs": 3, "data": "/data", "model": "/model"}}
        jobs.train(open("component.yaml").read(), given, {{"name": "one"}})
        jobs.train("component.yaml", {{**given, "rate": 0.5}})
        jobs.train({json.dumps(json.dumps(COMPONENT))}, {{**given, "seed": 8}})
        jobs.train(["echo", "words"], {{"rate": 0.5, "names": ["a", "b"], "text": "x y"}})
        jobs.train(["sh", "-c", "pwd; echo $WORD"], None, {{"code": "/usr/lib"}},
                   env={{"WORD": "hello"}})
        ''')
    assert lines == ["[0] words --epochs 3 seed=7 /data /model",
                     "[0] words --epochs 3 --rate 0.5 seed=7 /data /model",
                     "[0] words --epochs 3 seed=8 /data /model",
                     '[0] words --rate 0.5 --names ["a", "b"] --text x y',
                     "[0] /usr/lib", "[0] hello"]


def test_train_refuses_what_is_wrong_and_starts_nothing(ends):
    lines = ends(f'''
        component = {COMPONENT!r}
        given = {{"epochs": 3, "data": "/data", "model": "/model"}}
        told(jobs.train, total, {{"scale": 1}}, {{"number_of_worker": 2}})
        told(jobs.train, total, {{"scale": 1}}, {{"number_of_workers": 0}})
        told(jobs.train, total, {{"scale": 1}}, {{"worker_memory": "4 lots"}})
        told(jobs.train, total, {{"scale": 1}}, {{"distribution_type": "PyTorh"}})
        told(jobs.train, total, {{"scale": 1}}, {{"number_of_workers": [2]}})
        told(jobs.train, total, {{"scale": 1}}, {{"code": "/nowhere"}})
        told(jobs.train, total, {{"scal": 1}})
        told(jobs.train, total)
        told(jobs.train, total, {{"scale": gradus}})
        told(jobs.train, outside, {{"count": 1}})
        told(jobs.train, print)
        told(jobs.train, lambda: 0)
        told(jobs.train, component, {{**given, "epoch": 3}})
        told(jobs.train, component)
        told(jobs.train, {{"name": "empty"}})
        told(jobs.train, "train.py")
        told(jobs.train, "nowhere.yaml")
        told(jobs.train, [])
        told(jobs.train, total, {{"scale": "x" * 200000}})
        ''')
    assert all(line.startswith("InvalidError ") for line in lines), lines
    wanted = ['number_of_workers"?', "from 1 to 4096", "4 lots", 'did you mean "PyTorch"?',
              "number_of_workers is a list", "/nowhere is not on this host",
              'did you mean "scale"?', "needs scale", "is a module, which JSON cannot carry",
              "uses LIMIT, os from outside",
              "has no text that can travel", "begins with told(jobs.train,", 'mean "epochs"?',
              "needs epochs", "has no implementation.container", 'is the text "train.py"',
              "nowhere.yaml cannot be read", "an empty command", "196 KiB"]
    for line, words in zip(lines, wanted):
        assert words in line, (line, words)
    assert len(lines) == len(wanted)


def test_train_without_waiting_can_be_waited_for_and_stopped(ends):
    lines = ends('''
        job = jobs.train(forever, wait=False)
        told(job.wait, 0)
        while "begun" not in job.logs():
            assert job.state() == "running"
        job.stop()
        print(job.state())
        told(job.wait)
        job.stop()
        ''')
    assert [line for line in lines if "TimeoutError" in line]
    assert lines[-2] == "stopped" and "was ended" in lines[-1]


# ---- Workers ------------------------------------------------------------------------------------
def test_workers_are_launched_awaited_and_stopped(ends, tmp_path):
    (tmp_path / "script.py").write_text("import os\nprint(os.environ['CDSW_ENGINE_ID'][:5])\n")
    lines = ends('''
        good = jobs.launch_workers(2, 1, 0.5, script="script.py", code="this is ignored")
        bad = jobs.launch_workers(1, 1, 0.5, code="!echo $WORD >&2; exit 3",
                                  env={"WORD": "from the worker"}, name="bad")
        print([one["status"] in ("running", "succeeded") for one in good], good[0]["memory"])
        done = jobs.await_workers([*good, bad[0]["id"]])
        print([one["status"] for one in done["workers"]], len(done["failures"]))
        failed = done["failures"][0]
        print(failed["status"], "from the worker" in failed["message"])
        waiting = jobs.launch_workers(2, 1, 1, code="import signal; signal.pause()", name="idle")
        running = jobs.await_workers(waiting, wait_for_completion=False)
        print(len(running["workers"]), [one["ip_address"] for one in running["workers"]])
        late = jobs.await_workers(waiting, timeout_seconds=0.01)
        print([one["status"] for one in late["failures"]])
        print([one["status"] for one in jobs.stop_workers(waiting[0])])
        print([one["status"] for one in jobs.list_workers()])
        ''')
    words = [line for line in lines if line.startswith("[worker-")]
    assert sorted(words)[0].endswith("-0] worke") and len(words) == 2
    assert [line for line in lines if line not in words] == [
        "[True, True] 0.5", "['succeeded', 'succeeded'] 1", "failed True",
        "2 ['127.0.0.1', '127.0.0.1']", "['running', 'running']", "['stopped']",
        "['succeeded', 'succeeded', 'failed', 'stopped', 'running']"]


def test_workers_that_are_wrong_are_refused(ends):
    lines = ends('''
        told(jobs.launch_workers, 0, 1, 1, code="pass")
        told(jobs.launch_workers, 1, 1, 1)
        told(jobs.launch_workers, 1, 1, 1, script="nowhere.py")
        told(jobs.launch_workers, 1, 1, 1, code="pass", kernel="r")
        told(jobs.launch_workers, 1, -1, 1, code="pass")
        told(jobs.await_workers, ["nobody"])
        told(jobs.stop_workers, "nobody")
        told(jobs.run_cluster, 0, 1, 1, 1)
        told(jobs.run_cluster, 1, 1, 1, 1, worker_script="nowhere.py")
        print(jobs.list_workers())
        ''')
    wanted = ["n is 0", "neither script nor code", "nowhere.py does not exist", "kernel is 'r'",
              "-1", "no worker 'nobody'", "no worker 'nobody'", "0 workers and 1",
              "nowhere.py does not exist"]
    assert all(line.startswith("InvalidError ") for line in lines[:-1]), lines
    for line, words in zip(lines, wanted):
        assert words in line, (line, words)
    assert lines[len(wanted):] == ["[]"]


# As much of TensorFlow as run_cluster uses: servers that listen at their addresses.
TENSORFLOW = '''
import signal
import socket
import types


class Server:
    def __init__(self, cluster, job_name, task_index):
        host, port = cluster[job_name][task_index].split(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind((host, int(port)))
        self.socket.listen()

    def join(self):
        signal.pause()


train = types.SimpleNamespace(ClusterSpec=dict, Server=Server)
distribute = types.SimpleNamespace(Server=Server)
'''
SCRIPT = '''
def run(cluster, server, index):
    print({role: len(tasks) for role, tasks in cluster.items()}, index, server.socket.getsockname()
          == ("127.0.0.1", int(cluster["worker"][index].split(":")[1])), flush=True)
    if index == BAD:
        raise KeyError("no such sample")
'''


def test_cluster_runs_a_script_or_serves(ends, tmp_path):
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    (tmp_path / "script.py").write_text(SCRIPT.replace("BAD", "None"))
    (tmp_path / "bad.py").write_text(SCRIPT.replace("BAD", "1"))
    lines = ends('''
        import socket
        print(jobs.run_cluster(2, 1, 1, 1, worker_script="script.py"))
        try:
            jobs.run_cluster(2, 0, 1, 1, worker_script="bad.py", flags=["--quiet"])
        except jobs.JobError as error:
            print(error.peer, "KeyError: 'no such sample'" in str(error))
        cluster, master = jobs.run_cluster(1, 1, 1, 1)
        first = cluster["worker"][0]
        print(len(cluster["worker"]), len(cluster["ps"]), master == "grpc://" + first)
        socket.create_connection(first.split(":")).close()
        print([one["status"] for one in jobs.list_workers()])
        ''')
    served = "{'worker': 2, 'ps': 1}"
    assert sorted(lines[:2]) == [f"[0] {served} 0 True", f"[1] {served} 1 True"]
    assert lines[2] == "(None, None)" and lines[-3] == "1 True"
    assert lines[-2:] == ["1 1 True", "['succeeded', 'failed', 'running']"]


def test_cluster_that_does_not_start_ends_in_time(ends, tmp_path):
    (tmp_path / "tensorflow.py").write_text("import signal\nsignal.pause()\n")
    lines = ends('''
        told(jobs.run_cluster, 1, 1, 1, 1, timeout_seconds=0.1)
        print([one["status"] for one in jobs.list_workers()])
        ''')
    assert "TimeoutError" in lines[0] and lines[1] == "['stopped']"


# ---- On a cluster -------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return kube_api.make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def api(certificates):
    api = PodApi(certificates)
    yield api
    api.close()


@pytest.fixture
def begins(ranks, api):
    """Starts a program behind the functions, whose cluster is that of the tests."""
    def begin(text):
        path = ranks.folder / "program.py"
        path.write_text(FUNCTIONS + textwrap.dedent(text))
        config = api.kubeconfig(ranks.folder / "config")
        return ranks.gradus.start(path, program=sys.executable,
                                  env={**ranks.environment, "KUBECONFIG": str(config)})
    return begin


def jobs_of(api, count):
    """Waits for that many jobs; their names."""
    api.wait(lambda: len(api.names(JOBS)) == count, f"{count} jobs")
    return api.names(JOBS)


def is_over(process):
    out, err = process.communicate(timeout=blackbox.TIMEOUT_S)
    assert process.returncode == 0, out + err
    return out.splitlines()


def test_train_on_a_cluster_sends_a_job_and_follows_it(api, begins):
    process = begins('''
        spec = {"number_of_workers": 2, "worker_cpus": 2, "worker_memory": "4Gi", "worker_gpus": 1}
        job = jobs.train(total, {"scale": 10}, spec, namespace="team", env={"WORD": "a b"},
                         flags=["--volume", "pvc:data:/data"])
        print(job.state(), job.code, job.logs())
        told(jobs.train, total, {"scale": 1}, {"number_of_worker": 2}, context="test")
        told(jobs.train, total, {"scale": 1}, context="nowhere")
        try:
            jobs.train(["false"], None, {"name": "failing"}, context="test")
        except jobs.JobError as error:
            print(error.peer, error.code, error.job.state())
        ''')
    name, = jobs_of(api, 1)
    assert name.startswith("total-")
    spec = api.get(JOBS, name)["spec"]
    pod = spec["template"]["spec"]
    container, = pod["containers"]
    assert spec["completions"] == 2 and pod["volumes"]
    assert container["image"] == "docker.io/library/python:3-slim"
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}
    assert {"name": "WORD", "value": "a b"} in container["env"]
    assert container["command"][:2] == ["python3", "-c"]
    assert "comm.allgather_object(scale * comm.rank)" in container["command"][2]
    api.start_pods(name)
    for rank in range(2):
        api.say(f"{name}-{rank}-x", "total 10\n")
        api.end_pod(f"{name}-{rank}-x")
    api.end_job(name)
    failing, = {*jobs_of(api, 2)} - {name}
    api.start_pods(failing)
    api.end_pod(f"{failing}-0-x", 3, "Error")
    api.end_job(failing, "BackoffLimitExceeded")
    lines = is_over(process)
    assert sorted(lines[:2]) == ["[0] total 10", "[1] total 10"]
    assert lines[2].startswith("done 0 ") and 'did you mean "number_of_workers"?' in "".join(lines)
    assert lines[-2].startswith("InvalidError ") and "nowhere" in lines[-2]
    assert failing == "failing" and lines[-1] == "0 1 failed"


def test_workers_on_a_cluster_are_awaited_and_stopped(api, begins):
    process = begins('''
        workers = jobs.launch_workers(2, 0.5, 2, code="print('hello')", namespace="team",
                                      env={"WORD": "hello"})
        print([one["status"] for one in workers], workers[0]["ip_address"], flush=True)
        running = jobs.await_workers(workers, wait_for_completion=False)
        print([one["ip_address"] == one["id"] + "-0." + one["id"] for one in running["workers"]],
              flush=True)
        done = jobs.await_workers(workers[:1])
        print([one["status"] for one in done["workers"]])
        print([one["status"] for one in jobs.stop_workers()])
        ''')
    names = jobs_of(api, 2)
    container, = api.get(JOBS, names[1])["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python3", "-c", "print('hello')"]
    assert container["resources"]["limits"] == {"cpu": "0.5", "memory": "2Gi"}
    for name in names:
        api.start_pods(name)
        api.put(JOBS, {**api.get(JOBS, name), "status": {"active": 1, "ready": 1}})
    read = process.stdout.readline
    assert (read(), read()) == ("['scheduling', 'scheduling'] unknown\n", "[True, True]\n")
    api.say(f"{names[0]}-0-x", "hello\n")
    api.end_pod(f"{names[0]}-0-x")
    api.end_job(names[0])
    api.wait(lambda: api.names(JOBS) == names[:1], "the end of the second one")
    assert is_over(process) == [f"[{names[0]}] hello", "['succeeded']", "['succeeded', 'stopped']"]
