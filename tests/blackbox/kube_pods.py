# SPDX-License-Identifier: Apache-2.0
"""What the API server of the tests (kube_api.py) lacks for jobs that run: the Job controller's
pods, their states and logs, and owners whose objects go with them."""
import copy
import datetime
import re
import select
import time
import urllib.parse

import kube_api

JOBS, PODS, EVENTS = "batch/v1/jobs", "/v1/pods", "/v1/events"
INDEX = "batch.kubernetes.io/job-completion-index"
LOG = re.compile(r"/api/v1/namespaces/(?P<space>[^/]+)/pods/(?P<name>[^/]+)/log$")


def stamp(number):
    """Times of lines: 10 ms lie between two, so that many share a second."""
    at = datetime.datetime(2026, 1, 31, 12) + datetime.timedelta(milliseconds=10 * number)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"


class PodsHandler(kube_api.Handler):
    def serve(self, api, path, query, data):
        found = LOG.match(path)
        if not found or self.headers.get("Authorization") != f"Bearer {api.token}":
            return super().serve(api, path, query, data)
        with api.changed:
            for method, pattern in api.forbidden:
                if method == self.command and re.search(pattern, path):
                    raise kube_api.Refusal(403, 'pods/log is forbidden: User "test" cannot do this')
            api.find(PODS, found["space"], found["name"])
        return self.send_log(api, found["name"], query)

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
    def __init__(self, certificates, **how):
        super().__init__(certificates, **how)
        self.logs = {}
        self.server.RequestHandlerClass = PodsHandler

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
        pod = self.get(PODS, name, space)
        pod["status"].update(phase=phase, **status)
        pod["status"]["containerStatuses"][0]["state"] = state
        self.put(PODS, pod, space)

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
        with self.changed:
            old = self.logs[name]
            old.is_over = True
            previous = Log(old.first)
            previous.lines, previous.is_over = list(old.lines), True
            previous.add(last_words)
            self.logs[name] = Log(old.first + len(previous.lines), previous)
            self.changed.notify_all()
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
