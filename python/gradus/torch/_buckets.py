# SPDX-License-Identifier: Apache-2.0
"""The buckets of DistributedDataParallel in pages that peers on the host read and write: nothing is
copied between a bucket and the sum."""
import weakref
from typing import Any, Dict, Optional, Set

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from .._future import Held
from .._library import lib
from ..errors import InvalidError, Status
from ._c10d import ProcessGroup

_LEAST = 1 << 18  # bytes of a bucket that is worth it
_PAGE = 4096


def _call(communicator: Any, function: Any, *arguments: int) -> bool:
    """Whether it went well. A communicator that is closed has made all memory private again."""
    held: Held = []
    try:
        return communicator._enter(held) and function(communicator._handle,
                                                      *arguments) == Status.OK
    finally:
        for leave in held:
            leave()


def _give_back(communicator: Any, shared: Dict[int, torch.Tensor]) -> None:
    for pages in shared:
        _call(communicator, lib.gr_unregister, pages)
    shared.clear()  # torch may free the buckets now


class SharedBuckets:
    """The state of shared_buckets_hook for one model. `process_group` is the model's, None: that of
    all ranks. Raises InvalidError: it is not a group of gradus."""

    def __init__(self, process_group: Optional[Any] = None) -> None:
        group = dist.distributed_c10d._get_default_group() if process_group is None \
            else process_group
        if not isinstance(group, ProcessGroup):
            raise InvalidError("the group is not one of gradus; give SharedBuckets the group that "
                               "the model has, of init_process_group(\"gradus\") or "
                               "new_group(backend=\"gradus\")", operation="SharedBuckets")
        self._group = group
        self._seen: Set[StorageWeakRef] = set()  # the memory of buckets
        self._shared: Dict[int, torch.Tensor] = {}  # where the pages of a bucket begin
        weakref.finalize(self, _give_back, group.communicator, self._shared).atexit = False

    @property
    def shared_bytes(self) -> int:
        """Memory of buckets that is registered now: none before the third step."""
        return sum(one.numel() * one.element_size() for one in self._shared.values())

    def _share(self, bucket: torch.Tensor) -> None:
        """DistributedDataParallel makes its buckets anew behind the first step, and others in
        each step of a rank that has joined, perhaps at the same address. What comes a second time
        stays."""
        begin, size = bucket.data_ptr(), bucket.numel() * bucket.element_size()
        memory = StorageWeakRef(getattr(bucket, "untyped_storage", bucket.storage)())  # torch 2
        if memory not in self._seen:
            self._seen = {one for one in self._seen if not one.expired()} | {memory}
            return
        pages = (begin // _PAGE + 1) * _PAGE  # other things may live in the first and the last one
        if pages not in self._shared and _call(self._group.communicator, lib.gr_register, pages,
                                               (begin + size) // _PAGE * _PAGE - pages):
            self._shared[pages] = bucket

    def _start(self, bucket: torch.Tensor) -> Any:
        """Begins the average in place. Ranks' buckets begin at different places of a page, but all
        cut them alike."""
        size = bucket.numel() * bucket.element_size()
        comm, group = self._group.communicator, self._group
        if size < _LEAST:
            return group._work([comm.allreduce_start(bucket, op="average")], [bucket])
        if comm.local_size > 1:
            self._share(bucket)
        edge = _PAGE // bucket.element_size()
        edges = torch.cat([bucket[:edge], bucket[-edge:]])
        futures = [comm.allreduce_start(bucket[edge:-edge], op="average"),
                   comm.allreduce_start(edges, op="average")]

        def put_back() -> None:
            bucket[:edge], bucket[-edge:] = edges[:edge], edges[edge:]
        return group._work(futures, [bucket], put_back)


def shared_buckets_hook(state: SharedBuckets,
                        bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel: the average over the ranks, as without a
    hook, but buckets are moved into memory that peers on this host read and write:

        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        model.register_comm_hook(gradus.torch.SharedBuckets(), gradus.torch.shared_buckets_hook)

    All ranks register it. Addresses stay, so gradients may be held, also as arrays of numpy. A
    process that is forked meanwhile shares the buckets: it must not write gradients. Where the
    ranks share no memory nothing changes."""
    return state._start(bucket.buffer()).get_future().then(lambda over: over.value()[0])
