# SPDX-License-Identifier: Apache-2.0
"""A training loop of one's own that can be stopped and continued, as jobs of Gradus can:

    gradus run -np 2 -- python3 examples/resume/train.py 100000
    kill -TERM ...                          # of gradus run: it ends with exit code 75
    gradus run -np 2 -- python3 examples/resume/train.py 100000

Kubernetes, Slurm and `gradus run` send SIGTERM before they end a job. A rank notes it, and says so in
the next sum over the ranks: so all of them end after the same step. Rank 0 saves the state, and all end
with exit code 75. `gradus run` then ends with 75 as well: run me again.

LIBGRADUS names the library where the dynamic linker does not find it: build/libgradus.so."""
import ctypes
import os
import signal
import sys

import numpy as np

RESUME = 75  # EX_TEMPFAIL
GR_F64, GR_SUM = 1, 0
SAVED = "state.npz"

asked = False


def on_sigterm(number, frame):
    global asked
    asked = True


def save(step, weights):
    with open(SAVED + ".partial", "wb") as file:
        np.savez(file, step=step, weights=weights)
        file.flush()
        os.fsync(file.fileno())
    os.replace(SAVED + ".partial", SAVED)  # the old state or the new one, never half of one


signal.signal(signal.SIGTERM, on_sigterm)
steps, rank = int(sys.argv[1]), int(os.environ["RANK"])
gradus = ctypes.CDLL(os.environ.get("LIBGRADUS", "libgradus.so"))
comm = ctypes.c_void_p()
if gradus.gr_comm_create(None, ctypes.byref(comm), None) != 0:
    sys.exit("no communicator")

step, weights = 0, np.zeros(3)
if os.path.exists(SAVED):
    with np.load(SAVED) as state:
        step, weights = int(state["step"]), state["weights"]

while step < steps:
    x = np.random.default_rng([step, rank]).normal(size=(8, 3))  # this rank's samples of the step
    gradient = x.T @ (x @ (weights - [1.0, -2.0, 0.5])) / 8
    sums = np.append(gradient, float(asked))  # the last number: who was asked to end
    if gradus.gr_allreduce(comm, sums.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(4), GR_F64,
                           GR_SUM) != 0:
        sys.exit("allreduce failed")
    weights -= 0.01 * sums[:3]
    step += 1
    if rank == 0 and step % 100 == 1:
        print("step", step, flush=True)
    if sums[3] > 0:  # the same on all ranks
        if rank == 0:
            save(step, weights)
        sys.exit(RESUME)

if rank == 0:
    print("weights", *weights.tolist(), "after step", step)
