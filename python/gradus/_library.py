# SPDX-License-Identifier: Apache-2.0
"""libgradus.so and its types, as include/gradus/*.h declares them. ctypes releases the GIL in each
call."""
import ctypes
import os
import pathlib
from ctypes import (CFUNCTYPE, POINTER, c_char, c_char_p, c_double, c_float, c_int, c_int32,
                    c_int64, c_size_t, c_uint32, c_uint64, c_void_p)

HERE = pathlib.Path(__file__).resolve().parent

BOOTSTRAP = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)


class Diag(ctypes.Structure):
    _fields_ = [("status", c_int32), ("peer_rank", c_int32), ("text", c_char * 512)]


class CommConfig(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("rank", c_int), ("size", c_int),
                ("bootstrap", BOOTSTRAP), ("bootstrap_arg", c_void_p), ("coordinator", c_char_p),
                ("secret", c_char_p), ("join_timeout_us", c_int64), ("op_timeout_us", c_int64),
                ("link", c_char_p), ("host", c_char_p), ("inexact", c_int), ("log_level", c_int),
                ("log", c_void_p), ("log_arg", c_void_p), ("settings", POINTER(c_char_p)),
                ("threads", c_int)]


class MessageSource(ctypes.Structure):
    _fields_ = [("rank", c_int), ("tag", c_uint32)]


class Call(ctypes.Structure):
    _fields_ = [("coll", c_int), ("dtype", c_int), ("op", c_int), ("in_", c_void_p),
                ("out", c_void_p), ("count", c_size_t), ("counts", POINTER(c_size_t)),
                ("recv_counts", POINTER(c_size_t)), ("root", c_int), ("tag", c_uint32),
                ("prescale", c_double), ("postscale", c_double), ("reduce", c_void_p),
                ("reduce_arg", c_void_p), ("shards", c_int), ("memory", c_int),
                ("partials", c_void_p), ("name", c_char_p), ("site", c_char_p), ("done", c_void_p),
                ("done_arg", c_void_p), ("source_out", POINTER(MessageSource))]


class PsConfig(ctypes.Structure):
    _fields_ = [("servers", c_char_p), ("secret", c_char_p), ("worker", c_int),
                ("timeout_us", c_int64), ("encrypt", c_int), ("run", c_char_p)]


class PsSpec(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("elements", c_uint64), ("consistency", c_int),
                ("shards", c_int), ("aggregate", c_int), ("total", c_int), ("staleness", c_int),
                ("adapt_rate", c_int), ("refuse_not_finite", c_int), ("optimizer", c_char_p),
                ("columns", c_uint32), ("seed", c_uint64), ("deviation", c_float),
                ("gradient_type", c_int)]


class PsGradient(ctypes.Structure):
    _fields_ = [("values", c_void_p), ("step", c_uint64), ("first", c_int), ("count", c_int),
                ("version", c_uint64), ("sequence", c_uint64), ("rate", c_double),
                ("factor", c_float), ("sparse", c_int)]


class PsScan(ctypes.Structure):
    _fields_ = [("place", c_uint64), ("version", c_uint64), ("room", c_size_t), ("rows", c_void_p),
                ("values", c_void_p), ("states", POINTER(c_void_p)), ("state_count", c_int),
                ("count", c_size_t), ("version_least", c_uint64)]


class PsEntry(ctypes.Structure):
    _fields_ = [("tensor", PsSpec), ("states", c_int), ("blocks", c_uint32),
                ("block_elements", c_uint32), ("rows", c_uint64), ("version_least", c_uint64),
                ("version_most", c_uint64)]


class PsCounters(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in (
        "clients", "tensors", "blocks", "bytes", "pushes", "pulls", "updates", "duplicates", "late",
        "refused", "bytes_in", "bytes_out", "staleness_sum", "staleness_most", "unreplicated")]


# name: result, arguments
_DIAG, _PUSH, _OP = POINTER(Diag), POINTER(PsGradient), POINTER(c_void_p)
_FUNCTIONS = {
    "gr_version": (c_char_p, []),
    "gr_status_text": (c_char_p, [c_int]),
    "gr_dtype_bytes": (c_size_t, [c_int]),
    "gr_comm_config_init": (None, [POINTER(CommConfig)]),
    "gr_comm_create": (c_int, [POINTER(CommConfig), POINTER(c_void_p), _DIAG]),
    "gr_comm_destroy": (None, [c_void_p]),
    "gr_comm_abort": (c_int, [c_void_p, c_char_p]),
    "gr_comm_event_fd": (c_int, [c_void_p, POINTER(c_int)]),
    "gr_comm_event_clear": (None, [c_void_p]),
    "gr_comm_rank": (c_int, [c_void_p]),
    "gr_comm_size": (c_int, [c_void_p]),
    "gr_comm_local_rank": (c_int, [c_void_p]),
    "gr_comm_local_size": (c_int, [c_void_p]),
    "gr_comm_diag": (_DIAG, [c_void_p]),
    "gr_comm_last_error": (_DIAG, [c_void_p]),
    "gr_comm_split": (c_int, [c_void_p, c_int, c_int, POINTER(c_void_p), _DIAG]),
    "gr_comm_subgroup": (c_int, [c_void_p, POINTER(c_int), c_int, POINTER(c_void_p), _DIAG]),
    "gr_alloc": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "gr_register": (c_int, [c_void_p, c_void_p, c_size_t]),
    "gr_unregister": (c_int, [c_void_p, c_void_p]),
    "gr_free": (None, [c_void_p, c_void_p]),
    "gr_shard_range": (None, [c_int, c_int, c_int, POINTER(c_int), POINTER(c_int)]),
    "gr_shard_partials": (c_int, [c_int, c_int, c_int]),
    "gr_shard_slot": (c_int, [c_int, c_int, c_int, c_int, POINTER(c_int)]),
    "gr_shard_buffers": (c_int, [c_int, c_int, c_int]),
    "gr_start": (c_int, [c_void_p, POINTER(Call), c_int, POINTER(c_void_p)]),
    "gr_test": (c_int, [c_void_p]),
    "gr_wait_for": (c_int, [c_void_p, c_int64]),
    "gr_op_create": (c_int, [c_void_p, POINTER(Call), POINTER(c_void_p)]),
    "gr_op_start": (c_int, [c_void_p]),
    "gr_op_destroy": (None, [c_void_p]),
    "gr_comm_renew": (c_int, [POINTER(c_void_p), _DIAG]),
    "gr_comm_change_wanted": (c_int, [c_void_p]),
    "gr_ps_connect": (c_int, [POINTER(PsConfig), POINTER(c_void_p), _DIAG]),
    "gr_ps_close": (None, [c_void_p]),
    "gr_ps_servers": (c_int, [c_void_p]),
    "gr_ps_last_error": (_DIAG, [c_void_p]),
    "gr_ps_alloc": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "gr_ps_free": (None, [c_void_p, c_void_p]),
    "gr_ps_declare": (c_int, [c_void_p, POINTER(PsSpec), POINTER(c_int)]),
    "gr_ps_set": (c_int, [c_void_p, c_int, c_void_p]),
    "gr_ps_push_start": (c_int, [c_void_p, c_int, _PUSH, _OP]),
    "gr_ps_pull_start": (c_int, [c_void_p, c_int, c_uint64, c_void_p, _OP]),
    "gr_ps_push_pull_start": (c_int, [c_void_p, c_int, _PUSH, c_void_p, _OP]),
    "gr_ps_push_rows_start": (c_int, [c_void_p, c_int, _PUSH, c_void_p, c_size_t, _OP]),
    "gr_ps_pull_rows_start": (c_int, [c_void_p, c_int, c_uint64, c_void_p, c_size_t, c_void_p,
                                      _OP]),
    "gr_ps_wait": (c_int, [c_void_p, c_int64, POINTER(c_uint64)]),
    "gr_ps_clock": (c_int, [c_void_p, c_uint64]),
    "gr_ps_barrier": (c_int, [c_void_p, c_char_p, c_int, c_int, c_int64]),
    "gr_ps_pull_state_start": (c_int, [c_void_p, c_int, c_int, c_uint64, c_void_p, _OP]),
    "gr_ps_pull_whole_run": (c_int, [c_void_p, c_int, c_uint64, c_void_p, POINTER(c_void_p), c_int,
                                     POINTER(c_uint64)]),
    "gr_ps_restore": (c_int, [c_void_p, c_int, c_uint64, c_void_p, POINTER(c_void_p), c_int]),
    "gr_ps_scan_rows": (c_int, [c_void_p, c_int, POINTER(PsScan)]),
    "gr_ps_restore_rows": (c_int, [c_void_p, c_int, c_uint64, c_void_p, c_size_t, c_void_p,
                                   POINTER(c_void_p), c_int]),
    "gr_ps_list": (c_int, [c_void_p, c_uint32, POINTER(PsEntry)]),
    "gr_ps_read_counters": (c_int, [c_void_p, c_int, POINTER(PsCounters)]),
}


def _open() -> ctypes.CDLL:
    """LIBGRADUS, else the library of the wheel, else what the dynamic linker finds."""
    named = os.environ.get("LIBGRADUS")
    beside = HERE / "libgradus.so"
    path = named or (str(beside) if beside.exists() else "libgradus.so.0.1")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        remedy = ("LIBGRADUS names it" if named else
                  "install libssl3 and libxxhash0 (Debian's names)" if beside.exists() else
                  "set LIBGRADUS to the path of libgradus.so, or install the wheel")
        raise ImportError(f"the library of Gradus, {path}, cannot be loaded: {error}; "
                          f"{remedy}") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{path} has no {name}: it is older than this package; install "
                              "both of one version") from None
        function.restype, function.argtypes = result, arguments
    return library


lib = _open()
# For calls that wait for nobody: they keep the GIL, which costs less.
quick = ctypes.PyDLL(lib._name)
quick.gr_op_start.restype, quick.gr_op_start.argtypes = _FUNCTIONS["gr_op_start"]


def text_of(diag) -> str:
    """The sentence of a gr_diag, or of a pointer to one."""
    diag = getattr(diag, "contents", diag)
    return diag.text.decode("utf-8", "replace")


def status_text(status: int) -> str:
    return lib.gr_status_text(status).decode()


def bytes_or_none(text):
    return None if text is None else os.fspath(text).encode()


had_secret = False


def forget_secret() -> None:
    """The library has wiped the secret of the environment, but not Python's copy."""
    global had_secret
    if os.environ.pop("GRADUS_SECRET", None) is not None:
        had_secret = True
