# SPDX-License-Identifier: Apache-2.0
"""Where the elements of an array are: anything with the buffer protocol, tensors of PyTorch,
__array_interface__ and DLPack (host memory). Nothing is copied."""
import ctypes
import enum
from ctypes import (POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_uint8,
                    c_uint16, c_uint64, c_void_p, py_object)
from typing import Any, Optional, Union

from .errors import InvalidError


class DType(enum.IntEnum):
    """Types of elements, as the library numbers them."""

    F32 = 0
    F64 = 1
    F16 = 2
    BF16 = 3
    I32 = 4
    I64 = 5
    I8 = 6
    U8 = 7
    I16 = 8
    BOOL = 9
    U16 = 10
    U32 = 11
    U64 = 12
    COMPLEX64 = 13
    COMPLEX128 = 14

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _BYTES[self]


_BYTES = dict(zip(DType, (4, 8, 2, 2, 4, 8, 1, 1, 2, 1, 2, 4, 8, 8, 16)))
_WORDS = {kind.name.lower(): kind for kind in DType}
_WORDS.update({"float32": DType.F32, "float64": DType.F64, "float16": DType.F16,
               "bfloat16": DType.BF16, "int8": DType.I8, "int16": DType.I16, "int32": DType.I32,
               "int64": DType.I64, "uint8": DType.U8, "uint16": DType.U16, "uint32": DType.U32,
               "uint64": DType.U64, "float": DType.F32, "double": DType.F64, "half": DType.F16})


def dtype_of(name: Union[DType, str, int, Any]) -> DType:
    """A DType, its name ("f32", "float32"), or a type of numpy or torch."""
    if isinstance(name, DType):
        return name
    word = getattr(name, "__name__", None) or str(name)
    found = _WORDS.get(word.rsplit(".", 1)[-1].lower())
    if found is None:
        raise InvalidError(f"{name!r} is no type of elements; they are {', '.join(sorted(_WORDS))}")
    return found


# Letters of the struct module; those of C's own sizes depend on the size of an element.
_LETTERS = {"f": DType.F32, "d": DType.F64, "e": DType.F16, "?": DType.BOOL, "c": DType.U8,
            "Zf": DType.COMPLEX64, "Zd": DType.COMPLEX128, "F": DType.COMPLEX64,
            "D": DType.COMPLEX128}
_SIGNED = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}
_UNSIGNED = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}


def _dtype_of_format(text: str, itemsize: int) -> Optional[DType]:
    letter = text.lstrip("@=<|")
    if letter in ("f", "d", "e") and itemsize != {"f": 4, "d": 8, "e": 2}[letter]:
        return None
    if letter in _LETTERS:
        return _LETTERS[letter]
    if letter in tuple("bhilqn"):
        return _SIGNED.get(itemsize)
    if letter in tuple("BHILQN"):
        return _UNSIGNED.get(itemsize)
    return None


class _PyBuffer(ctypes.Structure):
    _fields_ = [("buf", c_void_p), ("obj", py_object), ("len", c_ssize_t),
                ("itemsize", c_ssize_t), ("readonly", c_int), ("ndim", c_int),
                ("format", c_char_p), ("shape", POINTER(c_ssize_t)),
                ("strides", POINTER(c_ssize_t)), ("suboffsets", POINTER(c_ssize_t)),
                ("internal", c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes, _get_buffer.restype = [py_object, POINTER(_PyBuffer), c_int], c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [POINTER(_PyBuffer)], None
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [py_object, c_char_p], c_void_p
_WRITABLE, _FORMAT, _CONTIGUOUS = 0x1, 0x4, 0x8  # PyBUF_WRITABLE, _FORMAT, _ND


class Buffer:
    """Elements in memory, borrowed from `owner` until release().

    address  of the first one
    count    of elements
    dtype    of each, a DType
    """

    __slots__ = ("address", "count", "dtype", "owner", "_view")

    def __init__(self, address: int, count: int, dtype: DType, owner: Any, view=None) -> None:
        self.address = address
        self.count = count
        self.dtype = dtype
        self.owner = owner
        self._view = view

    def release(self) -> None:
        """Gives the memory back; a second time does nothing."""
        view, self._view, self.owner = self._view, None, None
        if view is not None:
            _release_buffer(ctypes.byref(view))

    def __del__(self) -> None:
        if self._view is not None:
            self.release()


def borrow(thing: Any, writable: bool, what: str, dtype: Optional[DType] = None) -> Buffer:
    """The memory of `thing`; `what` names the argument in errors. With `dtype` the bytes are read
    as that type."""
    if dtype is None:
        dtype = getattr(thing, "gradus_dtype", None)  # an array of alloc()
    if type(thing).__module__.partition(".")[0] == "torch" or hasattr(thing, "data_ptr"):
        found = _borrow_tensor(thing, what)
    else:
        view = _PyBuffer()
        flags = _FORMAT | _CONTIGUOUS | (_WRITABLE if writable else 0)
        try:
            _get_buffer(thing, ctypes.byref(view), flags)
        except TypeError:
            found = _borrow_other(thing, writable, what)
        except (BufferError, ValueError) as error:
            raise InvalidError(f"{what} cannot be {'written' if writable else 'read'}: {error}; "
                               "pass an array in C order"
                               f"{' that is not read-only' if writable else ''}") from None
        else:
            letters = (view.format or b"B").decode()
            kind = _dtype_of_format(letters, view.itemsize)
            kind = dtype if kind is None else kind
            if kind is None:
                size = view.itemsize
                _release_buffer(ctypes.byref(view))
                raise InvalidError(f"{what} has elements of format {letters!r} ({size} bytes), "
                                   "which is no type of Gradus; convert it, or say dtype=")
            found = Buffer(view.buf or 0, view.len // kind.itemsize, kind, thing, view)
    if dtype is not None and dtype != found.dtype:
        total = found.count * found.dtype.itemsize
        if total % dtype.itemsize:
            found.release()
            raise InvalidError(f"{what} has {total} bytes, which is no multiple of the "
                               f"{dtype.itemsize} of {dtype.name.lower()}")
        found.count, found.dtype = total // dtype.itemsize, dtype
    return found


def _borrow_tensor(tensor: Any, what: str) -> Buffer:
    """A tensor of PyTorch, which this module does not import."""
    if tensor.device.type != "cpu":
        raise InvalidError(f"{what} is on device {tensor.device}; only memory of the host is "
                           f"supported: use {what}.cpu()")
    if not tensor.is_contiguous():
        raise InvalidError(f"{what} is not contiguous (strides {tuple(tensor.stride())}); use "
                           f"{what}.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidError(f"{what} is a conjugated or negated view, whose memory has other values;"
                           f" use {what}.resolve_conj().resolve_neg()")
    return Buffer(tensor.data_ptr(), tensor.numel(), dtype_of(tensor.dtype), tensor)


def _borrow_other(thing: Any, writable: bool, what: str) -> Buffer:
    if hasattr(thing, "__array_interface__"):
        return _borrow_interface(thing, writable, what)
    if hasattr(thing, "__dlpack__"):
        return _borrow_dlpack(thing, what)
    raise InvalidError(f"{what} is a {type(thing).__name__}, which has no memory of elements; pass "
                       "something with the buffer protocol (array.array, numpy), "
                       "__array_interface__ or DLPack, or use the calls for objects")


def _borrow_interface(thing: Any, writable: bool, what: str) -> Buffer:
    told = thing.__array_interface__
    shape, kind, data = told["shape"], told["typestr"], told.get("data")
    itemsize = int(kind[2:])
    letters = {"f": {2: DType.F16, 4: DType.F32, 8: DType.F64}, "i": _SIGNED, "u": _UNSIGNED,
               "b": {1: DType.BOOL}, "c": {8: DType.COMPLEX64, 16: DType.COMPLEX128}}
    dtype = letters.get(kind[1], {}).get(itemsize)
    if dtype is None or kind[0] == ">":
        raise InvalidError(f"{what} has elements of type {kind}, which is no type of Gradus")
    if not isinstance(data, tuple):
        raise InvalidError(f"{what} has an __array_interface__ without an address")
    if writable and data[1]:
        raise InvalidError(f"{what} cannot be written: its __array_interface__ is read-only")
    _check_strides(shape, told.get("strides"), itemsize, what)
    return Buffer(data[0], _product(shape), dtype, thing)


def _product(shape) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _check_strides(shape, strides, unit: int, what: str) -> None:
    expected = unit
    for extent, stride in zip(reversed(shape), reversed(strides or ())):
        if extent != 1 and stride != expected and _product(shape):
            raise InvalidError(f"{what} is not contiguous (shape {tuple(shape)}, strides "
                               f"{tuple(strides)}); pass an array in C order")
        expected *= extent


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32),
                ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


def _borrow_dlpack(thing: Any, what: str) -> Buffer:
    device = thing.__dlpack_device__()
    if device[0] != 1:  # kDLCPU
        raise InvalidError(f"{what} is on a device (DLPack's type {int(device[0])}); only memory "
                           "of the host is supported")
    # The capsule is not consumed: it frees what it describes when it goes.
    capsule = thing.__dlpack__()
    tensor = ctypes.cast(_capsule_pointer(capsule, b"dltensor"), POINTER(_DLTensor)).contents
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    size = tensor.bits // 8
    codes = {0: _SIGNED, 1: _UNSIGNED, 2: {2: DType.F16, 4: DType.F32, 8: DType.F64},
             4: {2: DType.BF16}, 5: {8: DType.COMPLEX64, 16: DType.COMPLEX128}, 6: {1: DType.BOOL}}
    dtype = codes.get(tensor.code, {}).get(size)
    if dtype is None or tensor.lanes != 1:
        raise InvalidError(f"{what} has elements of DLPack's type {tensor.code} with {tensor.bits} "
                           "bits, which is no type of Gradus")
    if tensor.strides:
        _check_strides(shape, [tensor.strides[i] for i in range(tensor.ndim)], 1, what)
    return Buffer((tensor.data or 0) + tensor.byte_offset, _product(shape), dtype,
                  (thing, capsule))


def size_array(values):
    """Counts, as the library takes them."""
    return (c_size_t * len(values))(*values)
