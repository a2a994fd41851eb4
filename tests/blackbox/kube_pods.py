# SPDX-License-Identifier: Apache-2.0
"""What the API server of the tests (kube_api.py) lacks for jobs that run: the Job controller's
pods, their states and logs, and owners whose objects go with them."""
import base64
import copy
import datetime
import hashlib
import json
import re
import select
import struct
import subprocess
import time
import urllib.parse

import kube_api

JOBS, PODS, EVENTS = "batch/v1/jobs", "/v1/pods", "/v1/events"
INDEX = "batch.kubernetes.io/job-completion-index"
LOG = re.compile(r"/api/v1/namespaces/(?P<space>[^/]+)/pods/(?P<name>[^/]+)/(?P<sub>log|exec)$")
CHANNELS = "v4.channel.k8s.io"
STDIN, STDERR, STATUS = 0, 2, 3


def stamp(number):
    """Times of lines: 10 ms lie between two, so that many share a second."""
    at = datetime.datetime(2026, 1, 31, 12) + datetime.timedelta(milliseconds=10 * number)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"


def take_frame(data):
    """The first frame of a client: its kind, what is in it, and what follows; None: not yet."""
    if len(data) < 8:
        return None
    size, at = data[1] & 0x7F, 2
    assert data[1] & 0x80, "a client's frame must be masked"
    if size == 126:
        size, at = struct.unpack(">H", data[2:4])[0], 4
    assert size != 127
    if len(data) < at + 4 + size:
        return None
    mask, payload = data[at:at + 4], data[at + 4:at + 4 + size]
    mask = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    payload = (int.from_bytes(payload, "big") ^ mask).to_bytes(size, "big")
    return data[0] & 0x0F, payload, data[at + 4 + size:]


class PodsHandler(kube_api.Handler):
    def serve(self, api, path, query, data):
        found = LOG.match(path)
        if not found or self.headers.get("Authorization") != f"Bearer {api.token}":
            return super().serve(api, path, query, data)
        with api.changed:
            for method, pattern in api.forbidden:
                if method == self.command and re.search(pattern, path):
                    raise kube_api.Refusal(403, f'pods/{found["sub"]} is forbidden: User "test" '
                                                f'cannot do this')
            api.find(PODS, found["space"], found["name"])
        if found["sub"] == "exec":
            return self.run_command(api, found["name"])
        return self.send_log(api, found["name"], query)

    # ---- Commands in pods, over WebSocket --------------------------------------------------------
    def run_command(self, api, name):
        """The command is run here; /gradus/code of a pod is a folder of api.pod_folder."""
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        assert self.headers["Upgrade"] == "websocket" and "Upgrade" in self.headers["Connection"]
        assert self.headers["Sec-WebSocket-Protocol"] == CHANNELS
        nonce = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept",
                         base64.b64encode(hashlib.sha1(nonce.encode()).digest()).decode())
        self.send_header("Sec-WebSocket-Protocol", CHANNELS)
        self.end_headers()
        self.close_connection = True
        if api.exec_faults:
            return api.exec_faults.pop(0)(self)
        folder = api.pod_folder / name
        folder.mkdir(parents=True, exist_ok=True)
        words = [word.replace("/gradus/code", str(folder)) for word in query["command"]]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as process:
            self.feed(process)
            said = process.stdout.read()
        for channel in (1, 2, 3):  # as kubelets begin
            self.send_frame(bytes([channel]))
        if said:
            self.send_frame(bytes([STDERR]) + said)
        failed = {"status": "Failure", "message": "command terminated with non-zero exit code"}
        status = failed if process.returncode else {"status": "Success"}
        self.send_frame(bytes([STATUS]) + json.dumps(status).encode())
        self.send_frame(b"", kind=8)
        return None

    def feed(self, process):
        """What comes on channel 0 goes to the command, until that has ended."""
        data, pinged = b"", False
        while process.poll() is None:
            if not (self.connection.pending() or select.select([self.connection], [], [], 0.02)[0]):
                continue
            got = self.connection.recv(1 << 16)
            if not got:
                process.kill()
                return
            data += got
            while (frame := take_frame(data)) is not None:
                kind, payload, data = frame
                if not pinged:
                    self.send_frame(b"are you there", kind=9)
                    pinged = True
                if kind == 2 and payload[0] == STDIN:
                    try:
                        process.stdin.write(payload[1:])
                        process.stdin.flush()
                    except OSError:  # it has enough
                        pass

    def send_frame(self, payload, kind=2):
        head = bytes([0x80 | kind])
        head += bytes([len(payload)]) if len(payload) < 126 else struct.pack(">BH", 126,
                                                                             len(payload))
        self.wfile.write(head + payload)
        self.wfile.flush()

    def send_log(self, api, name, query):
        """Lines from sinceTime on, and with follow those that are still written."""
        log, since = api.logs.setdefault(name, Log()), query.get("sinceTime", "")
        log = log.previous if "previous" in query else log
        self.stream()
        at = 0
        while True:
            with api.changed:
                api.changed.wait_for(lambda: len(log.lines) > at or log.is_over
                                     or log.breaks > 0, kube_api.LOOK_S)
                lines, at = log.lines[at:], len(log.lines)
                is_over = log.is_over or "follow" not in query
                breaks = log.breaks > 0 and lines
                log.breaks -= bool(breaks)
            sent = b"".join(f"{when} {text}".encode() for when, text in lines
                            if when[:19] >= since[:19])
            if breaks:  # in the middle of the last line
                self.chunk(sent[:-log.broken_bytes])
                return kube_api.close(self)
            if sent:
                self.chunk(sent)
            if is_over or select.select([self.connection], [], [], 0)[0]:
                self.wfile.write(b"0\r\n\r\n")
                return None


class Log:
    def __init__(self, first=0, previous=None):
        self.lines, self.is_over, self.breaks, self.broken_bytes = [], False, 0, 3
        self.first, self.previous = first, previous

    def add(self, text):
        self.lines.append((stamp(self.first + len(self.lines)), text))


class PodApi(kube_api.Api):
    handler = PodsHandler

    def __init__(self, certificates, **how):
        super().__init__(certificates, **how)
        self.logs = {}
        self.pod_folder, self.exec_faults = None, []

    # ---- What a cluster does ---------------------------------------------------------------------
    def drop(self, resource, space, name):
        """What it owns goes with it."""
        thing = super().drop(resource, space, name)
        uid = thing["metadata"]["uid"]
        if resource == PODS:
            self.logs.setdefault(name, Log()).is_over = True
        for key, other in list(self.objects.items()):
            owners = other["metadata"].get("ownerReferences", [])
            if any(owner["uid"] == uid for owner in owners) and key in self.objects:
                self.drop(*key)
        return thing

    def write(self, method, resource, space, name, sub, query, body, kind):
        """A change of owners alone is one as well."""
        metadata = body.get("metadata") or {}
        if method == "PATCH" and "ownerReferences" in metadata:
            with self.changed:
                old = self.find(resource, space, name)
                if metadata.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
                    raise kube_api.Refusal(409, "the UID in the precondition does not match")
                return 200, self.store(resource, space, kube_api.merge(old, body))
        return super().write(method, resource, space, name, sub, query, body, kind)

    def names(self, resource, space="team"):
        with self.changed:
            return sorted(name for its, its_space, name in self.objects
                          if (its, its_space) == (resource, space))

    def start_pods(self, name, space="team"):
        """The pods of a plain Job, all running."""
        job = self.get(JOBS, name, space)
        for index in range(job["spec"]["completions"]):
            self.put_pod(f"{name}-{index}-x", job, {INDEX: str(index)}, space)
            self.run_pod(f"{name}-{index}-x", space)

    def put_pod(self, name, job, annotations, space="team", labels=None):
        template = job["spec"].get("template", {"spec": {"containers": [{"name": "main"}]}})
        container = template["spec"]["containers"][0]
        self.put(PODS, {
            "metadata": {"name": name, "annotations": annotations,
                         "labels": {"job-name": job["metadata"]["name"], **(labels or {})},
                         "ownerReferences": [{"kind": "Job", "controller": True,
                                              "uid": job["metadata"]["uid"]}]},
            "spec": copy.deepcopy({**template["spec"], "restartPolicy": "Never"}),
            "status": {"phase": "Pending", "containerStatuses": [
                {"name": container["name"], "image": container.get("image", ""),
                 "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]}},
                 space)

    def pod_state(self, name, phase, state, space="team", **status):
        with self.changed:  # or one that is deleted meanwhile would be there again
            pod = self.get(PODS, name, space)
            pod["status"].update(phase=phase, **status)
            pod["status"]["containerStatuses"][0]["state"] = state
            self.put(PODS, pod, space)

    def init_pod(self, name, space="team"):
        """Its first container runs."""
        first = self.get(PODS, name, space)["spec"]["initContainers"][0]
        self.pod_state(name, "Pending", {"waiting": {"reason": "PodInitializing"}}, space,
                       initContainerStatuses=[{"name": first["name"], "image": first["image"],
                                               "restartCount": 0, "state": {"running": {}}}])

    def run_pod(self, name, space="team"):
        self.pod_state(name, "Running", {"running": {}}, space)

    def end_pod(self, name, code=0, reason="Completed", space="team"):
        with self.changed:
            self.logs.setdefault(name, Log()).is_over = True
            self.changed.notify_all()
        self.pod_state(name, "Failed" if code else "Succeeded",
                       {"terminated": {"exitCode": code, "reason": reason}}, space)

    def say(self, name, text):
        """The pod writes it."""
        with self.changed:
            self.logs.setdefault(name, Log()).add(text)
            self.changed.notify_all()

    def restart_pod(self, name, last_words, space="team"):
        """Its container fails and is started again. Nobody has read its last words."""
        self.restart_container(name, last_words)
        self.show_restart(name, space)

    def restart_container(self, name, last_words):
        """Its status does not show it yet."""
        with self.changed:
            old = self.logs[name]
            old.is_over = True
            previous = Log(old.first)
            previous.lines, previous.is_over = list(old.lines), True
            previous.add(last_words)
            self.logs[name] = Log(old.first + len(previous.lines), previous)
            self.changed.notify_all()

    def show_restart(self, name, space="team"):
        pod = self.get(PODS, name, space)
        pod["status"]["containerStatuses"][0].update(
            restartCount=1, state={"running": {}},
            lastState={"terminated": {"exitCode": 1, "reason": "Error"}})
        self.put(PODS, pod, space)

    def break_log(self, name, last_bytes=3):
        """The connection of its log breaks when it has sent its next line, but so many bytes."""
        with self.changed:
            log = self.logs.setdefault(name, Log())
            log.breaks, log.broken_bytes = log.breaks + 1, last_bytes

    def end_job(self, name, failed="", space="team"):
        job = self.get(JOBS, name, space)
        kind = "Failed" if failed else "Complete"
        job.setdefault("status", {})["conditions"] = [
            {"type": kind, "status": "True", "message": failed}]
        self.put(JOBS, job, space)

    def tell_event(self, resource, name, reason, message, space="team"):
        about = self.get(resource, name, space)
        self.put(EVENTS, {"metadata": {"name": f"{name}.{time.monotonic_ns()}"},
                          "type": "Warning", "reason": reason, "message": message,
                          "involvedObject": {"kind": "Pod" if resource == PODS else "Job",
                                             "name": name,
                                             "uid": about["metadata"]["uid"]}}, space)

    def logs_asked(self, name):
        """The queries of a pod's log."""
        found = [one[0] for one in self.asked(rf"/pods/{name}/log")]
        return [dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(line.split()[1]).query))
                for line in found]
