# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse tensors for torch.distributed, which DistributedDataParallel wants for layers with
sparse gradients: every rank gets what all have, and adds it in the order of the ranks."""
from typing import Callable, List, Tuple

import torch

from .._communicator import Communicator
from .._future import Future
from ..errors import InvalidError


def allreduce_start(comm: Communicator, tensor: torch.Tensor, op: str
                    ) -> Tuple[List[Future], Callable[[], None]]:
    """What is under way, and what puts the result into the tensor when that is over. Waits until
    all ranks have said how many elements they have."""
    if op != "sum":
        raise InvalidError(f"the operation {op} of a sparse tensor; there is sum alone, others are "
                           "of tensor.to_dense()", operation="allreduce")
    with torch.no_grad():
        mine = tensor.detach().coalesce()
        rows = mine.indices().t().contiguous()
        values = mine.values().contiguous()
    counts = _counts(comm, mine)
    total = sum(counts)
    every = rows.new_empty((total, rows.shape[1]))
    parts = values.new_empty((total, *values.shape[1:]))
    futures = [comm.allgather_start(data, out, [count * width for count in counts])
               for data, out, width in ((rows, every, every[:1].numel()),
                                        (values, parts, parts[:1].numel()))
               if width]

    @torch.no_grad()
    def finish() -> None:
        tensor.copy_(torch.sparse_coo_tensor(every.t(), parts, tensor.shape).coalesce())
    return futures, finish


def _counts(comm: Communicator, mine: torch.Tensor) -> List[int]:
    """How many elements each rank has."""
    told = torch.tensor([mine._nnz(), mine.sparse_dim(), *mine.shape])
    every = told.new_empty((comm.size, len(told)))
    comm.allgather(told, every)
    for rank, (_, dimensions, *shape) in enumerate(every.tolist()):
        if [dimensions, *shape] != [mine.sparse_dim(), *mine.shape]:
            raise InvalidError(f"rank {comm.rank} has a sparse tensor of shape {list(mine.shape)} "
                               f"with {mine.sparse_dim()} sparse dimensions, rank {rank} of shape "
                               f"{shape} with {dimensions}; all give the same",
                               rank=comm.rank, peer=rank, operation="allreduce")
    return every[:, 0].tolist()
