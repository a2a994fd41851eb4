# SPDX-License-Identifier: Apache-2.0
"""What `gradus run` tells a parameter server: a document on a descriptor, as a worker gets one."""
import json
import os

import pytest
from conftest import finish, read_lines
from processes import words

DOCUMENT = {"gradus_server": 1, "server": {"servers": 2, "replicas": 1, "listen": "127.0.0.1"}}


def serve(gradus, text, env=None):
    return gradus("server", input=text, stdin=None, env={"GRADUS_SERVER_FD": "0", **(env or {})})


def test_a_server_of_a_run_has_no_settings_on_its_line(gradus):
    """The launcher's servers read the document that is on their stdin."""
    job = gradus.start("run", "-np", 1, "--servers", 2, "--no-prefix", "--", "sh", "-c",
                       "echo up; exec sleep 1000")
    assert read_lines(job.stdout, 1) == ["up"]
    servers = [words(pid) for pid in gradus.remains() if b"server" in words(pid)]
    job.terminate()
    finish(job, 1)
    assert servers == 2 * [[b"gradus", b"server", b""]]


@pytest.mark.parametrize("change, says", [
    (lambda text: text.replace('"gradus_server": 1', '"gradus_server": 7'), "version 7 is newer"),
    (lambda text: text[:len(text) // 2], "not valid JSON"),
    (lambda text: "", "this is none"),
    (lambda text: text.replace("gradus_server", "gradus_job"), "this is none"),
    (lambda text: text.replace('"replicas": 1', '"replicas": 2'), "replicas: must be"),
    (lambda text: text.replace('"listen"', '"liste"'), 'did you mean "listen"?'),
    (lambda text: text.replace('"server":', '"serve":'), "serve"),
], ids=["newer", "cut", "empty", "other", "value", "key", "part"])
def test_a_wrong_document_is_refused(gradus, change, says):
    done = serve(gradus, change(json.dumps(DOCUMENT)))
    assert done.returncode == 2 and done.stdout == "", done
    assert says in done.stderr and done.stderr.count("\n") == 1, done


def test_no_document_on_the_descriptor(gradus):
    done = serve(gradus, "", {"GRADUS_SERVER_FD": "77"})
    assert done.returncode == 2 and "the server document cannot be read from descriptor 77" in \
        done.stderr and "GRADUS_SERVER_FD" in done.stderr, done


def test_the_document_is_in_place_of_the_flags(gradus):
    """There is no server 2 of two, whatever the line says."""
    done = gradus("server", "--servers", 4, input=json.dumps(DOCUMENT), stdin=None,
                  env={"GRADUS_SERVER_FD": "0", "GRADUS_SERVER_NUMBER": "2",
                       "GRADUS_SECRET": os.urandom(32).hex()})
    assert done.returncode == 2 and "server 2 of 2 cannot be" in done.stderr, done
