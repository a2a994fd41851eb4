# SPDX-License-Identifier: Apache-2.0
"""A thousand strangers at the port of a running job: none gets in, and the job does not care."""
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import read_lines, wait_until

SOURCE = pathlib.Path(os.environ["GRADUS_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "bench"))
import strangers  # noqa: E402

COUNT = 1000


@pytest.fixture
def job(tmp_path):
    """A short one: a rank is held while the strangers come, so that it is not over before."""
    text = (SOURCE / "examples/digits/mlp.yaml").read_text()
    text = text.replace("epochs: 40", "steps: 20")
    text = text.replace("file: digits.csv.gz", f"file: {SOURCE}/examples/digits/digits.csv.gz")
    (tmp_path / "mlp.yaml").write_text(text)
    return tmp_path / "mlp.yaml"


def sha256_of(output):
    return json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])["weights_sha256"]


def memory_kib(pid):
    return int(next(line.split()[1]
                    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                    if line.startswith("VmRSS")))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def start(gradus, job, flags):
    """The coordinator, the ranks, and what each sent for its handshake with it."""
    # What ASan keeps of freed memory, to see late uses of it, is no growth of ours.
    keep_nothing = {"ASAN_OPTIONS": "quarantine_size_mb=0:thread_local_quarantine_size_kb=0"}
    coordinator = gradus.start("coordinate", "-np", 2, "--listen", "127.0.0.1", *flags,
                               env=keep_nothing)
    told = dict(line.split("=", 1) for line in read_lines(coordinator.stdout, 3))
    recorders = [strangers.Recorder(told["GRADUS_COORDINATOR"]) for _ in range(2)]
    ranks = []
    for rank in range(2):
        more = {"GRADUS_RANK": str(rank), "GRADUS_LINK": "tcp",
                "GRADUS_COORDINATOR": recorders[rank].address}
        more |= {"GRADUS_ENCRYPT": "yes"} if flags else {}
        ranks.append(gradus.start("worker", "--workers", 2, "--output", gradus.folder / "out", job,
                                  env=told | more, stdout=subprocess.DEVNULL))
    return coordinator, told["GRADUS_COORDINATOR"], ranks, recorders


@pytest.mark.parametrize("flags", [[], ["--encrypt"]], ids=["plain", "encrypted"])
def test_a_thousand_strangers(gradus, job, flags):
    alone = gradus("run", "-np", 2, "--output", gradus.folder / "alone", job)
    assert alone.returncode == 0, alone
    coordinator, address, ranks, recorders = start(gradus, job, flags)
    # Of both: who would come later from the strangers' address is refused with them for a while.
    wait_until(lambda: all(len(one.handshake) == strangers.HANDSHAKE_BYTES for one in recorders),
               "the handshakes")
    os.kill(ranks[0].pid, signal.SIGSTOP)
    # A first crowd takes what the coordinator needs once.
    first = strangers.Crowd(address, recorders[1].handshake, count=40)
    first.run()
    memory, open_files = memory_kib(coordinator.pid), descriptors(coordinator.pid)
    crowd = strangers.Crowd(address, recorders[1].handshake, count=COUNT)
    crowd.run()
    assert crowd.sent == crowd.refused == COUNT
    assert all(rank.poll() is None for rank in ranks), "the job ended before the strangers had come"
    wait_until(lambda: descriptors(coordinator.pid) <= open_files, "the end of silent strangers")
    assert memory_kib(coordinator.pid) <= memory + 512
    os.kill(ranks[0].pid, signal.SIGCONT)
    for rank in ranks:
        _, said = rank.communicate(timeout=120)
        assert rank.returncode == 0, said
    _, said = coordinator.communicate(timeout=60)
    assert coordinator.returncode == 0, said
    assert f"{COUNT + 40} connections were refused" in said, said
    assert sha256_of(gradus.folder / "out") == sha256_of(gradus.folder / "alone")


def test_ranks_that_do_not_agree_on_encryption(gradus, job):
    coordinator = gradus.start("coordinate", "-np", 1, "--listen", "127.0.0.1", "--encrypt")
    told = dict(line.split("=", 1) for line in read_lines(coordinator.stdout, 3))
    rank = gradus.start("worker", job, env=told | {"GRADUS_RANK": "0"})
    _, said = rank.communicate(timeout=60)
    assert rank.returncode != 0
    assert "the coordinator encrypts" in said and "GRADUS_ENCRYPT" in said, said
    coordinator.kill()
    assert "rank 0 does not encrypt" in coordinator.communicate()[1]
