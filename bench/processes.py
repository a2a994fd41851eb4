# SPDX-License-Identifier: Apache-2.0
"""Processes: how they are started, which a job has; for the scripts here and for the tests."""
import io
import os
import pathlib
import signal
import subprocess


class Process(subprocess.Popen):
    """Some lines of its output may be read, and the rest by communicate(), which does not see what
    has been read ahead; nor does select(): nothing is."""

    def __init__(self, command, **more):
        super().__init__(command, bufsize=0, **more)
        for pipe in self.stdout, self.stderr:
            if isinstance(pipe, io.TextIOWrapper):
                pipe._CHUNK_SIZE = 1


def children(pid):
    """Process ids, in the order of their start; none if it has ended."""
    try:
        return [int(word) for word in
                pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def name(pid):
    """Of its thread; empty if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def agents_of(launcher):
    """Agents and relays: below the job's supervisor, which is a child of its launcher, or itself
    with --outlive 0. What guards an agent stands between."""
    below = [agent for pid in children(launcher)
             for agent in (children(pid) if name(pid) == "gradus-job" else [pid])
             if name(agent) != "gradus-deputy"]
    return [agent for pid in below
            for agent in (children(pid) if name(pid) == "gradus-guard" else [pid])]


def stat(pid):
    """Its state, its parent, ...; none if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["", 0]


def state_of(pid):
    return stat(pid)[0]


def rest_of(pid):
    """The state of each of its threads, and how often it has gone to sleep."""
    found = []
    for path in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*/status")):
        lines = dict(line.split(":\t", 1) for line in path.read_text().split("\n") if ":\t" in line)
        found.append((lines["State"][0], lines["voluntary_ctxt_switches"]))
    return found


def stand_still(pids):
    """Whether all of them sleep, and none did anything while we looked: what they have sent to each
    other has arrived, and has been dealt with."""
    try:
        rests = [rest_of(pid) for pid in pids]
        return rests == [rest_of(pid) for pid in pids] and \
            all(rests) and all(state == "S" for rest in rests for state, _ in rest)
    except OSError:  # one of them, or of their threads, has ended
        return False


def parent(pid):
    return int(stat(pid)[1])


def agent_and_guard(agent):
    """Who must be killed so that the agent's host is lost: its guard first, if it has one."""
    above = parent(agent)
    return [above, agent] if name(above) == "gradus-guard" else [agent]


def kill_agent(agent):
    for pid in agent_and_guard(agent):
        os.kill(pid, signal.SIGKILL)


def words(pid):
    """Its command line; empty if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def variable(pid, name):
    """As it was when the process was started; None without it, or if that has ended."""
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    found = [entry for entry in entries if entry.startswith(f"{name}=".encode())]
    return found[0].split(b"=", 1)[1].decode() if found else None


def marked(name, value):
    """Process ids of those that have this variable in the environment they were started with."""
    found = []
    wanted = f"{name}={value}".encode()
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found
