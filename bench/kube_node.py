# SPDX-License-Identifier: Apache-2.0
"""A node of Kubernetes whose pods are containers, and an image of the built command for it.

The scripts that start the node are no part of the project: GRADUS_KUBE, or shared/kube beside the
source, is a folder with unpack.sh and real.sh. It takes root."""
import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
KIT = pathlib.Path(os.environ.get("GRADUS_KUBE", ROOT.parent / "shared" / "kube"))


def make_image(folder, program):
    """The command, a shell, their libraries, each under its own path, and nothing else."""
    found = {"/usr/bin/gradus": program, "/bin/sh": "/bin/sh"}
    for one in (program, "/bin/sh"):
        for line in subprocess.run(["ldd", one], check=True, capture_output=True,
                                   text=True).stdout.splitlines():
            found.update((word, word) for word in line.split() if word.startswith("/"))
    for path, source in found.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def processes_of(uid, with_network=False):
    """Of a pod; the one that holds its network among them if it is asked for."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cgroup"):
        try:
            is_asked_for = with_network or (path.parent / "comm").read_text() != "pause\n"
            if f"pod{uid}" in path.read_text() and is_asked_for:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


class Node:
    """Up for as long as a `with` lasts."""

    def __init__(self, folder):
        self.script, self.folder = KIT / "real.sh", folder
        programs = os.environ.get("KUBEKIT_BIN", str(folder / "bin"))
        self.environment = {**os.environ, "KUBEKIT_BIN": programs, "REAL_DIR": str(folder / "node")}
        subprocess.run([KIT / "unpack.sh", programs], check=True)

    def __enter__(self):
        self.run("up")
        return self

    def __exit__(self, *_):
        self.run("down")

    def run(self, *words, text=None, check=True):
        return subprocess.run([self.script, *map(str, words)], env=self.environment, text=True,
                              input=text or "", check=check, stdout=subprocess.PIPE).stdout

    def kubectl(self, *words, text=None, check=True):
        return self.run("kubectl", *words, text=text, check=check)

    def get(self, *words):
        return json.loads(self.kubectl("get", "-o", "json", *words))

    def start(self, *words, **how):
        """A program that reaches the cluster."""
        return subprocess.Popen([self.script, "exec", *map(str, words)], env=self.environment,
                                stdin=subprocess.DEVNULL, **how)

    def config_of(self, account, space, path):
        """A kubeconfig of a service account."""
        config = json.loads(self.kubectl("config", "view", "--raw", "-o", "json"))
        token = self.kubectl("-n", space, "create", "token", "--duration=24h", account).strip()
        config["users"][0]["user"] = {"token": token}
        path.write_text(json.dumps(config))
        return path
