# SPDX-License-Identifier: Apache-2.0
"""The API client of the command, driven by commands (tests/kube/kube_main.c)."""
import json
import os
import pathlib
import queue
import subprocess
import threading

from conftest import TIMEOUT_S

BUILD = pathlib.Path(os.environ["GRADUS_BUILD_DIR"])


class Client:
    """The client in a process of its own (tests/kube/kube_main.c)."""

    def __init__(self, kubeconfig, *options, **how):
        self.process = subprocess.Popen([BUILD / "tests" / "kube_client", kubeconfig,
                                         *map(str, options)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        **how)
        self.said, self.ids, self.lines = {}, 0, queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def start(self, what, **words):
        self.ids += 1
        self.said[self.ids] = []
        self.send(what, self.ids, **words)
        return self.ids

    def send(self, what, number, **words):
        words = {"do": what, "id": number, "plural": "pods", "space": "team", **words}
        self.process.stdin.write(json.dumps({k: v for k, v in words.items() if v is not None})
                                 + "\n")
        self.process.stdin.flush()

    def next(self, number, condition=lambda line: True):
        """The next line for this command for which the condition holds."""
        while True:
            while self.said[number]:
                line = self.said[number].pop(0)
                if condition(line):
                    return line
            try:
                line = self.lines.get(timeout=TIMEOUT_S)
            except queue.Empty:
                raise AssertionError("the client says nothing") from None
            assert line, f"the client has ended: {self.process.stderr.read()}"
            self.said[line["id"]].append(line)

    def ask(self, what, **words):
        return self.next(self.start(what, **words), lambda line: "status" in line)

    def event(self, number, kind):
        return self.next(number, lambda line: line.get("event") == kind)

    def events(self, number, until):
        seen = []
        while not seen or not seen[-1].startswith(until):
            line = self.next(number)
            name = (line.get("object") or {}).get("metadata", {}).get("name", "")
            seen.append(f'{line["event"]} {name}'.strip())
        return seen

    def close(self):
        self.process.stdin.close()
        code = self.process.wait(TIMEOUT_S)
        self.reader.join()
        said = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        assert code == 0, said

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.process.kill()
            self.process.wait()
        else:
            self.close()


def pod(name, **labels):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"containers": []}}
