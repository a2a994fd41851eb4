# SPDX-License-Identifier: Apache-2.0
"""ExactOptimizer: the same bits of the weights for any number of workers."""
import signal
import subprocess

# pytest.mark.long: the interpreters of GRADUS_PYTHONS (conftest.py)

MODELS = '''
import hashlib
import sys
import torch
from torch import nn
import gradus.torch


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        samples, length, width = x.shape
        q, k, v = (part.view(samples, length, self.heads, -1).transpose(1, 2)
                   for part in self.joint(self.before(x)).split(width, 2))
        scores = q @ k.transpose(2, 3) / (width // self.heads) ** 0.5
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf")).softmax(3)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(x.shape))
        return x + self.narrow(nn.functional.gelu(self.wide(self.behind(x))))


class Gpt(nn.Module):
    def __init__(self, words=32, width=32, length=16):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.last = nn.Linear(width, words, bias=False)
        self.last.weight = self.word.weight  # one parameter, used twice

    def forward(self, x):
        return self.last(self.blocks(self.word(x) + self.place.weight[:x.shape[1]])).transpose(1, 2)


def mlp():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 5))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(),
                         nn.Linear(16 * 4, 5))


def adam(params):
    return torch.optim.Adam(params, lr=1e-3)


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def data_of(name, step):
    made = torch.Generator().manual_seed(step)  # the same batch on all workers
    if name == "gpt":
        text = torch.randint(0, 32, (16, 17), generator=made)
        return text[:, :-1], text[:, 1:]
    shape = (24, 20) if name == "mlp" else (24, 1, 8, 8)
    return torch.randn(shape, generator=made), torch.randint(0, 5, (24,), generator=made)


def sha256_of(model):
    data = b"".join(bytes(param.detach().contiguous().view(-1).view(torch.uint8).tolist())
                    for param in model.parameters())
    return hashlib.sha256(data).hexdigest()


def begin(name, communicator=None):
    torch.manual_seed(1)
    model = {"mlp": mlp, "cnn": cnn, "gpt": Gpt}[name]()
    inner = (sgd if name == "cnn" else adam)(model.parameters())
    return model, gradus.torch.ExactOptimizer(inner, shards=8, communicator=communicator)


def step_of(model, optimizer, name, step):
    x, y = data_of(name, step)
    for part in optimizer.shards(len(x)):
        nn.functional.cross_entropy(model(x[part]), y[part]).backward()
    optimizer.step()


'''

SIZES = '''
world = gradus.Communicator()


def sizes():
    """Groups of so many workers, on those that take part."""
    for size in map(int, sys.argv[1:]):
        group = world.subgroup(range(size))
        if group is not None:
            yield group
'''

TRAIN = MODELS + SIZES + '''
hashes = {}
for group in sizes():
    for name in ("mlp", "cnn", "gpt"):
        model, optimizer = begin(name, group)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for step in range(4):
            step_of(model, optimizer, name, step)
            schedule.step()
        assert all(param.grad.data_ptr() % 64 == 0 for param in model.parameters())
        hashes.setdefault(name, set()).add((sha256_of(model), torch.rand(1).item()))
print(*[f"{name} {len(found)}" for name, found in hashes.items()])
print(hashes)
'''


def test_torch_exact_optimizer_leads_to_the_same_bits_with_1_to_4_workers(torch_ranks):
    lines = torch_ranks(4, TRAIN, 1, 2, 3, 4)
    assert lines == [["mlp 1 cnn 1 gpt 1", lines[0][1]]] * 4


CLIPPED = MODELS + '''
model, optimizer = begin("mlp")
for step in range(3):
    x, y = data_of("mlp", step)
    for part in optimizer.shards(len(x)):
        nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        if step == 1:
            for param in model.parameters():
                param.grad = param.grad.clone()  # a program that sets its own
    optimizer.synchronize()
    if optimizer.communicator.rank == 0:
        print(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
again = optimizer.state_dict()
optimizer.load_state_dict(again)
assert optimizer.param_groups is optimizer.optimizer.param_groups and optimizer.steps == 3
print(sha256_of(model))
plain = mlp().double()
mine = gradus.torch.ExactOptimizer(torch.optim.SGD(plain.parameters(), lr=1.0), shards=3, op="sum")
before = [param.detach().clone() for param in plain.parameters()]
plain.eval()
x, y = torch.randn(7, 20).double(), torch.randn(7, 5).double()
mine.communicator.broadcast(x), mine.communicator.broadcast(y)
for part in mine.shards(7):
    ((plain(x[part]) - y[part]) ** 2).sum().backward()
mine.step()
found = [old - param.detach() for old, param in zip(before, plain.parameters())]
with torch.no_grad():
    for param, old in zip(plain.parameters(), before):
        param.copy_(old)
alone = torch.autograd.grad(((plain(x) - y) ** 2).sum(), plain.parameters())
for one, other in zip(found, alone):
    assert torch.allclose(one, other), "the sum is not the gradient"
for wrong in (lambda: next(optimizer.shards(7)), lambda: optimizer.step(lambda: 0),
              lambda: gradus.torch.ExactOptimizer(sgd(model.parameters()), shards=0),
              lambda: optimizer.add_param_group({"params": [torch.zeros(1)]})):
    try:
        wrong()
    except gradus.InvalidError as error:
        print(error.sentence[:30])
'''


def test_torch_exact_optimizer_clips_sums_and_refuses(torch_ranks):
    found = [torch_ranks(count, CLIPPED) for count in (1, 3)]
    assert found[0][0] == found[1][0] and len(found[0][0]) == 8
    assert found[1][1] == found[1][0][3:]


def test_torch_exact_optimizer_refuses_workers_that_differ(torch_ranks):
    lines = torch_ranks(2, '''
        import torch
        import gradus.torch
        model = torch.nn.Linear(2, 2)
        try:
            gradus.torch.ExactOptimizer(torch.optim.SGD(model.parameters(), lr=1.0),
                                        shards=4 + gradus.torch._exact.job_communicator().rank)
        except gradus.InvalidError as error:
            print(error)
        ''')
    assert all("shards" in line[0] and "4" in line[0] and "5" in line[0] for line in lines)


LOSS = MODELS + '''
import os
import signal
import torch.distributed as dist
rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def meet(rank, size, number):
    store = dist.FileStore(f"{folder}/{number}", size)
    return gradus.Communicator(rank=rank, size=size, store=store)


model, optimizer = begin("mlp", meet(rank, size, 0))
while optimizer.steps < 6:
    try:
        if rank == 1 and optimizer.steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        step_of(model, optimizer, "mlp", optimizer.steps)
    except (gradus.PeerLostError, gradus.BrokenError):
        others = [one for one in range(size) if one != 1]
        optimizer.use(meet(others.index(rank), len(others), 1))
print(sha256_of(model))
'''


def test_torch_exact_optimizer_goes_on_without_a_killed_worker(torch_ranks, tmp_path):
    hashes = []
    for size in (1, 3):
        folder = tmp_path / str(size)
        folder.mkdir()
        program = torch_ranks.write(LOSS)
        workers = [subprocess.Popen([*torch_ranks.words, program, str(rank), str(size), folder],
                                    env=torch_ranks.gradus.environment(torch_ranks.environment),
                                    stdout=subprocess.PIPE, text=True) for rank in range(size)]
        for rank, worker in enumerate(workers):
            out, _ = worker.communicate(timeout=100)
            if size == 3 and rank == 1:
                assert worker.returncode == -signal.SIGKILL
            else:
                assert worker.returncode == 0
                hashes.append(out)
    assert len(hashes) == 3 and set(hashes) == {hashes[0]}


def test_torch_exact_optimizer_is_of_the_job_that_runs(torch_ranks):
    lines = torch_ranks(2, '''
        import torch
        import gradus
        from gradus import _placed
        from gradus.torch import ExactOptimizer
        job = gradus.Communicator()


        def train():
            model = torch.nn.Linear(1, 1)
            optimizer = ExactOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), shards=2)
            return optimizer._communicator.allgather_object(job.rank)


        for _ in range(2):
            with _placed.rank_of(job.rank, job.size, job.allgather_object, {}):
                outcome = _placed.outcome_of(train, (), {}, job.rank, leave=True)
            print(_placed.values_of([outcome]))
        ''')
    assert lines == [["[[0, 1]]", "[[0, 1]]"]] * 2
