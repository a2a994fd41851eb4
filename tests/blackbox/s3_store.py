# SPDX-License-Identifier: Apache-2.0
"""A store of objects that speaks as much of S3 as a signed URL needs: it checks the signature and
the time of every request by itself."""
import datetime
import hashlib
import hmac
import http.server
import ssl
import threading
import urllib.parse

KEY_ID, SECRET, REGION = "AKTEST", "sEcr3t/+key", "eu-test-1"


def sign(method, host, path, query, secret=SECRET):
    """The signature that belongs to a request whose query has no signature."""
    parameters = dict(query)
    scope = parameters["X-Amz-Credential"].split("/", 1)[1]

    def quote(text):
        return urllib.parse.quote(text, safe="-_.~")

    canonical = "&".join(f"{quote(key)}={quote(value)}" for key, value in sorted(query))
    request = "\n".join([method, path, canonical, f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"])
    text = "\n".join(["AWS4-HMAC-SHA256", parameters["X-Amz-Date"], scope,
                      hashlib.sha256(request.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for word in [*scope.split("/"), text]:
        key = hmac.digest(key, word.encode(), "sha256")
    return key.hex()


class Store:
    """`objects`: path -> bytes. `faults`: functions that answer the next requests in place of the
    store. With certificates it speaks TLS."""

    def __init__(self, certificates=None):
        self.objects, self.faults, self.asked = {}, [], []
        store = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, code, data=b""):
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def refuse(self, code, word, message):
                self.close_connection = True
                self.answer(code, f"<?xml version='1.0'?><Error><Code>{word}</Code><Message>"
                                  f"{message}</Message></Error>".encode())

            def is_signed(self):
                path, _, text = self.path.partition("?")
                query = urllib.parse.parse_qsl(text, strict_parsing=True)
                given = dict(query).get("X-Amz-Signature")
                rest = [one for one in query if one[0] != "X-Amz-Signature"]
                begin = datetime.datetime.strptime(dict(query)["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
                age_s = (datetime.datetime.utcnow() - begin).total_seconds()
                return (given == sign(self.command, self.headers["Host"], path, rest)
                        and -60 < age_s < int(dict(query)["X-Amz-Expires"]) <= 604800)

            def work(self):
                store.asked.append((self.command, self.path))
                # Also where it refuses: closed with bytes unread the connection would be reset.
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if store.faults:
                    store.faults.pop(0)(self)
                elif not self.is_signed():
                    self.refuse(403, "SignatureDoesNotMatch", "The signature is not the store's")
                elif self.command == "PUT":
                    store.objects[self.path.partition("?")[0]] = body
                    self.answer(200)
                elif self.path.partition("?")[0] in store.objects:
                    self.answer(200, store.objects[self.path.partition("?")[0]])
                else:
                    self.refuse(404, "NoSuchKey", "There is no such key")

            do_GET = do_PUT = work

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.scheme = "http"
        if certificates is not None:
            self.scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.server.server_address[1]}"

    def settings(self):
        return {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_REGION": REGION, "AWS_ENDPOINT_URL": self.url}

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
