# SPDX-License-Identifier: Apache-2.0
"""A real control plane of Kubernetes, for tests.

It is no part of the project: GRADUS_KUBE, or shared/kube beside the source, holds scripts that
start one on this host."""
import contextlib
import json
import os
import pathlib
import platform
import re
import signal
import socket
import subprocess

from conftest import wait_until

SOURCE = pathlib.Path(os.environ["GRADUS_SOURCE_DIR"])


def kit():
    for place in filter(None, [os.environ.get("GRADUS_KUBE"), SOURCE.parent / "shared" / "kube"]):
        if (pathlib.Path(place) / "cluster.sh").exists():
            return pathlib.Path(place)
    return None


def why_not():
    """Why there is no control plane; None: there is one."""
    if kit() is None or platform.machine() != "x86_64":
        return "no control plane: set GRADUS_KUBE to a folder with cluster.sh"
    return None


def has_ended(pid):
    """All of its threads: then its sockets are closed."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z" and len(threads) <= 1


def free_ports():
    """The first of six that nobody listens at."""
    for first in range(18000 + os.getpid() % 1000 * 10, 32000, 10):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 6):
                one = stack.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


class Cluster:
    def __init__(self, folder, run):
        self.kit, self.run = kit(), run
        programs = pathlib.Path(os.environ.get("KUBEKIT_BIN", folder / "bin"))
        subprocess.run([self.kit / "unpack.sh", programs], check=True)
        self.environment = {**os.environ, "KUBEKIT_BIN": str(programs), "KUBEKIT_NODES": "1",
                            "KUBEKIT_RUN": str(self.run), "KUBEKIT_PORT": str(free_ports())}
        self.programs, self.kubeconfig = programs, self.run / "admin.kubeconfig"

    def script(self, word):
        subprocess.run([self.kit / "cluster.sh", word], env=self.environment, check=True,
                       stdin=subprocess.DEVNULL)

    def kubectl(self, *words):
        return subprocess.run([self.programs / "kubectl", "--kubeconfig", self.kubeconfig, *words],
                              check=True, capture_output=True, text=True).stdout

    def restart_server(self):
        """Kills the API server and starts it again, with the words that it was started with."""
        pid = int((self.run / "pid" / "apiserver").read_text())
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: has_ended(pid), "its end")
        with open(self.run / "log" / "apiserver.log", "ab") as log:  # no child of ours
            script = 'setsid "$@" >&2 & echo $!'
            pid = subprocess.run(["sh", "-c", script, "sh", self.programs / "kube-apiserver",
                                  *words[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=log, check=True, text=True).stdout
        (self.run / "pid" / "apiserver").write_text(pid)

    def start_for(self, user):
        """With pods that start when annotated, and an audit log of the user's writes."""
        said = subprocess.run([self.kit / "operator-cluster.sh", "up", user], check=True,
                              env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, text=True).stdout
        self.environment.update(re.findall(r"\b([A-Z_]+)='?([^\s']+)'?", said))
        self.environment["PATH"] = f"{self.programs}:{os.environ['PATH']}"

    def stop(self):
        subprocess.run([self.kit / "operator-cluster.sh", "down"], env=self.environment,
                       check=True, stdin=subprocess.DEVNULL)

    def get(self, *words):
        return json.loads(self.kubectl("get", "-o", "json", *words))

    def apply(self, thing, *words):
        subprocess.run([self.programs / "kubectl", "--kubeconfig", self.kubeconfig, *words, "-f",
                        "-"], input=json.dumps(thing), check=True, capture_output=True, text=True)

    def config_of(self, account, space, path):
        """A kubeconfig of a service account."""
        config = json.loads(self.kubectl("config", "view", "--raw", "-o", "json"))
        token = self.kubectl("-n", space, "create", "token", account).strip()
        config["users"][0]["user"] = {"token": token}
        path.write_text(json.dumps(config))
        return path
