# SPDX-License-Identifier: Apache-2.0
"""A host is cut off from the coordinator, and loses a rank: those that are left there cannot renew
by themselves."""
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.join(os.environ["GRADUS_SOURCE_DIR"], "bench", "hosts"))
import hosts as namespaces  # noqa: E402

SILENCE_S = 25      # GR_CONTROL_SILENCE_S
PATIENCE_S = 90


def endless_job(folder):
    source = pathlib.Path(os.environ["GRADUS_SOURCE_DIR"]) / "examples/digits"
    text = (source / "mlp.yaml").read_text().replace("epochs: 40", "epochs: 100000")
    job = folder / "mlp.yaml"
    job.write_text(text.replace("file: digits.csv.gz", f"file: {source}/digits.csv.gz"))
    return job


def wait_for_steps(metrics):
    """Until the first epochs are over: the ranks train together."""
    with subprocess.Popen(["tail", "-n", "+1", "-F", metrics], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as tail:
        for line in tail.stdout:
            if '"epoch"' in line:
                tail.kill()
                return


def test_no_seat_without_the_coordinator(tmp_path):
    hosts = namespaces.Hosts(1, build=os.environ["GRADUS_BUILD_DIR"])
    try:
        hosts.open()
    except namespaces.Unavailable as why:
        pytest.skip(str(why))
    processes = []
    try:
        command = [hosts.build / "gradus", "worker", "--output", tmp_path / "out",
                   endless_job(tmp_path)]
        coordinator, ranks = hosts.start(command, ranks_per_host=2,
                                         env={"GRADUS_MIN_WORKERS": "1"}, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, text=True, errors="replace")
        processes = [coordinator, *ranks]
        wait_for_steps(tmp_path / "out" / "metrics.jsonl")
        namespaces.ip("-n", hosts.switch, "link", "set", "p0x0", "down")
        ranks[1].kill()
        text = namespaces.collect(ranks, SILENCE_S + PATIENCE_S)[0]
        assert ranks[0].wait() != 0
        assert "rank 0 is cut off from the job's coordinator (" in text, text
        assert "only the ranks that the coordinator reaches go on" in text
    finally:
        namespaces.stop(processes)
        hosts.close()
