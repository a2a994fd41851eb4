# SPDX-License-Identifier: Apache-2.0
"""torchrun: its flags become those of `gradus run`, and of `gradus agent` on further nodes.

On one node `gradus run` takes the place of this process. On several, the node whose address the
flags name waits for the others by `gradus run --listen` and offers its own slots by an agent; every
other node is an agent alone. All need one token (GRADUS_JOIN_TOKEN_FILE or GRADUS_JOIN_TOKEN)."""
import argparse
import os
import re
import signal
import socket
import subprocess
import sys
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple

from ._command import program
from .errors import Error

_STATIC_PORT, _C10D_PORT = 29500, 29400
_JOIN_S = 600  # for which nodes wait for each other, without --rdzv-conf join_timeout=
# Flags that are accepted and do nothing: how many words follow, and why.
_NO_MEANING: Dict[str, Tuple[int, str]] = {
    "monitor-interval": (1, "the end of a process is an event"),
    "start-method": (1, "workers are programs of their own"),
    "local-addr": (1, "GRADUS_INTERFACE chooses the network"),
    "log-line-prefix-template": (1, "each line begins with its rank where --tee is given"),
    "local-ranks-filter": (1, "each line begins with its rank where --tee is given"),
    "duplicate-stdout-filters": (1, "--log-dir keeps the output of each rank"),
    "duplicate-stderr-filters": (1, "--log-dir keeps the output of each rank"),
    "logs-specs": (1, "--log-dir keeps the output of each rank"),
    "numa-binding": (1, "workers are bound to cores of their own where there are enough"),
    "signals-to-handle": (1, "SIGINT and SIGTERM are handed on"),
    "virtual-local-rank": (0, "LOCAL_RANK is the rank on the host"),
    "event-log-handler": (1, "GRADUS_LOG=info tells what happens"),
}
# What programs read beside what `gradus run` sets; and torchrun restarts what ends with a code,
# gradus run what was killed.
_WORKER = """
export ROLE_RANK=$RANK ROLE_WORLD_SIZE=$WORLD_SIZE
export GROUP_RANK=$(((RANK - LOCAL_RANK) / LOCAL_WORLD_SIZE))
export GROUP_WORLD_SIZE=$((WORLD_SIZE / LOCAL_WORLD_SIZE))
if [ -n "$GR_TORCHRUN_LOGS" ]; then
    logs=$GR_TORCHRUN_LOGS/attempt_$TORCHELASTIC_RESTART_COUNT/$LOCAL_RANK
    mkdir -p "$logs" || exit 1
    which=$GR_TORCHRUN_REDIRECTS
    case ",$which," in *",$LOCAL_RANK:"*) which=${which##*"$LOCAL_RANK:"} which=${which%%,*};;
    *:*) which=0;; esac
    case $which in 1|3) exec >"$logs/stdout.log";; esac
    case $which in 2|3) exec 2>"$logs/stderr.log";; esac
fi
[ "$TORCHELASTIC_MAX_RESTARTS" = 0 ] && exec "$@"
trap asked=1 TERM INT
"$@"
code=$?
[ $code = 0 ] || [ -n "$asked" ] && exit $code
echo "torchrun: rank $RANK ended with exit code $code" >&2
kill -KILL $$
"""
_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def _nodes(text: str) -> Tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", text)
    if not found or (found[2] and int(found[2]) < int(found[1])):
        raise argparse.ArgumentTypeError(f"\"{text}\" is neither N nor MIN:MAX")
    return int(found[1]), int(found[2] or found[1])


def _streams(text: str) -> str:
    """0 to 3, for all or as "0:1,1:3" by local rank."""
    if not re.fullmatch(r"[0-3]|\d+:[0-3](,\d+:[0-3])*", text):
        raise argparse.ArgumentTypeError(f"\"{text}\" is neither 0 to 3 nor like 0:1,1:3")
    return text


def _not_negative(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"\"{text}\" is no number from 0 on")
    return int(text)


class _PrintCompletion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 values: Any, option_string: Optional[str] = None) -> None:
        try:
            import shtab
        except ImportError:
            parser.exit(1, f"torchrun: {option_string} needs the package shtab: pip install "
                        "shtab\n")
        if values not in shtab.SUPPORTED_SHELLS:
            parser.error(f"{option_string} is \"{values}\"; it is one of "
                         f"{', '.join(shtab.SUPPORTED_SHELLS)}")
        print(shtab.complete(parser, shell=values))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun", allow_abbrev=False, usage="torchrun [flags] program [arguments]",
        description="Starts a program of PyTorch on several processes, by gradus run.")

    def add(name: str, *short: str, **how: object) -> None:
        both = {f"--{name}", f"--{name.replace('-', '_')}"}
        parser.add_argument(*short, *sorted(both), dest=name.replace("-", "_"), **how)

    add("nnodes", type=_nodes, default=(1, 1), metavar="N", help="number of nodes, or MIN:MAX")
    add("nproc-per-node", default="1", metavar="N", help="workers of this node: a number, cpu, gpu "
        "or auto")
    add("node-rank", type=_not_negative, default=0, help="0: this is the first node")
    add("master-addr", help="address of the first node")
    add("master-port", type=_not_negative, help=f"where it listens; {_STATIC_PORT}")
    add("rdzv-backend", default="static", help="static or c10d")
    add("rdzv-endpoint", default="", metavar="HOST[:PORT]", help="the first node's address")
    add("rdzv-id", default="none", help="the job's name, for programs that ask")
    add("rdzv-conf", default="", help="join_timeout=S; others have no meaning")
    add("standalone", action="store_true", help="this node alone")
    add("max-restarts", type=_not_negative, default=0, help="how often all workers are begun anew")
    add("shutdown-timeout", type=_not_negative, metavar="S", help="seconds that workers get to end "
        "after SIGINT or SIGTERM; as of gradus run --grace")
    add("role", default="default", help="a name, for programs that ask")
    add("module", "-m", action="store_true", help="the program is a module, as for python -m")
    add("no-python", action="store_true", help="the program is no Python")
    add("run-path", action="store_true", help="the program is run by runpy.run_path")
    add("log-dir", metavar="DIR", help="where --redirects and --tee write")
    add("redirects", "-r", type=_streams, default="0", help="what goes to files only: 1 stdout, "
        "2 stderr, 3 both; 0:1,1:3 by local rank")
    add("tee", "-t", type=_streams, default="0", help="what goes to files as well")
    add("print-completion", action=_PrintCompletion, metavar="SHELL", help="print what "
        "completes the flags in this shell, bash say; by the package shtab")
    for name, (words, why) in _NO_MEANING.items():
        add(name, help=f"no effect: {why}", **({} if words else {"action": "store_true"}))
    parser.add_argument("program", help="a script, or what -m or --no-python says")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _count_workers(text: str, parser: argparse.ArgumentParser) -> int:
    if text.isdigit() and int(text) > 0:
        return int(text)
    if text not in ("cpu", "gpu", "auto"):
        parser.error(f"--nproc-per-node is \"{text}\"; it is a number from 1 on, cpu, gpu or auto")
    gpus = 0
    if text != "cpu":
        try:
            import torch
            gpus = torch.cuda.device_count()
        except ImportError:
            pass
        if text == "gpu" and gpus == 0:
            parser.error("--nproc-per-node is gpu, and torch finds none here")
    return gpus or os.cpu_count() or 1


def _split(endpoint: str, port: int, parser: argparse.ArgumentParser) -> Tuple[str, int]:
    found = re.fullmatch(r"\[?(.*?)\]?(?::(\d+))?", endpoint)
    if not found or not found[1] or int(found[2] or port) > 65535:
        parser.error(f"--rdzv-endpoint is \"{endpoint}\"; it is HOST or HOST:PORT")
    return found[1], int(found[2] or port)


def _is_here(host: str) -> bool:
    """Does one of its addresses belong to this host?"""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as one:
            try:
                one.bind(address)
                return True
            except OSError:
                continue
    return False


def _find_first(found: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Where the first node is (host, port), and whether it is this one (is_first)."""
    if found.rdzv_backend == "c10d":
        if not found.rdzv_endpoint:
            parser.error("--rdzv-endpoint is missing: the address of the first node, HOST:PORT")
        found.host, found.port = _split(found.rdzv_endpoint, _C10D_PORT, parser)
        found.is_first = _is_here(found.host)
    elif found.rdzv_backend == "static":
        port = _STATIC_PORT if found.master_port is None else found.master_port
        if not found.master_addr and not found.rdzv_endpoint and found.node_rank > 0:
            parser.error("--master-addr is missing: the address of the first node")
        found.host, found.port = _split(
            found.rdzv_endpoint or f"{found.master_addr or '127.0.0.1'}:{port}", port, parser)
        found.is_first = found.node_rank == 0
        if found.node_rank >= found.nnodes[1]:
            parser.error(f"--node-rank is {found.node_rank}; with {found.nnodes[1]} nodes it is "
                         f"less than that")
    else:
        parser.error(f"--rdzv-backend is \"{found.rdzv_backend}\"; without a server of its own it "
                     "is c10d or static: --rdzv-backend c10d --rdzv-endpoint HOST:PORT")
    if not any(os.environ.get(name) for name in ("GRADUS_JOIN_TOKEN_FILE", "GRADUS_JOIN_TOKEN")):
        parser.error("nodes let each other in by a token that all have: set GRADUS_JOIN_TOKEN_FILE "
                     "on each to a file of mode 0600 with the same 64 hex digits (openssl rand "
                     "-hex 32)")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The flags; besides .workers (of this node), .is_alone, .join_s and, unless it is alone, .host
    and .port of the first node and .is_first. A wrong one ends the program with exit code 2."""
    parser = _parser()
    found = parser.parse_args(words)
    found.workers = _count_workers(found.nproc_per_node, parser)
    if sum((found.module, found.no_python, found.run_path)) > 1:
        parser.error("-m, --no-python and --run-path say how the program is run; one of them can")
    join = re.search(r"(?:^|,)join_timeout=(\d+)", found.rdzv_conf)
    found.join_s = int(join[1]) if join else _JOIN_S
    found.is_alone = found.standalone or found.nnodes == (1, 1)
    if not found.is_alone:
        _find_first(found, parser)
    return found


def command_of(found: argparse.Namespace) -> List[str]:
    """The words of `gradus run`."""
    words = ["run", "-np", str(found.workers * (1 if found.is_alone else found.nnodes[0])),
             "--restarts", str(found.max_restarts)]
    if found.shutdown_timeout is not None:
        words += ["--grace", f"{found.shutdown_timeout}s"]
    if not found.is_alone:
        words += ["--listen", f":{found.port}", "--start-timeout", f"{found.join_s}s"]
    logs = os.path.abspath(found.log_dir or "torchrun-logs")
    if found.tee == "0":
        words.append("--no-prefix")
    else:
        words += ["--log-dir", logs]
    settings = {"ROLE_NAME": found.role, "TORCHELASTIC_RUN_ID": found.rdzv_id,
                "TORCHELASTIC_MAX_RESTARTS": found.max_restarts,
                "TORCHELASTIC_USE_AGENT_STORE": "False"}
    if found.redirects != "0":
        settings["GR_TORCHRUN_LOGS"] = os.path.join(logs, found.rdzv_id)
        settings["GR_TORCHRUN_REDIRECTS"] = found.redirects
    python = [sys.executable, "-u"]
    how = ([] if found.no_python else [*python, "-m"] if found.module else
           [*python, "-c", _PATH] if found.run_path else python)
    return [*words, "--", "env", *(f"{name}={value}" for name, value in settings.items()), "sh",
            "-c", _WORKER, "sh", *how, found.program, *found.arguments]


def _run_first(path: str, found: argparse.Namespace) -> int:
    """The launcher, and an agent that offers this node; the launcher's exit code."""
    launcher = subprocess.Popen([path, *command_of(found)])

    def hand_on(number: int, _frame: object) -> None:
        launcher.send_signal(number)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hand_on)
    agent = subprocess.Popen([path, "agent", "--join", f"127.0.0.1:{found.port}", "--slots",
                              str(found.workers), "--wait", f"{found.join_s}s"],
                             start_new_session=True)  # Ctrl-C is for the launcher
    code = launcher.wait()
    if code == 2:  # it has not listened
        agent.terminate()
    agent.wait()
    return code if code >= 0 else 1


def main(words: Optional[Sequence[str]] = None) -> NoReturn:
    """The command. Exit codes: 0 done, 1 the job failed (on a node that is not the first: the first
    one was lost), 2 the flags are wrong, 75 asked to end, and may go on."""
    found = parse(sys.argv[1:] if words is None else words)
    for name, (_, why) in _NO_MEANING.items():
        if getattr(found, name.replace("-", "_")):
            print(f"torchrun: --{name} has no effect: {why}", file=sys.stderr)
    if found.nnodes[0] != found.nnodes[1] and not found.is_alone and found.is_first:
        print(f"torchrun: the job has {found.nnodes[0]} nodes; those that come besides take the "
              "place of nodes that are lost", file=sys.stderr)
    try:
        path = program()
    except Error as error:
        print(f"torchrun: {error}", file=sys.stderr)
        sys.exit(1)
    if not found.is_alone and found.is_first:
        sys.exit(_run_first(path, found))
    command = command_of(found) if found.is_alone else [
        "agent", "--join", f"{found.host}:{found.port}", "--slots", str(found.workers), "--wait",
        f"{found.join_s}s"]
    os.execv(path, ["gradus", *command])


if __name__ == "__main__":
    main()
