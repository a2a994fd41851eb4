# SPDX-License-Identifier: Apache-2.0
"""A host of the list that sends what no Gradus sends: the job ends with a sentence that names the
host, and nothing crashes or waits for ever. A program of ours stands in for ssh."""
import os
import struct
import subprocess
import sys

import pytest

HELLO, MESSAGE, OUTPUT = 1, 3, 4
STARTED, NOT_STARTED, EXITED, DONE, READY = 1, 2, 3, 4, 8


def packet(kind, data=b"", number=0, size=None):
    size = len(data) if size is None else size
    return b"\0GR\xfe\x01" + bytes([kind]) + b"\0\0" + struct.pack("<II", number, size) + data


def message(kind, rank=0, pid=7, value=0, magic=0x4147):
    return packet(MESSAGE, struct.pack("<HHHHiii", magic, 1, kind, 0, rank, pid, value) + b"\0" * 4)


BEGIN = packet(HELLO, b"127.0.0.1") + message(READY)
RUNNING = BEGIN + message(STARTED) + message(STARTED, 1)
CASES = {
    "garbage behind the greeting": BEGIN + b"\xff" * 4096,
    "a packet of 4 GB": BEGIN + packet(OUTPUT, size=0xFFFFFFFF),
    "a packet of no kind": BEGIN + packet(77),
    "a second greeting": BEGIN + packet(HELLO, b"127.0.0.1"),
    "an order to the launcher": BEGIN + packet(2, b"x" * 100),
    "output of worker 2 of 2": RUNNING + packet(OUTPUT, b"text\n", number=4),
    "output of worker 2 billion": RUNNING + packet(OUTPUT, b"text\n", number=0xFFFFFFFF),
    "a message of no kind": RUNNING + message(999),
    "a message of another program": RUNNING + message(EXITED, magic=0x1234),
    "a message that is cut short": RUNNING + packet(MESSAGE, b"\x47\x41\x01"),
    "ranks that do not exist": BEGIN + b"".join(
        message(kind, rank) for kind in (STARTED, NOT_STARTED, EXITED)
        for rank in (2, -1, 2**31 - 1, -2**31)),
    "only noise": b"Welcome!\r\n" * 1000,
    "an address that is a command": (
        packet(HELLO, b"1.2.3.4;touch x$(id)`id`\0\n' \"") + message(READY)),
}


def run_with(gradus, folder, program, start_timeout, *flags):
    """`gradus run` on a host that is this Python program."""
    ssh = folder / "ssh"
    ssh.write_text(f"#!{sys.executable} -SE\nimport sys\nout = sys.stdout.buffer\n{program}")
    ssh.chmod(0o755)
    done = gradus("run", "-H", "evil:2", "--start-timeout", start_timeout, *flags, "--", "true",
                  env={"PATH": f"{folder}:{os.environ['PATH']}"})
    assert "evil" in done.stderr and "Sanitizer" not in done.stderr, done
    return done


def sending(folder, data):
    """A program that writes it, and ends."""
    (folder / "sent").write_bytes(data)
    return f"out.write(open({str(folder / 'sent')!r}, 'rb').read())\nout.flush()\n"


def test_program_path_reaches_the_host_whole_or_is_refused(gradus, tmp_path):
    """Quotes make it longer than it is; what is longer than a path can be is nobody's program."""
    path = "/" + 4000 * "'"
    program = f"open({str(tmp_path / 'asked')!r}, 'w').write(sys.argv[-1])\n"
    run_with(gradus, tmp_path, program, "20s", "--remote-program", path)
    shell = subprocess.run(["sh", "-c", "printf %s " + (tmp_path / "asked").read_text()],
                           capture_output=True, text=True, check=True)
    assert shell.stdout == path + "agent--stdio"
    (tmp_path / "asked").unlink()
    done = gradus("run", "-H", "evil:2", "--remote-program", "/" + 5000 * "a", "--", "true",
                  env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 2 and "--remote-program" in done.stderr, done
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("what", CASES)
def test_what_it_sends(gradus, tmp_path, what):
    done = run_with(gradus, tmp_path, sending(tmp_path, CASES[what]), "20s")
    assert done.returncode == (2 if what == "only noise" else 1), done  # 2: nothing was started
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("program", ["sys.stdin.buffer.read()",
                                     "while True: out.write(b'Welcome!' * 999)"])
def test_what_never_begins(gradus, tmp_path, program):
    assert run_with(gradus, tmp_path, program, "300ms").returncode == 2


def test_what_it_tells_twice(gradus, tmp_path):
    """A worker begins once and ends once, whatever is said of it."""
    told = [message(READY), message(STARTED, 1, pid=99), message(EXITED, 1, value=9),
            message(EXITED, 1, value=9), message(STARTED, 1), message(EXITED, 1, value=9)]
    done = run_with(gradus, tmp_path, sending(tmp_path, RUNNING + b"".join(told)), "20s",
                    "--min-workers", "1")
    assert done.returncode == 1, done
    assert done.stderr.count("was killed by signal 9") == 1, done.stderr
    assert "rank 1 (pid 7)" in done.stderr and "host evil was lost with its 1 worker" in done.stderr
