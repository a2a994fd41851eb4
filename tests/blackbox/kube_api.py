# SPDX-License-Identifier: Apache-2.0
"""An API server of Kubernetes for tests: HTTPS with certificates of its own, objects of any kind
with resourceVersions, lists in parts, watches, conflicts; and what can go wrong with each."""
import base64
import collections
import contextlib
import copy
import http.server
import itertools
import json
import os
import re
import select
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse

PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)"
                  r"(?:/namespaces/(?P<space>[^/]+)(?=/))?/(?P<plural>[^/]+)"
                  r"(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?$")
LOOK_S = 0.05  # how soon a watch sees that its client has left
PATIENCE_S = float(os.environ.get("GRADUS_TEST_TIMEOUT_S", "60"))
REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound",
           409: "Conflict", 410: "Expired", 422: "Invalid", 429: "TooManyRequests",
           500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}


def openssl(*words, folder):
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def make_certificates(folder):
    """ca.pem, server.pem and server.key for 127.0.0.1 and api.test, client.pem and client.key."""
    folder.mkdir(parents=True, exist_ok=True)
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for name in ("ca", "other-ca"):
        openssl("req", "-x509", *curve, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days",
                "30", "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
                folder=folder)
    (folder / "server.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:api.test\n")
    (folder / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
    for name in ("server", "client"):
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj",
                f"/O=gradus/CN={name}", folder=folder)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-days", "30", "-out", f"{name}.pem", "-extfile",
                f"{name}.ext", folder=folder)
    return folder


class Refusal(Exception):
    def __init__(self, code, message, reason=None, headers=None):
        super().__init__(message)
        self.code, self.message, self.headers = code, message, headers or {}
        self.reason = reason or REASONS[code]

    def status(self):
        return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.code,
                "reason": self.reason, "message": self.message}


def merge(old, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merge(new.get(key), value)
    return new


def selects(selector, thing):
    """Equality alone: a=b,c=d,e."""
    labels = thing["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        key, equal, value = part.partition("=")
        if key not in labels or (equal and labels[key] != value.lstrip("=")):
            return False
    return True


class Fault:
    """What happens to the next `times` requests whose "METHOD path?query" matches."""

    def __init__(self, pattern, act, times):
        self.pattern, self.act, self.left = re.compile(pattern), act, times


class QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Clients that break off, or do not trust the certificate, are what tests are about."""


class Api:
    """objects: {(resource, space, name): object}, resource being "group/version/plural"."""
    handler = None  # None: Handler

    def __init__(self, certificates, token="right", bookmarks_s=None):
        self.certificates, self.token, self.bookmarks_s = certificates, token, bookmarks_s
        self.objects, self.requests, self.faults = {}, [], []
        self.forbidden = []  # (method, regular expression of the path)
        self.denied = set()  # (verb, "pods" or "jobs/status"): as a role that lacks it
        self.absent = set()  # resources that nobody has installed
        self.created = collections.Counter()  # (resource, space, name): how often
        self.history = []  # (resourceVersion, resource, type, object)
        self.versions, self.oldest = itertools.count(2), 0
        self.version = 1
        self.changed = threading.Condition()
        self.watches, self.epoch, self.frozen, self.raw = 0, 0, False, []
        self.connections = set()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        self.context.load_verify_locations(certificates / "ca.pem")
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self.place = socket.socket()  # the port is ours, also while nobody listens at it
        self.place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.place.bind(("127.0.0.1", 0))
        self.port = self.place.getsockname()[1]
        self.start()

    def start(self):
        """Also after close: at the same port, with what was there."""
        self.server = QuietServer(("127.0.0.1", self.port), self.handler or Handler,
                                  bind_and_activate=False)
        self.server.request_queue_size = 256
        self.server.daemon_threads = True
        self.server.api = self
        self.server.server_bind()
        self.server.server_activate()
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"https://127.0.0.1:{self.port}"

    def close(self):
        with self.changed:
            self.epoch, self.watches = self.epoch + 1, 0
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()
        self.drop_connections()

    def drop_connections(self):
        for one in list(self.connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def kubeconfig(self, path, user=None, **cluster):
        """A file for this server; `cluster` replaces what is said about it, None leaves it out."""
        data = base64.b64encode((self.certificates / "ca.pem").read_bytes()).decode()
        cluster = {"server": self.url, "certificate-authority-data": data,
                   **{key.replace("_", "-"): value for key, value in cluster.items()}}
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "c", "cluster": {k: v for k, v in cluster.items()
                                                   if v is not None}}],
            "users": [{"name": "u", "user": user or {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u",
                                                      "namespace": "team"}}]}))
        return path

    # ---- What tests do to it --------------------------------------------------------------------
    def fault(self, pattern, act, times=1):
        self.faults.append(Fault(pattern, act, times))

    def put(self, resource, thing, space="team"):
        """Creates or replaces, as if by somebody else."""
        with self.changed:
            return self.store(resource, space, thing)

    def remove(self, resource, name, space="team"):
        with self.changed:
            return self.drop(resource, space, name)

    def get(self, resource, name, space="team"):
        with self.changed:
            return copy.deepcopy(self.objects.get((resource, space, name)))

    def compact(self):
        """What happened before now is forgotten."""
        with self.changed:
            self.oldest, self.history = self.version, []

    def drop_watches(self):
        with self.changed:
            self.epoch, self.watches = self.epoch + 1, 0
            self.changed.notify_all()

    def freeze(self, frozen=True):
        """Watches that run say nothing any more, and their connections stay open."""
        with self.changed:
            self.frozen = frozen
            self.changed.notify_all()

    def send_raw(self, data):
        """To all watches: any bytes."""
        with self.changed:
            self.raw.append(data)
            self.changed.notify_all()

    def wait(self, condition, what="the server", timeout_s=PATIENCE_S):
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), f"waited for {what}"

    def asked(self, pattern):
        return [one for one in self.requests if re.search(pattern, one[0])]

    # ---- The store, under the lock --------------------------------------------------------------
    def store(self, resource, space, thing, kind="MODIFIED"):
        thing = copy.deepcopy(thing)
        metadata = thing.setdefault("metadata", {})
        key = resource, space, metadata["name"]
        old = self.objects.get(key)
        self.version = next(self.versions)
        metadata["resourceVersion"] = str(self.version)
        if space:
            metadata["namespace"] = space
        if old is None:
            kind = "ADDED"
            metadata.setdefault("uid", f"uid-{self.version}")
            metadata.setdefault("creationTimestamp",
                                time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            metadata["generation"] = 1
        else:
            metadata["uid"] = old["metadata"]["uid"]
            metadata["creationTimestamp"] = old["metadata"]["creationTimestamp"]
            metadata["generation"] = old["metadata"]["generation"] + (
                old.get("spec") != thing.get("spec"))
        self.objects[key] = thing
        self.history.append((self.version, resource, kind, thing))
        self.changed.notify_all()
        return thing

    def drop(self, resource, space, name):
        thing = copy.deepcopy(self.objects.pop((resource, space, name)))
        self.version = next(self.versions)
        thing["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, resource, "DELETED", thing))
        self.changed.notify_all()
        return thing

    def find(self, resource, space, name):
        thing = self.objects.get((resource, space, name))
        if thing is None:
            raise Refusal(404, f'{resource.split("/")[-1]} "{name}" not found')
        return thing

    def matching(self, resource, space, query):
        return [thing for (its, its_space, _), thing in sorted(self.objects.items())
                if its == resource and space in (None, its_space)
                and selects(query.get("labelSelector", ""), thing)]

    def list(self, resource, space, query):
        with self.changed:
            things, version, start = self.matching(resource, space, query), self.version, 0
            if "continue" in query:
                version, start = map(int, query["continue"].split("/"))
                if version < self.oldest:
                    raise Refusal(410, "The provided continue parameter is too old")
            limit = int(query.get("limit", 0)) or len(things)
            part = things[start:start + limit]
            metadata = {"resourceVersion": str(version)}
            if start + limit < len(things):
                metadata["continue"] = f"{version}/{start + limit}"
            return {"kind": "List", "apiVersion": "v1", "metadata": metadata,
                    "items": [{k: v for k, v in one.items() if k not in ("kind", "apiVersion")}
                              for one in part]}

    def write(self, method, resource, space, name, sub, query, body, kind):
        with self.changed:
            if method == "POST":
                metadata = body.setdefault("metadata", {})
                if "name" not in metadata:
                    metadata["name"] = f'{metadata["generateName"]}{next(self.versions)}'
                if (resource, space, metadata["name"]) in self.objects:
                    raise Refusal(409, f'{resource.split("/")[-1]} "{metadata["name"]}" '
                                  "already exists", "AlreadyExists")
                self.created[resource, space, metadata["name"]] += 1
                return 201, self.store(resource, space, body)
            if kind == "application/apply-patch+yaml" and \
                    (resource, space, name) not in self.objects:
                return 201, self.store(resource, space, body)
            old = self.find(resource, space, name)
            wanted = (body.get("metadata") or {}).get("resourceVersion")
            if method == "DELETE":
                asked = body.get("preconditions") or {}
                wanted = asked.get("resourceVersion")
                if asked.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
                    raise Refusal(409, "the UID in the precondition does not match")
            if wanted not in (None, old["metadata"]["resourceVersion"]):
                raise Refusal(409, "the object has been modified; please apply your changes to "
                              "the latest version and try again")
            if method == "DELETE":
                self.drop(resource, space, name)
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            new = merge(old, body) if method == "PATCH" else body
            if sub == "status":
                new = {**old, "status": new.get("status", {})}
            elif method == "PUT" and "status" in old:
                new = {**new, "status": old["status"]}
            if merge({}, {**new, "metadata": None}) == merge({}, {**old, "metadata": None}) and \
                    new["metadata"].get("labels") == old["metadata"].get("labels"):
                return 200, old
            new.setdefault("metadata", {})["name"] = name
            return 200, self.store(resource, space, new)

    def watch(self, resource, space, query, send, is_left):
        """Calls send(bytes) until the time is over, the test wants it or the client has left."""
        at = int(query.get("resourceVersion", self.version))
        deadline = time.monotonic() + float(query.get("timeoutSeconds", 300))
        raw_at = len(self.raw)

        def event(kind, thing):
            send((json.dumps({"type": kind, "object": thing}) + "\n").encode())

        with self.changed:
            epoch = self.epoch
            self.watches += 1
            self.changed.notify_all()
        try:
            if at < self.oldest:
                event("ERROR", Refusal(410, f"too old resource version: {at}").status())
                return
            bookmark_at = time.monotonic() + (self.bookmarks_s or 1e9)
            while self.epoch == epoch and time.monotonic() < deadline and not is_left():
                with self.changed:
                    self.changed.wait_for(
                        lambda: self.epoch != epoch or len(self.raw) > raw_at
                        or (self.version > at and not self.frozen),
                        max(0, min(LOOK_S, min(deadline, bookmark_at) - time.monotonic())))
                    if self.epoch != epoch:
                        return
                    news = [] if self.frozen else [one for one in self.history if one[0] > at]
                    at = at if self.frozen else self.version
                    raw, raw_at = self.raw[raw_at:], len(self.raw)
                for data in raw:
                    send(data)
                for _, its, kind, thing in news:
                    if its == resource and space in (None, thing["metadata"].get("namespace")) \
                            and selects(query.get("labelSelector", ""), thing):
                        event(kind, thing)
                if time.monotonic() >= bookmark_at and not self.frozen:
                    bookmark_at = time.monotonic() + self.bookmarks_s
                    event("BOOKMARK", {"kind": "Bookmark",
                                       "metadata": {"resourceVersion": str(at)}})
        finally:
            with self.changed:
                self.watches -= self.epoch == epoch
                self.changed.notify_all()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 600

    def setup(self):
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = self.server.api.context.wrap_socket(self.request, server_side=True)
        self.server.api.connections.add(self.request)
        super().setup()

    def handle(self):
        with contextlib.suppress(OSError, ValueError):
            super().handle()

    def finish(self):
        self.server.api.connections.discard(self.request)
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_):
        pass

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def answer(self, code, thing, headers=()):
        data = json.dumps(thing).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for key, value in dict(headers).items():
            self.send_header(key, str(value))
        self.end_headers()
        self.wfile.write(data)

    def stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def work(self):
        api = self.server.api
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        data = self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        line = f"{self.command} {self.path}"
        with api.changed:
            api.requests.append((line, dict(self.headers), data))
            api.changed.notify_all()
            fault = next((one for one in api.faults
                          if one.left > 0 and one.pattern.search(line)), None)
            if fault:
                fault.left -= 1
        if fault:
            return fault.act(self)
        try:
            self.serve(api, urllib.parse.unquote(url.path), query, data)
        except Refusal as refusal:
            self.answer(refusal.code, refusal.status(), refusal.headers)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = work

    def serve(self, api, path, query, data):
        if self.headers.get("Authorization") != f"Bearer {api.token}" and \
                not self.request.getpeercert():
            raise Refusal(401, "Unauthorized")
        parts = PATH.match(path)
        if not parts:
            raise Refusal(404, "the server could not find the requested resource")
        group, version, space, plural, name, sub = parts.groups()
        for method, pattern in api.forbidden:
            if method == self.command and re.search(pattern, path):
                raise Refusal(403, f'{plural} is forbidden: User "test" cannot do this')
        resource = f"{group or ''}/{version}/{plural}"
        if resource in api.absent:
            raise Refusal(404, "the server could not find the requested resource")
        body = json.loads(data) if data else {}
        if plural == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            what = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            self.answer(201, {**body, "status": {"allowed": (asked["verb"], what)
                                                 not in api.denied}})
            return
        verb = {"POST": "create", "PUT": "update"}.get(self.command, self.command.lower())
        if verb == "get" and not name:
            verb = "watch" if "watch" in query else "list"
        what = f"{plural}/{sub}" if sub else plural
        if (verb, what) in api.denied:
            raise Refusal(403, f'{plural} is forbidden: User "test" cannot {verb} "{what}"')
        if self.command != "GET":
            code, thing = api.write(self.command, resource, space, name, sub, query, body,
                                    self.headers.get("Content-Type"))
            self.answer(code, thing)
        elif name:
            with api.changed:
                thing = copy.deepcopy(api.find(resource, space, name))
            self.answer(200, thing)
        elif "watch" in query:
            self.stream()
            api.watch(resource, space, query, self.chunk,
                      lambda: select.select([self.connection], [], [], 0)[0])
            with contextlib.suppress(OSError):
                self.wfile.write(b"0\r\n\r\n")
        else:
            self.answer(200, api.list(resource, space, query))


# ---- Faults: what Api.fault takes ---------------------------------------------------------------
def refuse(code, message="said by the test", headers=None, reason=None):
    def act(handler):
        refusal = Refusal(code, message, reason, headers)
        handler.answer(code, refusal.status(), refusal.headers)
    return act


def send_text(text, code=200, length=None):
    """Any bytes as the body; a length that is longer than it cuts the answer off."""
    def act(handler):
        data = text if isinstance(text, bytes) else text.encode()
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(data) if length is None else length))
        handler.end_headers()
        handler.wfile.write(data)
        handler.wfile.flush()
        handler.close_connection = True
    return act


def hang(handler):
    """Says nothing until the client goes away."""
    with contextlib.suppress(OSError):
        handler.rfile.read(1)
    handler.close_connection = True


def close(handler):
    handler.close_connection = True
    handler.request.shutdown(socket.SHUT_RDWR)


def flood(bytes_count, begin=b'{"items":[{"a":"', fill=b"x"):
    """An object that does not end for so long."""
    def act(handler):
        handler.stream()
        handler.chunk(begin)
        with contextlib.suppress(OSError):
            for _ in range(bytes_count >> 16):
                handler.chunk(fill * (1 << 16))
        handler.close_connection = True
    return act
