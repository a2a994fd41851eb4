# SPDX-License-Identifier: Apache-2.0
"""A thousand unauthenticated peers at the port of a running job: none gets in, none disturbs it."""
import os
import pathlib
import signal

import pytest
import unauthenticated
from conftest import SOURCE, TIMEOUT_S, is_sanitized, read_lines, sha256_of, wait_until

COUNT = 1000


@pytest.fixture
def job(tmp_path):
    """A short one: a rank is held while the others come, so that it is not over before. It takes
    long enough for a rank to be held in the midst of it."""
    text = (SOURCE / "examples/digits/mlp.yaml").read_text()
    text = text.replace("epochs: 40", "steps: 1000")
    text = text.replace("file: digits.csv.gz", f"file: {SOURCE}/examples/digits/digits.csv.gz")
    (tmp_path / "mlp.yaml").write_text(text)
    return tmp_path / "mlp.yaml"


def memory_kib(pid):
    return int(next(line.split()[1]
                    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                    if line.startswith("VmRSS")))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def start(gradus, job, flags):
    """The coordinator, the ranks, and what each sent for its handshake with it."""
    coordinator = gradus.start("rendezvous", "-np", 2, "--listen", "127.0.0.1",
                               "--print-secret", *flags)
    told = dict(line.split("=", 1) for line in read_lines(coordinator.stdout, 3))
    recorders = [unauthenticated.Recorder(told["GRADUS_COORDINATOR"]) for _ in range(2)]
    document = gradus.document("-np", 2, "--output", gradus.folder / "out", job)
    ranks = []
    for rank in range(2):
        more = {"GRADUS_RANK": str(rank), "GRADUS_LINK": "tcp",
                "GRADUS_COORDINATOR": recorders[rank].address}
        more |= {"GRADUS_ENCRYPT": "yes"} if flags else {}
        ranks.append(gradus.start_worker(document, told | more))
    return coordinator, told["GRADUS_COORDINATOR"], ranks, recorders


@pytest.mark.parametrize("flags", [[], ["--encrypt"]], ids=["plain", "encrypted"])
def test_a_thousand_unauthenticated_peers(gradus, job, flags):
    alone = gradus("run", "-np", 2, "--output", gradus.folder / "alone", job)
    assert alone.returncode == 0, alone
    coordinator, address, ranks, recorders = start(gradus, job, flags)
    # All ranks are in once there is an epoch: who would come later from their address is
    # refused with them for a while, and so is a rank that is held in its handshake.
    while not ranks[0].stdout.readline().startswith("epoch"):
        assert ranks[0].poll() is None, ranks[0].communicate()
    os.kill(ranks[0].pid, signal.SIGSTOP)
    # A first crowd takes what the coordinator needs once.
    first = unauthenticated.Crowd(address, recorders[1].handshake, count=40)
    first.run()
    memory, open_files = memory_kib(coordinator.pid), descriptors(coordinator.pid)
    crowd = unauthenticated.Crowd(address, recorders[1].handshake, count=COUNT)
    crowd.run()
    assert crowd.sent == crowd.refused == COUNT
    assert all(rank.poll() is None for rank in ranks), "the job ended before they had come"
    wait_until(lambda: descriptors(coordinator.pid) <= open_files, "the end of silent ones")
    if not is_sanitized():  # a sanitizer keeps books, and finds what is lost by itself
        assert memory_kib(coordinator.pid) <= memory + 512
    os.kill(ranks[0].pid, signal.SIGCONT)
    for rank in ranks:
        _, said = rank.communicate(timeout=TIMEOUT_S)
        assert rank.returncode == 0, said
    _, said = coordinator.communicate(timeout=TIMEOUT_S)
    assert coordinator.returncode == 0, said
    assert f"{COUNT + 40} connections were refused" in said, said
    assert sha256_of(gradus.folder / "out") == sha256_of(gradus.folder / "alone")


def test_ranks_that_do_not_agree_on_encryption(gradus, job):
    coordinator = gradus.start("rendezvous", "-np", 1, "--listen", "127.0.0.1", "--encrypt",
                               "--print-secret")
    told = dict(line.split("=", 1) for line in read_lines(coordinator.stdout, 3))
    rank = gradus.start_worker(gradus.document(job), told | {"GRADUS_RANK": "0"})
    _, said = rank.communicate(timeout=TIMEOUT_S)
    assert rank.returncode != 0
    assert "the coordinator encrypts" in said and "GRADUS_ENCRYPT" in said, said
    # It speaks when it has read what the rank has sent, which may have ended by then.
    assert "rank 0 does not encrypt" in "".join(read_lines(coordinator.stderr, 1))
    coordinator.kill()
