# SPDX-License-Identifier: Apache-2.0
"""Ranks that mpirun (Open MPI, MPICH) or a launcher with torchrun's variables starts."""
import os
import shutil
import subprocess

import pytest
from conftest import TIMEOUT_S

RANKS = 3

# Says who it is and what the sum over the ranks is.
ADDS = """
create()
rank, size = library.gr_comm_rank(comm), library.gr_comm_size(comm)
mine = (ctypes.c_int64 * 1)(rank)
assert library.gr_allreduce(comm, mine, ctypes.c_size_t(1), 5, 0) == 0, library.gr_comm_diag(comm)
print(f"{rank} of {size}, sum {mine[0]}", flush=True)
library.gr_comm_destroy(comm)
"""
SAID = sorted(f"{rank} of {RANKS}, sum {RANKS * (RANKS - 1) // 2}" for rank in range(RANKS))


def program(name, package):
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed (Debian's package {package})")
    return found


def check(gradus, words, env={}):
    done = subprocess.run([str(word) for word in words], env=gradus.environment(env), text=True,
                          capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done
    assert sorted(done.stdout.split("\n")[:-1]) == SAID, done
    return done


def test_mpirun_of_open_mpi_starts_ranks(gradus, comm_script):
    mpirun = program("mpirun.openmpi", "openmpi-bin")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    check(gradus, [mpirun, *root, "--oversubscribe", "-np", RANKS, *comm_script(ADDS)])


def test_mpirun_of_mpich_starts_ranks(gradus, comm_script):
    check(gradus, [program("mpirun.mpich", "mpich"), "-np", RANKS, *comm_script(ADDS)])


def start_by_torchrun(gradus, words, rank, env):
    """What torchrun sets for each of its processes; Debian has no package of it."""
    own = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": RANKS,
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1, "TORCHELASTIC_RUN_ID": "none",
           "TORCHELASTIC_RESTART_COUNT": 0}
    own = {name: str(value) for name, value in own.items()}
    return subprocess.Popen(words, env=gradus.environment(own | env), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_variables_of_torchrun_make_ranks(gradus, comm_script):
    words = comm_script(ADDS)
    ranks = [start_by_torchrun(gradus, words, rank, {}) for rank in range(RANKS)]
    said = [rank.communicate(timeout=TIMEOUT_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, said
    assert sorted(out.strip() for out, _ in said) == SAID


def test_several_hosts_without_a_secret_are_refused(gradus, comm_script):
    rank = start_by_torchrun(gradus, comm_script(ADDS), 0, {"LOCAL_WORLD_SIZE": "1"})
    _, err = rank.communicate(timeout=TIMEOUT_S)
    assert rank.returncode == 1
    said = " ".join(err.split())
    assert "torchrun started 3 ranks on several hosts, and nothing says where they meet" in said
    for remedy in ("GRADUS_RENDEZVOUS_DIR", "GRADUS_SECRET_FILE", "GRADUS_COORDINATOR"):
        assert remedy in said, said
