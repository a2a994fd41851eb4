# SPDX-License-Identifier: Apache-2.0
"""What the environment of a worker says."""
import os
from typing import Tuple

_NAMES = [("HOROVOD_RANK", "HOROVOD_SIZE"), ("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
          ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")]


def get_env_rank_and_size() -> Tuple[int, int]:
    """This worker's number and how many there are, before hvd.init(); without any 0 and 1."""
    for names in _NAMES:
        there = [name for name in names if name in os.environ]
        if len(there) == 2:
            return int(os.environ[names[0]]), int(os.environ[names[1]])
        if there:
            raise RuntimeError(f"the environment has {there[0]}, and not the other one of "
                               f"{' and '.join(names)}; the launcher sets both")
    return 0, 1
