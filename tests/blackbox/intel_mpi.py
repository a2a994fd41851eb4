# SPDX-License-Identifier: Apache-2.0
"""Intel MPI, where I_MPI_ROOT names its folder: what the wheel impi-rt brings is enough, with the
system's libfabric."""
import os
import pathlib
import shutil
import subprocess

import pytest

ENVIRONMENT = {"FI_PROVIDER": "tcp"}


def find():
    """Its folder; the test is skipped where it is not installed."""
    root = pathlib.Path(os.environ.get("I_MPI_ROOT", ""))
    if not (root / "bin/mpiexec.hydra").exists() or not shutil.which("mpicc.mpich"):
        pytest.skip("no Intel MPI: set I_MPI_ROOT to its folder; and mpicc.mpich is needed")
    return root


def build(root, source, program):
    """The wheel has no headers: those of MPICH are of the same ABI."""
    subprocess.run(["mpicc.mpich", "-c", source, "-o", f"{program}.o"], check=True)
    subprocess.run(["cc", f"{program}.o", "-o", program, root / "lib/libmpi.so.12",
                    f"-Wl,-rpath,{root}/lib"], check=True)
