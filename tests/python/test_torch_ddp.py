# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel over the backend, and what goes wrong in it."""
import importlib.util

import pytest

from conftest import SOURCE

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (Debian: python3-torch)", allow_module_level=True)

DDP = '''
import copy
import gzip
import hashlib
import sys
import torch
import torch.distributed as dist
import gradus.torch
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gradus")
n, me = dist.get_world_size(), dist.get_rank()
with gzip.open(sys.argv[1], "rt") as file:
    rows = torch.tensor([[float(word) for word in line.split(",")] for line in file][:480])
pixels, digits = rows[:, :64] / 16, rows[:, 64].long()
torch.manual_seed(me)  # DDP starts all from rank 0's weights
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 96),
                            torch.nn.BatchNorm1d(96), torch.nn.ReLU(), torch.nn.Linear(96, 10))
model.eval()  # a batch norm in training would see only a part of the batch
parallel = DistributedDataParallel(model, bucket_cap_mb=0.02)  # several buckets
alone = copy.deepcopy(model)
loss_of = torch.nn.CrossEntropyLoss()
optimizers = [torch.optim.SGD(one.parameters(), lr=0.2, momentum=0.9) for one in (parallel, alone)]
for step in range(10):
    batch = slice(48 * step, 48 * step + 48)
    x, y = pixels[batch], digits[batch]
    loss_of(parallel(x[me::n]), y[me::n]).backward()
    loss_of(alone(x), y).backward()
    for mine, whole in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(mine.grad, whole.grad, rtol=1e-4, atol=1e-6), step
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
with parallel.no_sync():
    loss_of(parallel(pixels[me:me + 8]), digits[me:me + 8]).backward()
loss_of(parallel(pixels[me:me + 8]), digits[me:me + 8]).backward()
data = b"".join(one.grad.numpy().tobytes() + one.detach().numpy().tobytes()
                for one in model.parameters())
print(hashlib.sha256(data).hexdigest())
'''


@pytest.mark.parametrize("count", [2, 3])
def test_torch_ddp_has_the_gradients_of_one_process(ranks, count):
    pytest.importorskip("numpy")
    lines = ranks(count, DDP, SOURCE / "examples" / "digits" / "digits.csv.gz")
    assert len(lines[0]) == 1 and lines == [lines[0]] * count


def test_torch_errors_say_who_did_what(ranks):
    lines = ranks(2, '''
        from datetime import timedelta
        import torch
        import torch.distributed as dist
        import gradus.torch
        dist.init_process_group("gradus")
        me = dist.get_rank()
        for call in (lambda: dist.all_reduce(torch.ones(2).to_sparse()),
                     lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), [1, 2], [1, 1])):
            try:
                call()
            except RuntimeError as error:
                print(error)
        if me == 0:
            work = dist.irecv(torch.ones(1), 1)
            try:
                work.wait(timedelta(milliseconds=10))
            except RuntimeError as error:
                print(error)
            dist.send(torch.ones(1), 1)
            work.wait()
        else:
            dist.recv(torch.ones(1), 0)
            dist.send(torch.ones(1), 0)
        try:
            dist.all_reduce(torch.ones(3 + me))
        except RuntimeError as error:
            print(error)
        ''')
    assert "not over after 0.01 s" in lines[0].pop(2)
    for sparse, splits, shapes in lines:
        assert "to_dense" in sparse and "2 rows" in splits
        for words in ("rank 1", "3 f32", "4 f32"):
            assert words in shapes


def test_torch_ddp_names_a_rank_that_dies_in_backward(ranks):
    lines = ranks(3, '''
        import os
        import signal
        import torch
        import torch.distributed as dist
        import gradus.torch
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the job ends: it still has to say why
        dist.init_process_group("gradus")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            model(torch.ones(1, 4)).sum().backward()
        except RuntimeError as error:
            print("rank 1 died" in str(error), flush=True)
        ''', code=1)
    assert lines == [["True"], [], ["True"]], ranks.err
