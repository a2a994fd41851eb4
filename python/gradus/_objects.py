# SPDX-License-Identifier: Apache-2.0
"""Objects that ranks send each other, as pickles: ranks trust each other."""
import ctypes
import io
import pickle
from typing import Any, List, Optional, Sequence

from ._engine import Request, Signature
from ._execute import Arrays, Memory, numel
from ._submit import name_of, root_of, submit
from ._world import ProcessSet, global_process_set, rank

try:
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle


def _memory(data: bytes) -> Memory:
    owner = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
    return Memory(owner, ctypes.addressof(owner))


class _Bytes(Arrays):
    def empty(self, shape: Sequence[int], dtype: str) -> Memory:
        return _memory(bytes(numel(shape)))


_bytes = _Bytes()


def _parts(memory: Memory) -> Any:
    return (("uint8", (len(memory.owner),)),)


def _broadcast(data: bytes, root_rank: int, name: str, process_set: ProcessSet) -> bytes:
    memory = _memory(data)
    return submit(Request(name_of("broadcast", name, process_set),
                          Signature("broadcast", root=root_of(root_rank, process_set),
                                    parts=_parts(memory)), [memory], [memory],
                          lambda: bytes(memory.owner)), process_set, False)


def _allgather(data: bytes, name: str, process_set: ProcessSet) -> bytes:
    memory, outputs = _memory(data), []
    return submit(Request(name_of("allgather", name, process_set),
                          Signature("allgather", parts=_parts(memory)), [memory], outputs,
                          lambda: bytes(outputs[0].owner), arrays=_bytes), process_set, False)


def any_of(flag: bool, name: str) -> bool:
    """Whether the flag is set on any rank: one small allreduce."""
    memory = _memory(bytes([flag]))
    return submit(Request(name_of("allreduce", name, global_process_set),
                          Signature("allreduce", "max", parts=_parts(memory)), [memory], [memory],
                          lambda: memory.owner[0] > 0), global_process_set, False)


def _bytes_of(obj: Any) -> bytes:
    return _pickler.dumps(obj)


def broadcast_object(obj: Any = None, root_rank: int = 0, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Returns root's object, which travels as a pickle: ranks trust each other."""
    name = name or "object"
    mine = rank() == root_rank
    data = _bytes_of(obj) if mine else b""
    size = int.from_bytes(_broadcast(len(data).to_bytes(8, "little"), root_rank, f"{name}.size",
                                     process_set), "little")
    data = _broadcast(data if mine else bytes(size), root_rank, f"{name}.data", process_set)
    return obj if mine else pickle.loads(data)


def allgather_object(obj: Any, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> List[Any]:
    """Returns the objects of all ranks, in their order; they travel as pickles."""
    name = name or "objects"
    data = _bytes_of(obj)
    sizes = _allgather(len(data).to_bytes(8, "little"), f"{name}.sizes", process_set)
    every, found = io.BytesIO(_allgather(data, f"{name}.data", process_set)), []
    for first in range(0, len(sizes), 8):
        found.append(pickle.loads(every.read(int.from_bytes(sizes[first:first + 8], "little"))))
    return found
