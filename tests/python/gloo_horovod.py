# SPDX-License-Identifier: Apache-2.0
"""What scripts need of horovod.torch, over gloo: the means of gradients that their losses are
compared with, where Horovod is not built. No elastic job changes here."""
import os

import torch
import torch.distributed as dist

Average = "Average"


class Compression:
    none = None


def init():
    dist.init_process_group("gloo")


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def local_rank():
    return int(os.environ["LOCAL_RANK"])


def broadcast_parameters(state, root_rank):
    for tensor in state.values():
        dist.broadcast(tensor, root_rank)


def broadcast_optimizer_state(optimizer, root_rank):
    assert not optimizer.state_dict()["state"], "momentum comes with the first step"


def allreduce(tensor, name=None):
    total = tensor.clone()
    dist.all_reduce(total)
    return total / size()


def DistributedOptimizer(optimizer, **_):  # noqa: N802
    step = optimizer.step

    def averaged():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = allreduce(parameter.grad)
        return step()
    optimizer.step = averaged
    return optimizer


class elastic:  # noqa: N801
    class TorchState:
        def __init__(self, model, optimizer, **named):
            self.model, self.optimizer = model, optimizer
            vars(self).update(named)
            broadcast_parameters(model.state_dict(), 0)

        def register_reset_callbacks(self, _):
            pass

        def commit(self):
            pass

    @staticmethod
    def run(function):
        return function
