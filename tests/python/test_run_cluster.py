# SPDX-License-Identifier: Apache-2.0
"""gradus.run, gradus.distribute and gradus.jobs.run_cluster on a Kubernetes cluster: the API
server of the tests, whose pods are processes of this host."""
import base64
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from conftest import SOURCE, blackbox

sys.path.append(str(SOURCE / "tests/blackbox"))
import kube_api  # noqa: E402
from kube_pods import JOBS, PODS, PodApi  # noqa: E402

MAPS = "/v1/configmaps"
FUNCTIONS = '''
import os
import gradus
from gradus import jobs

FACTOR = 10


def scaled(by, plus=0):
    gradus.progress(1, 2, loss=0.5)
    return FACTOR * by * int(os.environ["RANK"]) + plus, os.environ["WORD"]


def fail(rank):
    if int(os.environ["RANK"]) == rank:
        raise KeyError("no such sample")


def leave(code):
    os._exit(code)


def big(mib):
    return os.urandom(mib << 20)


def told(call, *words, **more):
    try:
        print("returned", call(*words, **more))
    except gradus.Error as error:
        print(type(error).__name__, error.peer, str(error).replace("\\n", " "), flush=True)
'''
TENSORFLOW = '''
import types


class Server:
    def __init__(self, cluster, job_name, task_index):
        self.place = cluster[job_name][task_index]

    def join(self):
        import signal
        signal.pause()


train = types.SimpleNamespace(ClusterSpec=dict, Server=Server)
distribute = types.SimpleNamespace(Server=Server)
'''


class Cluster:
    """Runs the pods of jobs. `python`: the words in place of the image's python3."""

    def __init__(self, api, ranks):
        self.api, self.ranks, self.python = api, ranks, [sys.executable]
        self.pods, self.readers, self.seen = [], [], set()

    def next_job(self):
        """The name of a job that nobody has looked at."""
        new = set()

        def is_there():
            new.update({*self.api.names(JOBS)} - self.seen)
            return new
        self.api.wait(is_there, "another job")
        self.seen |= new
        return new.pop()

    def run(self, job, **env):
        """Runs its pods; the job ends with them."""
        spec = self.api.get(JOBS, job)["spec"]
        container, = spec["template"]["spec"]["containers"]
        folder = self.ranks.folder / job
        folder.mkdir()
        for name in self.api.names(MAPS):
            for data in self.api.get(MAPS, name).get("binaryData", {}).values():
                whole = base64.b64decode(data)
                (folder / ("script.py" if b"def run" in whole else "call")).write_bytes(whole)
        self.api.start_pods(job)
        told = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        python = [*self.python, *container["command"][1:]]
        for rank in range(spec["completions"]):
            pod = subprocess.Popen(
                [word.replace("$$", "$") for word in python], cwd=folder, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=self.ranks.gradus.environment({
                    **self.ranks.environment, **told, "RANK": str(rank), **env}))
            self.pods.append(pod)
            reader = threading.Thread(target=self.read, args=(job, rank, pod))
            self.readers.append(reader)
            reader.start()
        return self.pods[-spec["completions"]:]

    def read(self, job, rank, pod):
        for line in pod.stdout:
            self.api.say(f"{job}-{rank}-x", line)
        code = pod.wait()
        try:
            self.api.end_pod(f"{job}-{rank}-x", code, "Error" if code else "Completed")
        except (kube_api.Refusal, TypeError):
            pass  # it was deleted

    def finish(self, job):
        """Until its pods have ended."""
        for reader in self.readers:
            reader.join()
        failed = any(pod.returncode for pod in self.pods)
        self.pods, self.readers = [], []
        self.api.end_job(job, "BackoffLimitExceeded" if failed else "")

    def close(self):
        for pod in self.pods:
            pod.kill()
        for reader in self.readers:
            reader.join()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return kube_api.make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def api(certificates):
    api = PodApi(certificates)
    yield api
    api.close()


@pytest.fixture
def cluster(api, ranks):
    made = Cluster(api, ranks)
    yield made
    made.close()


@pytest.fixture
def begins(ranks, api):
    """Starts a program beside the functions, whose cluster is that of the tests."""
    def begin(text, token=None):
        (ranks.folder / "functions.py").write_text(FUNCTIONS)
        path = ranks.folder / "program.py"
        path.write_text("import gradus\nfrom gradus import jobs\nimport functions as f\n"
                        "from functions import told\n"
                        "where = dict(namespace='team', image='img')\n" + textwrap.dedent(text))
        config = api.kubeconfig(ranks.folder / "config")
        api.token = token or api.token
        return ranks.gradus.start(path, program=sys.executable,
                                  env={**ranks.environment, "KUBECONFIG": str(config)})
    return begin


def is_over(process):
    out, err = process.communicate(timeout=blackbox.TIMEOUT_S)
    assert process.returncode == 0, out + err
    return out.splitlines(), err


def is_gone(api, job):
    api.wait(lambda: job not in str(api.names(JOBS) + api.names(MAPS)), "the end of the job")
    return True


def test_functions_run_in_pods_and_their_results_come_back(api, cluster, begins):
    process = begins('''
        env = {"WORD": "a b"}
        print(gradus.run(f.scaled, (1,), {"plus": 1}, num_proc=3, env=env, **where))
        print(gradus.distribute(lambda: f.scaled(2), workers=2, context="test", image="other",
                                env=env, flags=["--memory", "4Gi"]))
        print([len(one) for one in gradus.run(f.big, (3,), **where)])
        ''')
    job = cluster.next_job()
    assert job.startswith("scaled-")
    container, = api.get(JOBS, job)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "img" and container["command"][:2] == ["python3", "-c"]
    cluster.run(job)
    cluster.finish(job)
    assert is_gone(api, job)
    job = cluster.next_job()
    container, = api.get(JOBS, job)["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["resources"]["limits"]) == ("other", {"memory": "4Gi"})
    cluster.run(job)
    cluster.finish(job)
    job = cluster.next_job()
    cluster.run(job)
    cluster.finish(job)
    lines, err = is_over(process)
    assert lines == ["[(1, 'a b'), (11, 'a b'), (21, 'a b')]", "[(0, 'a b'), (20, 'a b')]",
                     "[3145728]"]
    assert "1/2  loss 0.5" in err and api.names(JOBS) == []


def test_failures_in_pods_are_named(api, cluster, begins):
    process = begins('''
        told(gradus.run, f.fail, (1,), num_proc=2, **where)
        told(gradus.run, f.leave, (3,), num_proc=1, **where)
        told(gradus.run, f.leave, (0,), num_proc=1, **where)
        told(gradus.run, f.big, (5,), num_proc=1, **where)
        told(gradus.run, f.big, (0,), num_proc=1, **where)
        told(gradus.run, f.big, (0,), num_proc=1, **where)
        ''')
    for python in [[sys.executable]] * 4 + [
            [sys.executable, "-c", "import sys; sys.modules['gradus'] = None; "
             "sys.argv = sys.argv[1:]; exec(sys.argv.pop(1))"],
            [sys.executable, "-c", "import sys; sys.version_info = (3, 5, 0); "
             "sys.argv = sys.argv[1:]; exec(sys.argv.pop(1))"]]:
        job = cluster.next_job()
        cluster.python = python
        cluster.run(job)
        cluster.finish(job)
    lines, err = is_over(process)
    lines = [line for line in lines if not line.startswith("[")]
    wanted = ["RankError 1 run: rank 1 failed: KeyError: 'no such sample'",
              "RankError 0 run: the job failed: ",
              "RankError 0 run: the job failed: rank 0 ended before the function returned",
              "RankError 0 run: rank 0 failed: gradus.errors.InvalidError: ",
              "RankError 0 run: the job failed: ", "RankError 0 run: the job failed: "]
    for line, words in zip(lines, wanted):
        assert line.startswith(words), (line, words)
    assert len(lines) == len(wanted) and re.search("failed: worker 0 .*code 3", lines[1])
    assert "4 MiB come back" in lines[3]
    assert "has no gradus" in lines[4] and "is Python 3.5, and the function comes" in lines[5]
    assert api.names(JOBS) == []


def test_ctrl_c_deletes_the_job(api, cluster, begins):
    process = begins('''
        try:
            gradus.run(f.scaled, (1,), num_proc=2, **where)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        ''')
    job = cluster.next_job()
    api.start_pods(job)
    process.send_signal(signal.SIGINT)
    assert is_gone(api, job)
    lines, err = is_over(process)
    assert lines == ["interrupted"] and "goes on" not in err


def test_ctrl_c_while_a_job_is_sent_deletes_it(api, cluster, begins, tmp_path):
    """The command that sends it is there, and what reads of that is not yet."""
    os.mkfifo(tmp_path / "go")
    process = begins(f'''
        import threading
        start = threading.Thread.start

        def late(thread):
            threading.Thread.start = start
            open("{tmp_path}/go").close()
            start(thread)
        threading.Thread.start = late
        try:
            gradus.run(f.scaled, (1,), num_proc=2, **where)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        ''')
    job = cluster.next_job()
    process.send_signal(signal.SIGINT)
    open(tmp_path / "go", "w").close()
    assert is_gone(api, job)
    assert is_over(process)[0] == ["interrupted"]


def test_lost_worker_is_named_before_those_that_follow(begins):
    lines, _ = is_over(begins('''
        from types import SimpleNamespace
        from gradus import _run
        follows = dict(ok=False, follows=True, at=1, text="rank 1 died", traceback="",
                       error=None, size=3)
        ended = SimpleNamespace(code=1, lines=[], errors=[
            "gradus: worker 2 (pod a-2-x) failed with exit code 76, container worker",
            "gradus: worker 1 (pod a-1-x) failed with exit code 137, container worker"])
        told(_run._judge, {0: follows, 2: follows}, ended, 3, False)
        '''))
    assert lines[0].startswith("RankError"), lines
    assert "the job failed: worker 1 (pod a-1-x) failed with exit code 137" in lines[0], lines


def test_cluster_that_refuses_is_one_sentence(api, begins):
    lines, _ = is_over(begins('''
        told(gradus.run, f.big, (0,), **where)
        told(gradus.run, f.big, (0,), context="nowhere")
        told(gradus.run, f.big, (0,), kubeconfig="/nowhere")
        told(gradus.run, f.big, (0,), ssh_port=22, **where)
        told(gradus.run, f.big, (0,), flags=["--nothing"], **where)
        ''', token="a newer one"))
    wanted = [("401", "token"), ("nowhere",), ("/nowhere",), ("ssh-port has no meaning",),
              ("--nothing",)]
    for line, words in zip(lines, wanted):
        assert re.match("InvalidError|RankError", line) and any(
            word in line for word in words), (line, words)
    assert len(lines) == len(wanted)


def test_image_that_is_not_there_ends_the_call(api, cluster, begins):
    process = begins('told(gradus.run, f.big, (0,), **where)')
    job = cluster.next_job()
    api.start_pods(job)
    api.pod_state(f"{job}-0-x", "Pending", {"waiting": {
        "reason": "ErrImagePull", "message": "img: not found"}})
    line, = is_over(process)[0]
    assert line == ("InvalidError None run: worker 0 (pod " + job + "-0-x) waits for its image img "
                    "(ErrImagePull): img: not found")
    process = begins('told(gradus.run, f.big, (0,), start_timeout=0.5, **where)')
    assert is_over(process)[0][0].startswith(
        "TimeoutError None run: 0 of 1 workers have begun within 0.5 s: ")
    assert api.names(JOBS) == []


def test_tensorflow_servers_run_in_pods(api, cluster, begins, ranks):
    (ranks.folder / "tensorflow.py").write_text(TENSORFLOW)
    (ranks.folder / "script.py").write_text(
        "def run(cluster, server, index):\n    print('at', server.place, len(cluster['ps']))\n")
    process = begins('''
        print(jobs.run_cluster(2, 1, 1, 1, worker_script="script.py", **where))
        print(jobs.run_cluster(1, 1, 1, 1, **where))
        print([one["status"] for one in jobs.stop_workers()][1:])
        ''')
    path = f"{SOURCE / 'python'}:{ranks.folder}"
    first = cluster.next_job()
    cluster.run(first, PYTHONPATH=path)
    assert is_gone(api, first)
    second = cluster.next_job()
    cluster.run(second, PYTHONPATH=path)
    lines, _ = is_over(process)
    assert sorted(lines[:2]) == [f"[{rank}] at {first}-{rank}.{first}:2222 1" for rank in range(2)]
    assert lines[2] == "(None, None)"
    assert lines[3] == str(({"worker": [f"{second}-0.{second}:2222"],
                             "ps": [f"{second}-1.{second}:2222"]},
                            f"grpc://{second}-0.{second}:2222"))
    assert lines[4] == "['stopped']" and api.names(JOBS) == [] and api.names(PODS) == []
