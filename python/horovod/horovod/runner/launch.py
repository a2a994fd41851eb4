# SPDX-License-Identifier: Apache-2.0
"""horovodrun: its flags become those of `gradus run`, which takes the place of this process."""
import argparse
import os
import subprocess
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import gradus
from gradus._command import program
from gradus._run import HOROVOD
from gradus._world import gloo_built, mpi_built  # noqa: F401
from gradus.errors import Error

from . import FAILED, MOST, RESTARTS, run

# Flags that are accepted and do nothing: how many words follow, and why.
_NO_MPI = "Gradus needs no MPI"
_CHOSEN = "algorithms are chosen by size and by what was measured"
_NO_TUNING = "there is nothing to be tuned while the job runs; gradus tune measures the algorithms"
_NO_MEANING: Dict[Tuple[str, ...], Tuple[int, str]] = {
    ("--gloo",): (0, "there is one way, which needs neither gloo nor MPI"),
    ("--mpi",): (0, _NO_MPI),
    ("--jsrun",): (0, "ssh reaches hosts; in a Slurm job srun does"),
    ("--tcp",): (0, "GRADUS_LINK=tcp forbids shared memory"),
    ("--mpi-args",): (1, _NO_MPI),
    ("--binding-args",): (1, "workers are bound to cores of their own where there are enough"),
    ("--mpi-threads-disable",): (0, _NO_MPI),
    ("--no-mpi-threads-disable",): (0, _NO_MPI),
    ("--num-nccl-streams",): (1, "there is no NCCL"),
    ("--thread-affinity",): (1, "workers are bound to cores of their own where there are enough"),
    ("--disable-cache",): (0, "hosts are checked each time"),
    ("--hierarchical-allreduce",): (0, _CHOSEN),
    ("--no-hierarchical-allreduce",): (0, _CHOSEN),
    ("--hierarchical-allgather",): (0, _CHOSEN),
    ("--no-hierarchical-allgather",): (0, _CHOSEN),
    ("--torus-allreduce",): (0, _CHOSEN),
    ("--no-torus-allreduce",): (0, _CHOSEN),
    ("--autotune",): (0, _NO_TUNING),
    ("--no-autotune",): (0, _NO_TUNING),
    ("--autotune-log-file",): (1, _NO_TUNING),
    ("--autotune-warmup-samples",): (1, _NO_TUNING),
    ("--autotune-steps-per-sample",): (1, _NO_TUNING),
    ("--autotune-bayes-opt-max-samples",): (1, _NO_TUNING),
    ("--autotune-gaussian-process-noise",): (1, _NO_TUNING),
    ("--blacklist-cooldown-range",): (2, "a failed host is tried again after 1 s, 2 s, 4 s, ..."),
    ("--log-with-timestamp",): (0, "--prefix-output-with-timestamp shows the time of each line"),
    ("--log-without-timestamp",): (0, "lines have no time without --prefix-output-with-timestamp"),
    ("--log-hide-timestamp",): (0, "lines have no time without --prefix-output-with-timestamp"),
}
_LEVELS = {"TRACE": "trace", "DEBUG": "debug", "INFO": "info", "WARNING": "warn",
           "ERROR": "error", "FATAL": "error"}
# What programs read beside hvd.*; each rank has its own.
_WORKER = ("export " + " ".join(f"{name}=${ours}" for name, ours in HOROVOD.items()) +
           " HOROVOD_CONTROLLER=gloo "
           "HOROVOD_CPU_OPERATIONS=gloo PYTHONUNBUFFERED=1; exec \"$@\"")
# Of a file for --config-file: what stands in front of its keys to make flags of them.
_SECTIONS = {"params": "", "autotune": "autotune-", "timeline": "timeline-",
             "stall_check": "stall-check-", "library_options": "", "logging": "log-"}


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _not_negative(text: str) -> float:
    number = float(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun", allow_abbrev=False,
        description="Starts a program of Horovod on several processes, by gradus run.",
        usage="horovodrun -np N [flags] command [arguments]")
    add = parser.add_argument
    add("-v", "--version", action="version", version=gradus.__version__)
    add("-np", "--num-proc", type=_positive, help="number of processes; in an elastic job so many "
        "are needed to start")
    add("-cb", "--check-build", action="store_true", help="show what is built in, and end")
    add("--start-timeout", type=_positive, metavar="S", help="seconds in which all must have come")
    add("--network-interfaces", "--network-interface", action="append", metavar="NAMES",
        help="network interfaces to use, with commas between")
    add("--output-filename", metavar="DIR", help="write the output of each rank to DIR besides")
    add("--verbose", action="store_true", help="show the command that is run, and more of the log")
    add("--config-file", metavar="FILE", help="flags as a YAML file; the command line comes first")
    add("-p", "--ssh-port", type=_positive, help="port of ssh on the other hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    add("-H", "--hosts", help="host1:2,host2:4: hosts, with the processes that each may get")
    add("-hostfile", "--hostfile", metavar="FILE", help="the same, lines like \"host1 slots=4\"")
    add("--fusion-threshold-mb", type=_not_negative, help="small tensors are reduced together up "
        "to this size; 128")
    add("--cycle-time-ms", type=_not_negative, help="how long tensors are collected; 1")
    add("--cache-capacity", type=int, help="so many names are negotiated by a bit each; 1024")
    group = parser.add_argument_group("elastic jobs")
    add = group.add_argument
    add("--min-np", "--min-num-proc", dest="min_num_proc", type=_positive,
        help="the job goes on with so many")
    add("--max-np", "--max-num-proc", dest="max_num_proc", type=_positive,
        help="the job never has more")
    add("--slots-per-host", type=_positive, help="processes of a host for which the script prints "
        "no number")
    add("--elastic-timeout", type=_positive, metavar="S", help="seconds in which processes must "
        "have come after a change")
    add("--reset-limit", type=_count, help="how often a worker is replaced")
    add("--host-discovery-script", metavar="SCRIPT", help="prints the hosts that there are, a "
        "line like host1:4 for each")
    group = parser.add_argument_group("what is told")
    add = group.add_argument
    add("--timeline-filename", metavar="FILE", help="rank 0 writes when each tensor was reduced")
    add("--timeline-mark-cycles", action="store_true", help="with the beginning of each cycle")
    add("--no-timeline-mark-cycles", dest="timeline_mark_cycles", action="store_false")
    add("--no-stall-check", action="store_true", help="do not warn of tensors that wait for ranks")
    add("--stall-check", dest="no_stall_check", action="store_false")
    add("--stall-check-warning-time-seconds", type=_not_negative, help="when to warn; 60")
    add("--stall-check-shutdown-time-seconds", type=_not_negative, help="when to fail; 0: never")
    add("--log-level", choices=_LEVELS, help="what to log; WARNING")
    add("-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true",
        help="write the time of day in front of each line")
    add("--gloo-timeout-seconds", type=_positive, help="how long a rank waits for others to come")
    group = parser.add_argument_group("accepted, without effect")
    for names, (words, why) in _NO_MEANING.items():
        if words:
            group.add_argument(*names, nargs=words if words > 1 else None, help=why)
        else:
            group.add_argument(*names, action="store_true", help=why)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run")
    return parser


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    found = parser.parse_args(words)
    if found.config_file:
        found = parser.parse_args([*_flags_of(parser, found.config_file), *words])
    if found.command[:1] == ["--"]:
        del found.command[0]
    if found.check_build:
        return found
    found.num_proc = found.num_proc or found.min_num_proc
    if found.num_proc is None:
        parser.error("-np is missing: the number of processes")
    if not found.command:
        parser.error("the command is missing: what to run behind the flags")
    if found.hosts and found.hostfile:
        parser.error("--hosts and --hostfile are given; one of them says where to run")
    least, most = found.min_num_proc or found.num_proc, found.max_num_proc or found.num_proc
    if not least <= found.num_proc <= most:
        parser.error(f"-np is {found.num_proc}, which is not between --min-np {least} and "
                     f"--max-np {most}")
    warn = found.stall_check_warning_time_seconds
    end = found.stall_check_shutdown_time_seconds
    if end and end <= (60 if warn is None else warn):
        parser.error("--stall-check-shutdown-time-seconds is not more than the time of the warning")
    return found


def _flags_of(parser: argparse.ArgumentParser, path: str) -> List[str]:
    """The words that a file stands for."""
    try:
        import yaml
        with open(path) as file:
            config = yaml.safe_load(file) or {}
    except ImportError:
        parser.error("--config-file needs the package yaml (Debian: python3-yaml)")
    except (OSError, ValueError, yaml.YAMLError) as error:
        parser.error(f"--config-file {path}: {error}")
    words: List[str] = []
    for section, values in (config.items() if isinstance(config, dict) else [(config, None)]):
        if section == "controller":
            words.append(f"--{values}")
        elif not isinstance(values, dict):
            words += _flag(str(section), values)
        elif section in _SECTIONS:
            for key, value in values.items():
                words += _flag(_SECTIONS[section] + str(key), value)
        else:
            parser.error(f"--config-file {path}: the section {section} is unknown; there are "
                         f"{', '.join(_SECTIONS)}")
    return words


def _flag(name: str, value: Any) -> List[str]:
    name = name.replace("_", "-")
    if name in ("autotune-enabled", "stall-check-enabled"):
        name = name[:-len("-enabled")]
    if name == "log-with-timestamp" and value is False:
        return ["--log-without-timestamp"]
    if isinstance(value, bool):
        switch = value or name in ("mpi-threads-disable", "stall-check", "autotune")
        return [f"--{'' if value else 'no-'}{name}"] if switch or name.startswith(
            ("hierarchical-", "torus-", "timeline-mark-")) else []
    return [f"--{name}", str(value)]


def command_of(found: argparse.Namespace) -> Tuple[List[str], Dict[str, str]]:
    """The words of `gradus run`, and what of the environment is new."""
    words = ["run", "-np", str(found.num_proc)]
    elastic = bool(found.min_num_proc or found.max_num_proc or found.host_discovery_script)
    for flag, value in (("-H", found.hosts), ("--hostfile", found.hostfile),
                        ("--ssh-port", found.ssh_port),
                        ("--ssh-identity-file", found.ssh_identity_file),
                        ("--host-discovery-script", found.host_discovery_script),
                        ("--slots-per-host", found.slots_per_host),
                        ("--log-dir", found.output_filename)):
        if value is not None:
            words += [flag, str(value)]
    if elastic:
        words += ["--min-np", str(found.min_num_proc or found.num_proc),
                  "--max-np", str(found.max_num_proc or MOST),
                  "--restarts",
                  str(RESTARTS if found.reset_limit is None else found.reset_limit)]
    seconds = [found.start_timeout or _seconds("HOROVOD_START_TIMEOUT"),
               (found.elastic_timeout or _seconds("HOROVOD_ELASTIC_TIMEOUT") or 600)
               if elastic else 0]
    if max(seconds):
        words += ["--start-timeout", f"{max(seconds)}s"]
    if found.prefix_output_with_timestamp:
        words.append("--timestamps")
    return [*words, "--", "sh", "-c", _WORKER, "sh", *found.command], _environment(found, elastic)


def _seconds(name: str) -> int:
    """What the environment says where no flag does; 0: nothing."""
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0


def _environment(found: argparse.Namespace, elastic: bool) -> Dict[str, str]:
    env: Dict[str, Optional[Any]] = {
        "HOROVOD_CYCLE_TIME": found.cycle_time_ms, "HOROVOD_CACHE_CAPACITY": found.cache_capacity,
        "HOROVOD_TIMELINE": found.timeline_filename,
        "HOROVOD_TIMELINE_MARK_CYCLES": 1 if found.timeline_mark_cycles else None,
        "HOROVOD_STALL_CHECK_DISABLE": 1 if found.no_stall_check else None,
        "HOROVOD_STALL_CHECK_TIME_SECONDS": found.stall_check_warning_time_seconds,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": found.stall_check_shutdown_time_seconds,
        "HOROVOD_ELASTIC": 1 if elastic else None, "HOROVOD_LOG_LEVEL": found.log_level}
    if found.fusion_threshold_mb is not None:
        env["HOROVOD_FUSION_THRESHOLD"] = int(found.fusion_threshold_mb * (1 << 20))
    if found.network_interfaces:
        env["GRADUS_INTERFACE"] = env["NCCL_SOCKET_IFNAME"] = ",".join(found.network_interfaces)
        env["HOROVOD_GLOO_IFACE"] = env["GRADUS_INTERFACE"].partition(",")[0]
    join = found.gloo_timeout_seconds or _seconds("HOROVOD_GLOO_TIMEOUT_SECONDS")
    if join:
        env["GRADUS_JOIN_TIMEOUT"] = f"{join}s"
    level = found.log_level or os.environ.get("HOROVOD_LOG_LEVEL", "").upper()
    if found.verbose or level in _LEVELS:
        env["GRADUS_LOG"] = _LEVELS.get(level, "info")
    return {name: f"{value:g}" if isinstance(value, float) else str(value)
            for name, value in env.items() if value is not None}


def _tell_of_nothing(found: argparse.Namespace) -> None:
    """One sentence for each flag that has no meaning."""
    for names in _NO_MEANING:
        name = names[0]
        if getattr(found, name[2:].replace("-", "_")):
            print(f"horovodrun: {name} has no effect: {_NO_MEANING[names][1]}", file=sys.stderr)


def _check_build() -> None:
    print(f"Gradus {gradus.__version__} in the place of Horovod:")
    for title, rows in (("Frameworks", (("PyTorch", _has("torch")),
                                        ("TensorFlow", _has("tensorflow")), ("MXNet", False))),
                        ("Controllers", (("Gloo (Gradus in its place)", True), ("MPI", False))),
                        ("Tensor Operations", (("Gloo (Gradus in its place)", True),
                                               ("MPI", False), ("NCCL", False), ("CCL", False),
                                               ("DDL", False)))):
        print(f"\nAvailable {title}:")
        for name, there in rows:
            print(f"    [{'X' if there else ' '}] {name}")


def _has(module: str) -> bool:
    import importlib.util
    return importlib.util.find_spec(module) is not None


def main(words: Optional[Sequence[str]] = None) -> None:
    """The command. Exit codes are those of `gradus run`: 0 done, 1 the job failed, 2 the flags are
    wrong."""
    found = _parse(sys.argv[1:] if words is None else words)
    if found.check_build:
        _check_build()
        return
    path, command, env = _prepared(found)
    os.execve(path, ["gradus", *command], {**os.environ, **env})


def _prepared(found: argparse.Namespace) -> Tuple[str, List[str], Dict[str, str]]:
    """The program, its words and what of the environment is new, when the user was told of them."""
    _tell_of_nothing(found)
    command, env = command_of(found)
    try:
        path = program()
    except Error as error:
        sys.exit(f"horovodrun: {error}")
    if found.verbose:
        settings = "".join(f"{name}={value} " for name, value in sorted(env.items()))
        print(f"horovodrun: {settings}gradus {' '.join(command)}", file=sys.stderr)
    return path, command, env


run_commandline = main


# ---- For programs that start jobs, as they call Horovod's launcher -------------------------------

class HorovodArgs(argparse.Namespace):
    """What flags say, each as if it were not given; programs set the attributes."""

    def __init__(self) -> None:
        super().__init__(**vars(_parser().parse_args([])))
        self.num_proc = 1
        self.run_func: Optional[Callable[[], Any]] = None
        self.executable: Optional[str] = None
        self.nics: Optional[Sequence[str]] = None
        self.use_gloo = self.use_mpi = self.use_jsrun = None
        self.slots: Optional[int] = None
        self.cooldown_range: Optional[Tuple[int, int]] = None


def parse_args() -> argparse.Namespace:
    """The flags of this process's command line."""
    return _parse(sys.argv[1:])


def _run(found: argparse.Namespace) -> Optional[List[Any]]:
    """Runs a job to its end; with run_func of HorovodArgs it returns the results of the ranks.
    RuntimeError: the job failed."""
    nics = getattr(found, "nics", None) or found.network_interfaces
    slots = getattr(found, "slots", None) or found.slots_per_host
    if getattr(found, "run_func", None) is not None:
        return run(found.run_func, num_proc=found.num_proc, min_num_proc=found.min_num_proc,
                   max_num_proc=found.max_num_proc, slots=slots, reset_limit=found.reset_limit,
                   hosts=found.hosts, hostfile=found.hostfile,
                   host_discovery_script=found.host_discovery_script,
                   start_timeout=found.start_timeout, ssh_port=found.ssh_port,
                   ssh_identity_file=found.ssh_identity_file, verbose=bool(found.verbose),
                   output_filename=found.output_filename, network_interfaces=nics,
                   executable=found.executable)
    found.network_interfaces, found.slots_per_host = nics, slots
    path, command, env = _prepared(found)
    code = subprocess.run([path, *command], env={**os.environ, **env}, check=False).returncode
    if code:
        raise RuntimeError(f"{FAILED}; gradus run ended with code {code}, and has said why")
    return None


if __name__ == "__main__":
    main()
