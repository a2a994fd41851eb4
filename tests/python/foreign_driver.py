# SPDX-License-Identifier: Apache-2.0
"""Runs a script that names a backend of torch.distributed, or none, on another one:

    foreign_driver.py BACKEND SCRIPT|MODULE ARGUMENT...

Writes the last loss. Where the environment has CPU_FOR_DEVICES, a script that asks for accelerators
gets the CPU."""
import contextlib
import os
import runpy
import sys

import torch
import torch.distributed as dist

import gradus.torch  # noqa: F401

chosen, target = sys.argv[1:3]
begin, backward = dist.init_process_group, torch.Tensor.backward
losses = []


def init_process_group(backend=None, *arguments, **named):
    assert backend in (None, "gloo"), backend
    named.pop("device_id", None)  # says which accelerator
    return begin(chosen, *arguments, **named)


def recorded(loss, *arguments, **named):
    losses.append(loss.detach().sum())
    return backward(loss, *arguments, **named)


dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
torch.Tensor.backward = recorded


def pretend(name, answer):
    """torch itself, which calls these as well, goes on to hear what there is."""
    real, folder = getattr(torch.accelerator, name), os.path.dirname(torch.__file__)

    def told(*arguments, **named):
        from_torch = sys._getframe(1).f_code.co_filename.startswith(folder)
        return real(*arguments, **named) if from_torch else answer(*arguments)
    setattr(torch.accelerator, name, told)


if "CPU_FOR_DEVICES" in os.environ:
    pretend("is_available", lambda: True)
    pretend("device_count", lambda: 8)
    pretend("current_accelerator", lambda: torch.device("cpu"))
    pretend("device_index", contextlib.nullcontext)
torch.manual_seed(1)  # some scripts leave it to chance
sys.argv[:] = sys.argv[2:]
if target.endswith(".py"):
    sys.path.insert(0, os.path.dirname(os.path.abspath(target)))
    runpy.run_path(target, run_name="__main__")
else:
    runpy.run_module(target, run_name="__main__", alter_sys=True)
if losses:
    last = losses[-1]
    print("last loss", float(last.full_tensor() if hasattr(last, "full_tensor") else last))
