# SPDX-License-Identifier: Apache-2.0
"""fork_server.py: how one program ends is of no concern to the others."""
import os
import pathlib
import signal
import subprocess
import sys
import uuid

import pytest

from conftest import blackbox
from processes import children, state_of  # behind conftest, which says where it is

PROGRAM = pathlib.Path(__file__).parent / "fork_server.py"


@pytest.fixture
def server(tmp_path):
    """A server without modules, which a test may stop."""
    name = f"gradus-test-{uuid.uuid4().hex}"
    process = subprocess.Popen([sys.executable, PROGRAM, "--serve", name], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    (tmp_path / "program.py").write_text("print('up', flush=True)\ninput()\n")
    process.client = [sys.executable, PROGRAM, name, tmp_path / "program.py"]
    yield process
    process.send_signal(signal.SIGCONT)
    process.communicate()


def has_taken_it(pid):
    """A signal: it has ended, or waits again with none pending."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return state_of(pid) == "Z" or ("\nShdPnd:\t0000000000000000\n" in status
                                    and state_of(pid) == "S")


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGKILL])
def test_fork_server_outlives_a_client_that_gets_a_signal_at_its_end(server, number):
    """The server stands still meanwhile, as on a busy machine, and sees both ends at once."""
    client = subprocess.Popen(server.client, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdout.readline() == b"up\n"
    forked, = children(server.pid)
    server.send_signal(signal.SIGSTOP)
    client.stdin.write(b"\n")
    client.stdin.flush()
    blackbox.wait_until(lambda: state_of(forked) == "Z", "the end of what was forked")
    client.send_signal(number)
    blackbox.wait_until(lambda: has_taken_it(client.pid), "the signal")
    server.send_signal(signal.SIGCONT)
    assert client.wait(blackbox.TIMEOUT_S) == (-number if number == signal.SIGKILL else 0)
    again = subprocess.run(server.client, input=b"\n", stdout=subprocess.PIPE, check=True,
                           timeout=blackbox.TIMEOUT_S)
    assert again.stdout == b"up\n"
