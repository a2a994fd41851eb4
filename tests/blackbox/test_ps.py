# SPDX-License-Identifier: Apache-2.0
"""Parameter servers by their commands: where they are, what they keep, how they end."""
import json
import re
import signal
import struct
import subprocess

import pytest
from conftest import TIMEOUT_S, read_lines, sanitizer_words, wait_until

PEER_LOST = -20  # GR_E_PEER_LOST


@pytest.fixture
def ps_script(gradus, script):
    """A Python program that finds a client of parameter servers in front of it."""
    def write(text, name="client.py"):
        return sanitizer_words(gradus.library) + script(f"""
import ctypes, os, sys
library = ctypes.CDLL({gradus.library!r})
class Spec(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("elements", ctypes.c_uint64),
                ("consistency", ctypes.c_int), ("shards", ctypes.c_int),
                ("aggregate", ctypes.c_int), ("total", ctypes.c_int),
                ("staleness", ctypes.c_int), ("adapt_rate", ctypes.c_int),
                ("refuse_not_finite", ctypes.c_int), ("optimizer", ctypes.c_char_p),
                ("columns", ctypes.c_uint32), ("seed", ctypes.c_uint64),
                ("deviation", ctypes.c_float), ("gradient_type", ctypes.c_int)]
class Gradient(ctypes.Structure):
    _fields_ = [("values", ctypes.POINTER(ctypes.c_float)), ("step", ctypes.c_uint64),
                ("first", ctypes.c_int), ("count", ctypes.c_int), ("version", ctypes.c_uint64),
                ("sequence", ctypes.c_uint64), ("rate", ctypes.c_double),
                ("factor", ctypes.c_float), ("sparse", ctypes.c_int)]
ps, diag = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
def check(status):
    if status:
        print(diag.raw[8:].split(b"\\0")[0].decode() or status, file=sys.stderr, flush=True)
        sys.exit(76 if status == {PEER_LOST} else 1)  # as a rank that failed since another one did
def floats(values):
    return (ctypes.c_float * len(values))(*values)
def connect():
    check(library.gr_ps_connect(None, ctypes.byref(ps), diag))
def declare(name, count, shards=1, optimizer=b"", values=None):
    tensor, ident = Spec(name, count, 0, shards, optimizer=optimizer), ctypes.c_int()
    check(library.gr_ps_declare(ps, ctypes.byref(tensor), ctypes.byref(ident)))
    check(library.gr_ps_set(ps, ident, floats(values or [0.0] * count)))
    return ident
""" + text, name)
    return write


# Two workers' worth of pushes to two tensors.
CLIENT = """
connect()
for name, count, optimizer in (b"bias", 10, b"kind: sgd\\nmomentum: 0.5"), (b"weight", 5000, b""):
    ident = declare(name, count, optimizer=optimizer, values=[1.0] * count)
    for step in range(3):
        push = Gradient(floats([1.0] * count), step, 0, 1, rate=0.5, factor=1.0)
        check(library.gr_ps_push_run(ps, ident, ctypes.byref(push)))
print("pushed", flush=True)
library.gr_ps_close(ps)
"""


def start_server(gradus, secret, *flags):
    server = gradus.start("server", "--secret-file", secret, "--listen", "127.0.0.1", *flags)
    return server, read_lines(server.stdout, 1)[0].split("=", 1)


def end(server, says=""):
    server.send_signal(signal.SIGTERM)
    out, err = server.communicate(timeout=TIMEOUT_S)
    assert server.returncode == 0 and out == says and err == "", out + err


def read_safetensors(path):
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    values = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, stop = entry["data_offsets"]
            values[name] = struct.unpack_from(f"<{(stop - begin) // 4}f", data, 8 + size + begin)
    return values


def test_the_interfaces_that_are_named(gradus, tmp_path):
    words = "server", "--secret-file", tmp_path / "secret", "--link", "tcp"
    server = gradus.start(*words, env={"GRADUS_INTERFACE": "127.0.0.0/8"})
    assert re.fullmatch(r"GRADUS_SERVERS=tcp:127\.0\.0\.1:\d+", read_lines(server.stdout, 1)[0])
    end(server)
    done = gradus(*words, env={"GRADUS_INTERFACE": "none0"})
    assert done.returncode == 2 and 'no interface or address for "none0"' in done.stderr, done


@pytest.mark.parametrize("link", ["auto", "tcp"])
def test_two_servers_and_what_they_keep(gradus, ps_script, tmp_path, link):
    secret = tmp_path / "secret"
    flags = ("--servers", 2, "--replicas", 0, "--link", link)
    first, (first_name, first_at) = start_server(gradus, secret, *flags)
    second, (second_name, second_at) = start_server(gradus, secret, *flags, "--number", 1)
    assert (first_name, second_name) == ("GRADUS_SERVER_0", "GRADUS_SERVER_1")
    env = {"GRADUS_SECRET_FILE": str(secret), "GRADUS_SERVERS": f"{first_at},{second_at}",
           "GRADUS_LINK": link, "GRADUS_RANK": "0", "GRADUS_WORLD_SIZE": "1"}
    done = subprocess.run(ps_script(CLIENT), env=gradus.environment(env), capture_output=True,
                          text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0 and done.stdout == "pushed\n", done
    listed = [json.loads(line)
              for line in gradus("ps", "ls", "--json", env=env).stdout.splitlines()]
    assert {(t["name"], t["elements"], t["version"], t["version_most"]) for t in listed} == {
        ("bias", 10, 3, 3), ("weight", 5000, 3, 3)}
    said = gradus("ps", "ls", env=env).stdout
    assert "weight" in said and "bsp" in said, said
    counted = [json.loads(line)
               for line in gradus("ps", "stats", "--json", env=env).stdout.splitlines()]
    assert [c["server"] for c in counted] == [0, 1]
    assert sum(c["updates"] for c in counted) == sum(3 * t["blocks"] for t in listed)
    done = gradus("ps", "export", "all.safetensors", env=env)
    assert done.returncode == 0, done
    values = read_safetensors(tmp_path / "all.safetensors")
    bias = {1 - 0.5 * (1 + 1.5 + 1.75)}
    assert set(values) == {"bias", "weight"}
    assert set(values["bias"]) == bias and set(values["weight"]) == {4.0}
    done = gradus("ps", "export", "all.safetensors", "--states", env=env)
    assert done.returncode == 0, done
    values = read_safetensors(tmp_path / "all.safetensors")
    assert set(values) == {"bias", "momentum.bias", "version.bias", "version.weight", "weight"}
    assert set(values["bias"]) == bias and set(values["momentum.bias"]) == {1.75}
    end(first)
    done = gradus("ps", "ls", "--wait", "500ms", env=env)
    assert done.returncode == 1 and done.stderr.startswith("gradus: "), done
    end(second)


@pytest.mark.parametrize("link", ["auto", "tcp"])
def test_one_of_three_is_killed(gradus, ps_script, tmp_path, link):
    secret = tmp_path / "secret"
    flags = ("--servers", 3, "--link", link)
    servers = [start_server(gradus, secret, *flags, "--number", i) for i in range(3)]
    env = {"GRADUS_SECRET_FILE": str(secret), "GRADUS_LINK": link, "GRADUS_RANK": "0",
           "GRADUS_SERVERS": ",".join(at for _, (_, at) in servers), "GRADUS_WORLD_SIZE": "1"}
    done = subprocess.run(ps_script(CLIENT), env=gradus.environment(env), capture_output=True,
                          text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0 and done.stdout == "pushed\n", done
    servers[1][0].kill()
    servers[1][0].communicate(timeout=TIMEOUT_S)
    listed = [json.loads(line)
              for line in gradus("ps", "ls", "--json", env=env).stdout.splitlines()]
    assert {(t["name"], t["elements"], t["version"], t["version_most"]) for t in listed} == {
        ("bias", 10, 3, 3), ("weight", 5000, 3, 3)}
    counted = [json.loads(line)
               for line in gradus("ps", "stats", "--json", env=env).stdout.splitlines()]
    assert [c.get("lost", False) for c in counted] == [False, True, False], counted
    done = gradus("ps", "export", "all.safetensors", env=env)
    assert done.returncode == 0, done
    values = read_safetensors(tmp_path / "all.safetensors")
    assert set(values["bias"]) == {-1.125} and set(values["weight"]) == {4.0}
    end(servers[0][0], "GRADUS_SERVERS_MET=yes\n")
    end(servers[2][0], "GRADUS_SERVERS_MET=yes\n")


# A dense tensor and a table, each with momentum; "declare" alone, or with two steps.
TABLE_CLIENT = """
connect()
def declare_only(name, count, columns):
    tensor, ident = Spec(name, count, 0, 1, optimizer=b"kind: sgd\\nmomentum: 0.5",
                         columns=columns, seed=3, deviation=0.5 if columns else 0.0), ctypes.c_int()
    check(library.gr_ps_declare(ps, ctypes.byref(tensor), ctypes.byref(ident)))
    return ident
dense, table = declare_only(b"bias", 10, 0), declare_only(b"words", 4000, 4)
first = int(sys.argv[1])
if first == 0:
    check(library.gr_ps_set(ps, dense, floats([1.0] * 10)))
for step in range(first, int(sys.argv[2])):
    rows = [17, 999, 4, 17 + step]
    push = Gradient(floats([1.0] * 16), step, 0, 1, rate=0.5, factor=1.0)
    check(library.gr_ps_push_rows_run(ps, table, ctypes.byref(push), (ctypes.c_uint32 * 4)(*rows),
                                      ctypes.c_size_t(4)))
    check(library.gr_ps_push_run(ps, dense, ctypes.byref(push)))
library.gr_ps_close(ps)
"""


def start_servers(gradus, secret, count):
    servers = [start_server(gradus, secret, "--servers", count, "--number", i)
               for i in range(count)]
    return [server for server, _ in servers], {
        "GRADUS_SECRET_FILE": str(secret), "GRADUS_RANK": "0", "GRADUS_WORLD_SIZE": "1",
        "GRADUS_SERVERS": ",".join(at for _, (_, at) in servers)}


def run_client(gradus, ps_script, env, *words):
    done = subprocess.run(ps_script(TABLE_CLIENT) + [str(word) for word in words],
                          env=gradus.environment(env), capture_output=True, text=True,
                          timeout=TIMEOUT_S)
    assert done.returncode == 0, done


def read_table(path):
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    return data, size, {name: entry for name, entry in header.items() if name != "__metadata__"}


def test_tables_go_on_from_a_file(gradus, ps_script, tmp_path):
    secret, half, rest = tmp_path / "secret", tmp_path / "half", tmp_path / "rest"
    servers, env = start_servers(gradus, secret, 1)
    run_client(gradus, ps_script, env, 0, 2)
    assert gradus("ps", "export", half, "--states", env=env).returncode == 0
    run_client(gradus, ps_script, env, 2, 4)
    assert gradus("ps", "export", rest, "--states", env=env).returncode == 0
    data, size, header = read_table(half)
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()} == {
        "bias": ("F32", [10]), "momentum.bias": ("F32", [10]), "version.bias": ("I64", [1]),
        "words": ("F32", [4, 4]), "momentum.words": ("F32", [4, 4]), "rows.words": ("I64", [4]),
        "version.words": ("I64", [1])}
    begin = 8 + size + header["rows.words"]["data_offsets"][0]
    assert struct.unpack_from("<4q", data, begin) == (4, 17, 18, 999)
    done = gradus("ps", "import", half, env=env)
    assert done.returncode == 1 and "has had 4 updates" in " ".join(done.stderr.split()), done
    end(servers[0])

    # The bytes of the file do not depend on the servers, and neither does what comes after it.
    servers, env = start_servers(gradus, secret, 3)
    run_client(gradus, ps_script, env, 1, 1)
    damaged = tmp_path / "damaged"
    for wrong, says in ((data[:-1], "damaged"), (data[:200], "damaged"), (b"", "damaged"),
                        (data[:begin] + struct.pack("<q", 1000) + data[begin + 8:], "has 1000"),
                        (data[:begin] + struct.pack("<q", 17) + data[begin + 8:], "row 17"),
                        (data.replace(b'"rows.words"', b'"rows.wordy"'), 'no "rows.words"'),
                        (data.replace(b'"momentum.words"', b'"momentum.wordy"'), "momentum.words")):
        damaged.write_bytes(wrong)
        done = gradus("ps", "import", damaged, env=env)
        assert done.returncode == 1 and says in " ".join(done.stderr.split()), (says, done)
    assert gradus("ps", "import", half, env=env).returncode == 0
    assert gradus("ps", "export", damaged, "--states", env=env).returncode == 0
    assert damaged.read_bytes() == data
    run_client(gradus, ps_script, env, 2, 4)
    assert gradus("ps", "export", damaged, "--states", env=env).returncode == 0
    assert damaged.read_bytes() == rest.read_bytes()
    for server in servers:
        end(server, "GRADUS_SERVERS_MET=yes\n")


def test_how_to_reach_a_job_is_said(gradus):
    for env, says in (({}, "no parameter servers are named"),
                      ({"GRADUS_SECRET": "11" * 32}, "no parameter servers are named"),
                      ({"GRADUS_SERVERS": "tcp:127.0.0.1:1"}, "secret of the parameter servers")):
        done = gradus("ps", "stats", env=env)
        said = " ".join(done.stderr.split())
        assert done.returncode == 2 and says in said, done
        assert "(set -a; . ./job.servers; gradus ps stats)" in said, done
    assert "--servers-file job.servers" in gradus("ps", "--help").stdout


@pytest.mark.parametrize("where", ["unix:@gradus-nobody-is-here", "tcp:127.0.0.1:1"])
def test_servers_that_are_gone_are_named(gradus, where):
    env = {"GRADUS_SERVERS": where, "GRADUS_SECRET": "11" * 32}
    done = gradus("ps", "ls", "--wait", "1s", env=env)
    assert done.returncode == 1
    assert "parameter server 0 cannot be reached: has the job ended? " in done.stderr
    assert f"at {where}: " in done.stderr  # and why


def counters_of(gradus, env):
    done = gradus("ps", "stats", "--json", env=env)
    return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []


def test_lost_servers_are_replaced(gradus, ps_script, tmp_path):
    """One after the other, more often than there are replicas; the file has the bytes of a run in
    which nothing happened."""
    secret, whole, undisturbed = tmp_path / "secret", tmp_path / "whole", tmp_path / "undisturbed"
    servers, env = start_servers(gradus, secret, 2)
    run_client(gradus, ps_script, env, 0, 2)
    for step, number in enumerate((0, 1, 0, 1), 2):
        servers[number].kill()
        servers[number].communicate(timeout=TIMEOUT_S)
        new = gradus.start("server", "--secret-file", secret, "--listen", "127.0.0.1", "--servers",
                           2, "--number", number, "--replace", env=env)
        servers[number], (_, at) = new, read_lines(new.stdout, 1)[0].split("=", 1)
        wait_until(lambda: [c.get("unreplicated") for c in counters_of(gradus, env)] == [0, 0],
                   "copies of all blocks")
        addresses = env["GRADUS_SERVERS"].split(",")  # until here a list from before, on purpose
        addresses[number] = at
        env["GRADUS_SERVERS"] = ",".join(addresses)
        run_client(gradus, ps_script, env, step, step + 1)
    assert gradus("ps", "export", whole, "--states", env=env).returncode == 0
    for server in servers:
        end(server, "GRADUS_SERVERS_MET=yes\n")
    (server,), env = start_servers(gradus, secret, 1)
    run_client(gradus, ps_script, env, 0, 6)
    assert gradus("ps", "export", undisturbed, "--states", env=env).returncode == 0
    assert whole.read_bytes() == undisturbed.read_bytes()
    end(server)


def test_what_is_wrong_is_said(gradus, tmp_path):
    secret = tmp_path / "secret"
    for words, says in ((("server", "--servers", 2, "--number", 2), "server 2 of 2"),
                        (("server", "--servers", 17), "17"),
                        (("server", "--servers", 2, "--replace"), "GRADUS_SERVERS"),
                        (("server", "--servers", 2, "--replace", "--replicas", 0), "--replicas 1"),
                        (("server", "--replace"), "--servers 2"),
                        (("ps",), "ls, stats, export or import"), (("ps", "top"), "top"),
                        (("ps", "export"), "file"), (("ps", "ls", "more"), "nothing behind"),
                        (("ps", "ls"), "GRADUS_SERVERS")):
        done = gradus(*words, env={"GRADUS_SECRET_FILE": str(secret)}
                      if words[0] == "server" else {"GRADUS_SECRET": "11" * 32})
        assert done.returncode == 2 and says in " ".join(done.stderr.split()), (words, done)
    server, (name, at) = start_server(gradus, secret)
    assert name == "GRADUS_SERVERS"
    env = {"GRADUS_SECRET": "11" * 32, "GRADUS_SERVERS": at}
    done = gradus("ps", "ls", "--wait", "500ms", env=env)
    assert done.returncode == 1 and done.stdout == "", done
    end(server)
