# SPDX-License-Identifier: Apache-2.0
"""`gradus run --servers`: parameter servers beside the workers."""
import json
import os
import pathlib
import re
import signal
import socket

import pytest
from conftest import TIMEOUT_S, finish, read_lines, wait_until, write_digits
from processes import kill_agent
from test_join import Join
from test_ps import ps_script  # noqa: F401
from test_ssh import both, end_of, namespaces, two  # noqa: F401

# Every worker pushes its rank + 1 once in each step; the value is the sum of all that was pushed.
MEET = """
size, rank = int(os.environ["GRADUS_WORLD_SIZE"]), int(os.environ["GRADUS_RANK"])
servers = os.environ["GRADUS_SERVERS"].split(",")
connect()
count = 10000
ident = declare(b"sum", count, shards=size)
values = (ctypes.c_float * count)()
def meet(step):
    push = Gradient(floats([rank + 1.0] * count), step, rank, 1)
    check(library.gr_ps_push_pull_run(ps, ident, ctypes.byref(push), values, None))
"""
ONCE = MEET + """
meet(0)
print("sum", values[0], values[count - 1], "of", len(servers), flush=True)
"""
# By the second step each server has said that it has met the others.
FOREVER = MEET + """
step = 0
while True:
    meet(step)
    if step == 1:
        print("up", flush=True)
    step += 1
"""
SLEEP = ["--", "sh", "-c", "echo up; exec sleep 1000"]
ALONE = ["--server-replicas", 0]


def servers_of(gradus):
    """The servers of this test's job: process by number."""
    found = {}
    for pid in gradus.remains():
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            own = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        number = [entry for entry in own if entry.startswith(b"GRADUS_SERVER_NUMBER=")]
        if words[1:2] == [b"server"] and number:
            found[int(number[0].split(b"=")[1])] = pid
    return found


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


# ---- Start and end -------------------------------------------------------------------------------

@pytest.mark.parametrize("link", ["auto", "tcp"])
def test_workers_meet_by_servers(gradus, ps_script, link):
    done = gradus("run", "-np", 3, "--servers", 2, "--link", link, "--", *ps_script(ONCE))
    assert done.returncode == 0 and done.stderr == "", done
    assert sorted(done.stdout.splitlines()) == [f"[{i}] sum 6.0 6.0 of 2" for i in range(3)]
    assert not gradus.remains()


def test_nobody_outside_reaches_them_and_the_secret_is_not_told(gradus):
    job = gradus.start("run", "-np", 1, "--servers", 2, "--", "sh", "-c",
                       "echo $GRADUS_SERVERS; echo $GRADUS_SECRET; exec sleep 1000")
    addresses, secret = (line.split("] ")[1] for line in read_lines(job.stdout, 2))
    for address in addresses.split(","):
        assert re.fullmatch(r"unix:@[\w-]+(\+tcp:127\.0\.0\.1:\d+)?", address), addresses
    servers = servers_of(gradus)
    assert sorted(servers) == [0, 1]
    for pid in gradus.remains():
        assert secret.encode() not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    for pid in (*servers.values(), job.pid):
        assert secret.encode() not in pathlib.Path(f"/proc/{pid}/environ").read_bytes()


def test_their_output_is_logged_apart(gradus, ps_script, tmp_path):
    logs = tmp_path / "logs"
    done = gradus("run", "-np", 1, "--servers", 1, "--log-dir", logs, "--", *ps_script(ONCE))
    assert done.returncode == 0, done
    assert {path.name for path in logs.iterdir()} == {
        "rank.0.out", "rank.0.err", "server.0.out", "server.0.err"}
    assert (logs / "server.0.out").read_text().startswith("GRADUS_SERVERS=unix:@")


@pytest.mark.parametrize("flags, says", [
    (["--servers", 0], "1 to 16"), (["--servers", 17], "1 to 16"), (["--servers", "two"], "two")])
def test_a_wrong_number(gradus, flags, says):
    done = gradus("run", "-np", 1, *flags, *SLEEP)
    assert done.returncode == 2 and says in done.stderr and "--servers" in done.stderr, done


def test_a_job_that_has_no_use_for_them(gradus, tmp_path):
    job = write_digits(tmp_path, 1)
    done = gradus("run", "-np", 1, "--servers", 2, job)
    assert done.returncode == 2 and "--servers 2" in done.stderr, done
    assert "no use for parameter servers" in done.stderr
    job.write_text(job.read_text().replace("distribution:\n", "distribution:\n  servers: 3\n"))
    done = gradus("run", "-np", 1, job)
    assert done.returncode == 2 and "servers: 3" in done.stderr, done


def test_a_server_that_cannot_start(gradus):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = gradus("run", "-np", 1, "--servers", 2, *SLEEP,
                      env={"GRADUS_PORTS": str(taken.getsockname()[1])})
    assert done.returncode == 1 and done.stdout == "", done
    assert re.search(r"^\[server \d\] gradus: .*GRADUS_PORTS", done.stderr, re.M), done.stderr
    assert re.search(r"^gradus: parameter server \d \(pid \d+\) exited with code 2", done.stderr,
                     re.M), done.stderr
    assert not gradus.remains()


def variables_of(servers_file):
    return dict(line.split("=", 1) for line in servers_file.read_text().splitlines()
                if not line.startswith("#"))


def test_a_file_for_who_wants_to_look_in(gradus, ps_script, tmp_path):
    path = tmp_path / "job.servers"
    words = ["run", "-np", 1, "--servers", 2, "--servers-file", path, "--"]
    job = gradus.start(*words, *ps_script(FOREVER))
    read_lines(job.stdout, 1)
    assert path.stat().st_mode & 0o777 == 0o600
    env = variables_of(path)
    assert set(env) == {"GRADUS_SERVERS", "GRADUS_SECRET"}
    done = gradus("ps", "ls", env=env)
    assert done.returncode == 0 and "sum" in done.stdout, done
    again = gradus(*words, "true")
    assert again.returncode == 2 and "job.servers" in again.stderr, again
    assert path.exists()
    job.terminate()
    finish(job, 1)
    assert not path.exists() and not gradus.remains()
    done = gradus("run", "-np", 1, "--servers-file", path, "--", "true")
    assert done.returncode == 2 and "--servers" in done.stderr, done


def test_a_restarted_job_takes_its_file_over(gradus, ps_script, tmp_path):
    """Its supervisor was killed, and nobody has removed the file. It stays that of this job."""
    path = tmp_path / "job.servers"
    job = gradus.start("run", "-np", 1, "--servers", 2, "--servers-file", path, "--restarts", 2,
                       "--", *ps_script(FOREVER))
    read_lines(job.stdout, 1)
    before = path.read_text()
    gradus.kill_supervisors()
    read_lines(job.stdout, 1)
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_text() != before
    assert gradus("ps", "ls", env=variables_of(path)).returncode == 0
    path.write_text("of another job\n")
    gradus.kill_supervisors()
    assert f"--servers-file: cannot write {path}: File exists" in finish(job, 1)[1]
    assert path.read_text() == "of another job\n"


def test_a_dry_run_says_how_many_are_needed(gradus, tmp_path):
    job = write_digits(tmp_path, 1)
    job.write_text(job.read_text().replace("distribution:\n", "distribution:\n  strategy: ps\n"))
    done = gradus("run", "--dry-run", "-np", 4, job)
    assert done.returncode == 0 and not gradus.remains(), done
    said = " ".join(done.stdout.split())
    assert re.search(r"advice \d+ parameter servers? balances? 4 workers: a step takes [\d.]+ ms"
                     r".*with allreduce \(\w+\) it would take [\d.]+ ms", said), said
    assert "measured here: " in said and "between processes of the one host" in said, said
    assert "as asked" not in said, said
    (tmp_path / "slow.yaml").write_text("bandwidth_gbit: 0.25\n")
    done = gradus("run", "--dry-run", "-H", "a:2,b:2,c:2", "-np", 6, "--cluster", "slow.yaml",
                  "--servers", 15, job)
    said = " ".join(done.stdout.split())
    assert "balance 6 workers" in said and "slow.yaml: 0.25 Gbit/s" in said and \
        "between the 3 hosts" in said, done
    assert re.search(r"with 15 servers, as asked, a step takes [\d.]+ ms", said), said
    for flags, code, says in ((["--cluster", "slow.yaml"], 2, "--dry-run"),
                              (["--dry-run", "--cluster", "none.yaml"], 2, "none.yaml")):
        done = gradus("run", "-np", 1, "--servers", 1, *flags, job)
        assert done.returncode == code and says in done.stderr, done


# ---- Every end -----------------------------------------------------------------------------------

def start_pushing(gradus, ps_script, *flags, workers=2, servers=2):
    job = gradus.start("run", "-np", workers, "--servers", servers, *flags, "--",
                       *ps_script(FOREVER))
    read_lines(job.stdout, workers)
    return job, servers_of(gradus)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_workers_and_then_servers(gradus, ps_script, number):
    """Who is asked to end can still push, and save what it pulls."""
    job = gradus.start("run", "-np", 1, "--servers", 2, "--", *ps_script(MEET + f"""
import signal
asked = []
signal.signal({number:d}, lambda *_: asked.append(1))
meet(0)
print("up", flush=True)
while not asked:
    signal.sigtimedwait([], 0.01)
meet(1)
print("last", values[0], flush=True)
"""))
    read_lines(job.stdout, 1)
    assert len(servers_of(gradus)) == 2
    job.send_signal(number)
    out, err = finish(job, 1)
    assert out == "[0] last 2.0\n" and f"ended by {number.name}" in err, (out, err)
    assert not gradus.remains()


def test_a_worker_that_fails_ends_them_too(gradus, ps_script):
    done = gradus("run", "-np", 2, "--servers", 2, "--", *ps_script(
        MEET + "meet(0)\nsys.exit(3 if rank == 1 else 0)\n"))
    assert done.returncode == 1 and "rank 1" in done.stderr and "code 3" in done.stderr
    assert "server" not in done.stderr and not gradus.remains()


@pytest.mark.parametrize("number, how", [
    (signal.SIGKILL, r"was killed by signal 9 \(Killed\)"), (signal.SIGTERM, "exited with code 0"),
    (signal.SIGABRT, r"was killed by signal 6 \(Abort.*\)")])
def test_a_server_that_dies_is_named(gradus, ps_script, number, how):
    job, servers = start_pushing(gradus, ps_script, *ALONE)
    os.kill(servers[1], number)
    _, err = finish(job, 1)
    assert re.search(rf"gradus: parameter server 1 \(pid {servers[1]}\) {how} after \d+\.\d s, and "
                     "what it kept is lost", err), err
    assert not gradus.remains()


def test_all_is_restarted_when_a_server_dies(gradus, ps_script):
    job, servers = start_pushing(gradus, ps_script, *ALONE, "--restarts", 1)
    os.kill(servers[0], signal.SIGKILL)
    read_lines(job.stdout, 2)
    again = servers_of(gradus)
    assert sorted(again) == [0, 1] and not set(again.values()) & set(servers.values())
    os.kill(again[1], signal.SIGKILL)
    _, err = finish(job, 1)
    assert "parameter server 0 " in err and "restarted (1 of at most 1 times" in err, err
    assert err.index("restarted") < err.index("parameter server 1 ")
    assert not gradus.remains()


def test_a_server_is_killed_on_order(gradus, ps_script):
    done = gradus("run", "-np", 2, "--servers", 2, *ALONE, "--chaos", "kill:server=1@time=500ms",
                  "--", *ps_script(FOREVER))
    assert done.returncode == 1, done
    assert re.search(r"parameter server 1 \(pid \d+\) was killed by signal 9", done.stderr), done
    for fault, says in (("kill:server=2@time=1s", "2 parameter servers"),
                        ("kill:server=1@step=3", "kill:server=1@time=3s"),
                        ("kill:server=1,rank=1@time=1s", "kill:server=1@time=3s")):
        done = gradus("run", "-np", 2, "--servers", 2, "--chaos", fault, *SLEEP)
        assert done.returncode == 2 and says in done.stderr, done


def test_the_agent_of_a_server_is_killed(gradus, ps_script):
    job, servers = start_pushing(gradus, ps_script, *ALONE)
    kill_agent(parent_of(servers[0]))
    _, err = finish(job, 1)
    assert "looks after parameter server 0 (gradus-agent, pid" in err, err
    assert not gradus.remains()


def test_the_agent_of_the_workers_is_killed(gradus, ps_script):
    job, servers = start_pushing(gradus, ps_script)
    looks_after = {parent_of(pid) for pid in servers.values()}
    agent, = {pid for pid, name in gradus.remains().items() if name == "gradus-agent"} - looks_after
    kill_agent(agent)
    _, err = finish(job, 1)
    assert "looks after the workers (gradus-agent, pid" in err, err
    assert not gradus.remains()


def test_the_launcher_is_killed(gradus, ps_script):
    job, _ = start_pushing(gradus, ps_script, "--outlive", 0)
    job.kill()
    gradus.wait_for_nothing(TIMEOUT_S)


def write_ps_job(folder, epochs):
    path = write_digits(folder, epochs)
    path.write_text(path.read_text().replace(
        "distribution:\n", "distribution:\n  strategy: ps\n  servers: 2\n"))
    return path


def start_training(gradus, *words):
    """A job whose first epoch is over."""
    metrics = gradus.folder / "out/metrics.jsonl"
    job = gradus.start("run", "-np", 2, "--output", "out", "--chaos", "slow:rank=1,x10", *words)
    wait_until(lambda: metrics.exists() and '"epoch":1' in metrics.read_text(), "the first epoch")
    return job


def test_servers_stay_until_orphans_have_saved(gradus, tmp_path):
    start_training(gradus, "--outlive", 0, "--orphans", "finish", "--grace", "60s",
                   write_ps_job(tmp_path, 1000)).kill()
    gradus.wait_for_nothing(TIMEOUT_S)
    checkpoint, = tmp_path.glob("out/checkpoints/step-*")
    done = gradus("checkpoint", "verify", checkpoint)
    assert done.returncode == 0 and int(checkpoint.name[5:]) >= 22, done


def test_a_job_goes_on_without_servers_that_have_replicas(gradus, ps_script):
    """Each sum is what it would have been; nothing is restarted."""
    job = gradus.start("run", "-np", 1, "--servers", 3, "--restarts", 0, "--",
                       *ps_script(MEET + """
step = asked = 0
while True:
    ask = os.path.exists(f"ask{asked}")
    meet(step)
    step += 1
    if values[0] != step or values[count - 1] != step:
        sys.exit(f"{values[0]} after step {step}")
    if ask or step == 20:
        print(step, flush=True)
    asked += ask
"""))
    read_lines(job.stdout, 1)
    servers, said = servers_of(gradus), []
    for ask, number in enumerate((0, 2)):
        os.kill(servers[number], signal.SIGKILL)
        (gradus.folder / f"ask{ask}").touch()
        read_lines(job.stdout, 1)
        said.append(job.stderr.readline())
        while " was killed " not in said[-1] and said[-1]:
            said.append(job.stderr.readline())
    job.terminate()
    err = "".join(said) + finish(job, 1)[1]
    for number, left in ((0, "the others go on"), (2, "the other goes on")):
        killed = rf"parameter server {number} \(pid {servers[number]}\) was killed"
        assert re.search(f"{killed} .*; {left} with what it kept", err), err
    assert "ended by SIGTERM" in err and not gradus.remains()


def wait_for_copies(gradus, path, servers):
    """Until all servers are there, and none of them has a block alone; the new ones' addresses are
    in the file as well, or about to be."""
    def whole():
        if not path.exists():
            return False
        env = variables_of(path)
        done = gradus("ps", "stats", "--json", env=env)
        counted = [json.loads(line) for line in done.stdout.splitlines()]
        return done.returncode == 0 and [c.get("unreplicated") for c in counted] == [0] * servers
    wait_until(whole, "copies of all blocks")


def test_lost_servers_are_replaced(gradus, ps_script, tmp_path):
    """One after the other, each of two more than once; nothing is restarted, and --restarts is how
    often."""
    path = tmp_path / "job.servers"
    job, servers = start_pushing(gradus, ps_script, "--servers-file", path, "--restarts", 2)
    wait_for_copies(gradus, path, 2)
    for number in (0, 1, 1, 0):
        os.kill(servers[number], signal.SIGKILL)
        wait_until(lambda: servers_of(gradus).get(number, servers[number]) != servers[number],
                   "another server")
        wait_for_copies(gradus, path, 2)
        servers = servers_of(gradus)
        assert sorted(servers) == [0, 1]
    os.kill(servers[0], signal.SIGKILL)
    said = [job.stderr.readline()]
    while "".join(said).count(" was killed ") < 5 and said[-1]:
        said.append(job.stderr.readline())
    job.terminate()
    err = "".join(said) + finish(job, 1)[1]
    on = "; the other goes on with what it kept"
    assert err.count(on + ", and another one is started\n") == 4 and err.count(on + "\n") == 1, err
    assert "ended by SIGTERM" in err and "restarted" not in err and not gradus.remains(), err


def test_all_is_restarted_when_a_block_and_its_replica_are_lost(gradus, ps_script):
    job, servers = start_pushing(gradus, ps_script, "--restarts", 1,
                                 workers=1, servers=3)
    for number in range(3):  # so that no copy of what the first one kept is made in between
        os.kill(servers[number], signal.SIGSTOP)
    for number in (0, 2):
        os.kill(servers[number], signal.SIGKILL)
    os.kill(servers[1], signal.SIGCONT)
    read_lines(job.stdout, 1)
    again = servers_of(gradus)
    assert sorted(again) == [0, 1, 2] and not set(again.values()) & set(servers.values())
    job.terminate()
    _, err = finish(job, 1)
    assert "restarted (1 of at most 1 times" in err and not gradus.remains(), err


def test_all_is_restarted_when_half_of_the_hosts_are_lost(gradus, ps_script):
    """The one that is left would wait for the other: its host may be there, and the wire broken."""
    job, servers = start_pushing(gradus, ps_script, "--restarts", 1)
    kill_agent(parent_of(servers[0]))
    read_lines(job.stdout, 2)
    again = servers_of(gradus)
    assert sorted(again) == [0, 1] and not set(again.values()) & set(servers.values())
    job.terminate()
    _, err = finish(job, 1)
    assert "restarted (1 of at most 1 times" in err and not gradus.remains(), err


def test_servers_that_have_not_met_have_no_replicas(gradus, tmp_path):
    done = gradus("run", "-np", 2, "--servers", 2, "--output", "out",
                  "--chaos", "kill:server=1@time=1ms", write_ps_job(tmp_path, 2))
    assert done.returncode == 0 and "restarted (1 of" in done.stderr, done
    assert "parameter server 1 " in done.stderr and "kept is lost" in done.stderr, done


def test_a_server_that_stands_still_does_not_keep_the_end(gradus):
    job = gradus.start("run", "-np", 1, "--servers", 2, "--", "sh", "-c",
                       "echo up; while ! [ -e gate ]; do sleep 0.01; done")
    read_lines(job.stdout, 1)
    os.kill(servers_of(gradus)[1], signal.SIGSTOP)
    (gradus.folder / "gate").touch()
    finish(job)
    assert not gradus.remains()


# ---- Who comes later -----------------------------------------------------------------------------

def test_who_comes_later_knows_them(gradus, comm_script, tmp_path):
    gradus.start("run", "-np", 1, "--min-workers", 1, "--spare", 1, "--servers", 2, "--",
                 *comm_script("""
with open(f"new{rank}", "w") as file:
    file.write(os.environ["GRADUS_SERVERS"])
os.rename(f"new{rank}", f"servers{rank}")
create()
import signal
signal.pause()
"""))
    told = [tmp_path / f"servers{rank}" for rank in range(2)]
    wait_until(lambda: all(path.exists() for path in told), "both workers")
    assert told[0].read_text() == told[1].read_text() and told[0].read_text().count(",") == 1


def pretended_hosts(tmp_path):
    """An environment in which all hosts are this one."""
    (tmp_path / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    (tmp_path / "ssh").chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.parametrize("number", [0, 1])
def test_of_two_servers_on_two_hosts_only_the_second_can_be_missed(gradus, ps_script, tmp_path,
                                                                  number):
    """The second one would wait for the first: it cannot know that it has died."""
    job = gradus.start("run", "-H", "one:1,two:1", "--servers", 2, "--", *ps_script(FOREVER),
                       env=pretended_hosts(tmp_path))
    read_lines(job.stdout, 2)
    os.kill(servers_of(gradus)[number], signal.SIGKILL)
    said = job.stderr.readline()
    job.terminate()
    said += finish(job, 1)[1]
    killed = rf"parameter server {number} \(pid \d+ on (one|two)\) was killed by signal 9"
    assert re.search(killed + (".*and what it kept is lost", ".*; the other goes on")[number],
                     said), said
    assert not gradus.remains()


def test_on_what_passes_for_other_hosts(gradus, ps_script, tmp_path):
    """Servers are dealt to the hosts in turn; order and secret go there as the workers' do."""
    env = pretended_hosts(tmp_path)
    words = ["run", "-H", "one:1,two:1", "--servers", 3, *ALONE]
    done = gradus(*words, "--", *ps_script(ONCE), env=env)
    assert done.returncode == 0 and done.stderr == "", done
    assert sorted(done.stdout.splitlines()) == [
        "[0@one] sum 3.0 3.0 of 3", "[1@two] sum 3.0 3.0 of 3"]
    assert not gradus.remains()
    job = gradus.start(*words, "--", *ps_script(FOREVER), env=env)
    read_lines(job.stdout, 2)
    os.kill(servers_of(gradus)[1], signal.SIGKILL)
    _, err = finish(job, 1)
    assert re.search(r"parameter server 1 \(pid \d+ on two\) was killed by signal 9", err), err
    assert not gradus.remains()


def test_on_two_hosts(two, ps_script):  # noqa: F811
    done = two.run("-H", both(two, 1), "--servers", 2, "--", *ps_script(ONCE + """
print(*[address.split("tcp:")[1].split(":")[0] for address in servers], flush=True)
"""))
    assert done.returncode == 0 and done.stderr == "", done
    network = namespaces.NETWORK
    assert sorted(done.stdout.splitlines()) == [
        line for rank, host in enumerate(two.names) for line in (
            f"[{rank}@{host}] {network}.1 {network}.2", f"[{rank}@{host}] sum 3.0 3.0 of 2")]
    two.gradus.wait_for_nothing()


def test_hosts_that_come_reach_servers_here(two, ps_script):  # noqa: F811
    join = Join(two, "-np", 2, "--servers", 2, "--", *ps_script(ONCE))
    join.agent(0)
    code, out, err = end_of(join.launcher)
    assert code == 0 and err == "", err
    assert [line.split("] ")[1] for line in out.splitlines()] == ["sum 3.0 3.0 of 2"] * 2
    join.finish_agents()
    two.gradus.wait_for_nothing()
