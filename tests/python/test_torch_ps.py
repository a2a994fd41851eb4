# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch on parameter servers: the weights of one process."""

# pytest.mark.long: the interpreters of GRADUS_PYTHONS (conftest.py)

BEGIN = '''
import copy
import gc
import io
import os
import weakref
import torch
from torch import nn
import gradus
import gradus.torch
from gradus.torch.ps import Embedding, Optimizer

secret = os.environ["GRADUS_SECRET"]
client = gradus.ps.Client(secret=secret)
me, workers = client.worker, int(os.environ["GRADUS_WORLD_SIZE"])
generator = torch.Generator().manual_seed(5)
WORDS = torch.randint(0, 20, (8, 4, 2), generator=generator)  # steps, samples, words of each
TARGET = torch.randn(8, 4, 2, generator=generator)


class Net(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.words = words
        self.wide = nn.Linear(4, 300)
        self.unused = nn.Linear(2, 2)
        self.last = nn.Linear(300, 2).to(torch.float64)

    def forward(self, x):
        hidden = self.wide(self.words(x).mean(1)).tanh()
        return self.last(hidden.to(torch.float64)).float()


def new(words, seed=1):
    torch.manual_seed(seed)
    net = Net(words)
    net.wide.weight.data = net.wide.weight.data.t().contiguous().t()  # not as servers take it
    return net


def loss_of(model, step, part=slice(None)):
    return ((model(WORDS[step, part]) - TARGET[step, part]) ** 2).mean()


def part_of(worker):
    return slice(4 * worker // workers, 4 * (worker + 1) // workers)


def close_to(one, other, digits=1e-5):
    assert torch.allclose(one.float(), other.float(), rtol=digits, atol=digits), (
        me, (one.float() - other.float()).abs().max())


def refused(words, call, kind=gradus.InvalidError):
    try:
        call()
    except kind as error:
        assert words in str(error), str(error)
    else:
        raise SystemExit("accepted: " + words)
'''

STEPS = BEGIN + '''
RULE = {"kind": "sgd", "momentum": 0.5}
model = new(Embedding(20, 4, padding_idx=3, std=0.5, seed=7), seed=me)
refused("no table", lambda: model(WORDS[0]))
optimizer = Optimizer(model, RULE, lr=0.5, client=client)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
padding = client.find("words").pull([3]).values

# One process: all samples of each step, the optimizer of torch.
firsts = [dict(new(None, worker).named_parameters()) for worker in range(workers)]
for name, param in model.named_parameters():  # of the worker that came first
    assert any(torch.equal(param, first[name]) for first in firsts), name
alone = new(nn.Embedding(20, 4, padding_idx=3))
alone.load_state_dict({**model.state_dict(),
                       "words.weight": model.words(torch.arange(20)).detach()})
masters = [param.detach().float().requires_grad_() for param in alone.parameters()]
rival = torch.optim.SGD(masters[1:], lr=0.5, momentum=0.5)
rivals = torch.optim.lr_scheduler.StepLR(rival, 2)
momentum = torch.zeros(20, 4)  # of a row moves when the row is used

for step in range(4):
    optimizer.zero_grad()
    part = part_of(me)
    middle = (part.start + part.stop) // 2
    for micro in (slice(part.start, middle), slice(middle, part.stop)):  # two backward passes
        (loss_of(model, step, micro) / 2).backward()
    optimizer.step()
    schedule.step()
    assert optimizer.version == step + 1
    for param in alone.parameters():
        param.grad = None
    for worker in range(workers):
        part = part_of(worker)
        middle = (part.start + part.stop) // 2
        for micro in (slice(part.start, middle), slice(middle, part.stop)):
            (loss_of(alone, step, micro) / 2 / workers).backward()
    for param, master in zip(alone.parameters(), masters):
        master.grad = torch.zeros_like(master) if param.grad is None else param.grad.float()
    with torch.no_grad():
        used = WORDS[step].unique()
        momentum[used] = 0.5 * momentum[used] + masters[0].grad[used]
        masters[0][used] -= rival.param_groups[0]["lr"] * momentum[used]
    rival.step()
    rivals.step()
    with torch.no_grad():
        for param, master in zip(alone.parameters(), masters):
            param.copy_(master)
    for param, other in zip(model.parameters(), list(alone.parameters())[1:]):
        close_to(param, other)
    with torch.no_grad():
        close_to(model.words(torch.arange(20)), alone.words.weight)
assert not model.words(torch.tensor([3])).any()
assert client.find("words").pull([3]).values == padding
if me == 0:
    entry = {one.name: one for one in client.entries()}["words"]
    print(entry.rows, "rows of", entry.elements // entry.columns)

# A worker that comes later has what the others have.
late = new(Embedding(20, 4, padding_idx=3, std=0.5, seed=7), seed=9)
assert Optimizer(late, RULE, lr=0.5, client=client).version == 4
assert all(map(torch.equal, late.parameters(), model.parameters()))

# A training goes on elsewhere with the same bits; so does a copy of the model.
state = optimizer.state_dict()
file = io.BytesIO()
torch.save(state, file)
file.seek(0)
other = copy.deepcopy(model)
for param in other.parameters():
    param.data.zero_()
kept = torch.load(file)
refused('no "0.weight"', lambda: Optimizer(nn.Sequential(nn.Linear(2, 2)), RULE, lr=0.5,
                                           client=client, prefix="none.", state=kept))
again = Optimizer(other, RULE, lr=7.0, client=client, prefix="again.", state=kept)
assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] and again.version == 4
for net, mine in ((model, optimizer), (other, again)):
    mine.zero_grad()
    loss_of(net, 5, part_of(me)).backward()
    mine.step()
assert all(map(torch.equal, model.parameters(), other.parameters()))
assert torch.equal(model.words(torch.arange(20)), other.words(torch.arange(20)))

for words, call in (
        ("consistency is 'sync'", lambda: Optimizer(model, RULE, lr=1, client=client,
                                                  consistency="sync")),
        ("op is", lambda: Optimizer(model, RULE, lr=1, client=client, op="mean")),
        ("there are 2", lambda: Optimizer(model, RULE, lr=1, client=client,
                                          replicas_to_aggregate=3)),
        ("worker", lambda: Optimizer(model, RULE, lr=1, client=gradus.ps.Client(worker=-1,
                                                                           secret=secret))),
        ("of 1", lambda: Optimizer(model, RULE, lr=1, workers=1,
                                   client=gradus.ps.Client(worker=100 + me, secret=secret))),
        ("no parameter", lambda: Optimizer(nn.Tanh(), RULE, lr=1, client=client)),
        ("otherwise", lambda: Optimizer(nn.ModuleDict({"wide": nn.Linear(5, 300)}), RULE, lr=1,
                                        client=client)),
        ("parameters are those", lambda: optimizer.add_param_group({"params": []})),
        ("padding_idx", lambda: Embedding(3, 1, padding_idx=3)),
        ("by 4", lambda: Embedding(20, 5).attach(client.find("words"))),
        ("take torch.int32", lambda: model.words(torch.tensor([0.5, 1.0]))),
        ("0 to 20", lambda: model.words(torch.tensor([0, 20])))):
    refused(words, call)
print("ok")
'''


def test_torch_ps_steps_are_those_of_one_process(torch_ranks):
    lines = torch_ranks(2, STEPS, flags=("--servers", 2))
    assert lines == [["16 rows of 20", "ok"], ["ok"]]


MODES = BEGIN + '''
import signal
import threading

RULE = {"kind": "sgd", "momentum": 0}


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.line = nn.Linear(2, 1)
        self.words = Embedding(1000, 2, std=1.0, seed=4)
        self.rows = nn.Embedding(5, 2, sparse=True)

    def loss(self, factor):
        """Gradients: `factor` of the weight, the bias and row 2, twice as much of row 7 + me."""
        return factor * (self.line(torch.ones(1, 2)).sum() + self.rows(torch.tensor([2])).sum() +
                         self.words(torch.tensor([[7 + me, 7 + me]])).sum())


def small(prefix, **words):
    model = Small()
    return model, Optimizer(model, RULE, lr=0.5, client=client, prefix=prefix, **words)


def check(model, optimizer, dense, rows):
    """By how much all have moved."""
    optimizer.pull()
    first, _ = small(f"fresh {me}.", consistency="async")
    with torch.no_grad():
        for one, two, by in ((model.line.weight, first.line.weight, dense),
                             (model.line.bias, first.line.bias, dense),
                             (model.rows.weight[2], first.rows.weight[2], dense),
                             (model.rows.weight[3], first.rows.weight[3], 0.0),
                             *((model.words(torch.tensor(row)), first.words(torch.tensor(row)), by)
                               for row, by in rows.items())):
            close_to(one, two - by)


# async: each gradient counts alone.
model, optimizer = small("async.", consistency="async")
for step in range(3):
    def closure():
        optimizer.zero_grad()
        loss = model.loss(1 + me)
        loss.backward()
        return loss
    assert optimizer.step(closure).requires_grad
optimizer.zero_grad()
optimizer.step()  # without gradients: a pull
client.barrier("async", 2)
check(model, optimizer, 0.5 * 3 * 3, {7: 0.5 * 3 * 2, 8: 0.5 * 3 * 4, 9: 0.0})
assert {one.rows for one in client.entries() if one.name == "async.words"} == {2}
other = Embedding(1000, 2)
reader = gradus.ps.Client(worker=-1, secret=secret)
other.attach(reader.find("async.words"))
assert torch.equal(other(torch.arange(6, 12)), model.words(torch.arange(6, 12)))

# Sum of the step's gradients; sparse ones of torch's own layer; a worker without a batch.
model, optimizer = small("sum.", op="sum")
optimizer.zero_grad()
model.loss(1.0).backward() if me == 0 else None
optimizer.step()
check(model, optimizer, 0.5, {7: 1.0, 8: 0.0})

# Backup workers: worker 1 is late, what it pushes is dropped.
model, optimizer = small("backup.", replicas_to_aggregate=1)
client.barrier("begun", 2)
for step in range(3 if me == 0 else 0):
    optimizer.zero_grad()
    model.loss(1.0).backward()
    optimizer.step()
client.barrier("ahead", 2)
if me == 1:
    model.loss(100.0).backward()
    optimizer.step()
    assert optimizer.version == 3
client.barrier("behind", 2)
check(model, optimizer, 1.5, {7: 3.0, 8: 0.0})
assert sum(client.counters(server).late for server in range(client.servers)) > 0



def interrupted(call, has_begun=lambda: True):
    """Ctrl-C while call() waits; on a busy machine maybe before, but not before has_begun()."""
    def interrupt():
        while threading.Event().wait(0.05) or not has_begun():
            pass
        os.kill(os.getpid(), signal.SIGINT)
    try:
        threading.Thread(target=interrupt).start()
        call()
    except KeyboardInterrupt:
        return True


# ssp: worker 0 waits when it is two steps ahead. Ctrl-C ends the wait, and it goes on.
model, optimizer = small("ssp.", consistency="ssp", staleness=1)
client.barrier("clocks", 2)
for step in range(3 if me == 0 else 1):
    if me == 1 or step == 2:
        assert me == 1 or interrupted(lambda: model.loss(1.0))
        client.barrier("waits", 2)
    optimizer.zero_grad()
    model.loss(1.0).backward()
    optimizer.step()
optimizer.finish()
check(model, optimizer, 2.0, {7: 3.0, 8: 1.0})

# bsp: so it does for the other's push; what was begun is finished first.
line = nn.Linear(2, 1)
optimizer = Optimizer(line, RULE, lr=0.5, client=client, prefix="line.")
begin = line.weight.detach().clone()
line(torch.ones(1, 2)).sum().backward()
if me == 0:
    assert interrupted(optimizer.step, lambda: len(optimizer._pending) == 2)
client.barrier("pushed", 2)
optimizer.step() if me == 1 else optimizer.zero_grad()
assert optimizer.version == 1
close_to(line.weight, begin - 0.5)
print("ok")
'''


def test_torch_ps_gradients_that_nobody_waits_for_count_as_they_should(torch_ranks):
    lines = torch_ranks(2, MODES, flags=("--servers", 2))
    assert lines == [["ok"], ["ok"]]


OVERLAP = BEGIN + '''
gradus.torch.ps._EARLY = 3  # the others wait for step()
RULE = {"kind": "adam"}
nets, optimizers = [], []
for overlap in (False, True):
    nets.append(new(Embedding(20, 4, std=0.5, seed=7)))
    optimizers.append(Optimizer(nets[-1], RULE, lr=0.1, client=client, prefix=f"{overlap}.",
                                overlap=overlap))
last = nets[1].last.weight
for step in range(4):
    for net, optimizer in zip(nets, optimizers):
        optimizer.zero_grad()
        loss = loss_of(net, step, part_of(me))
        if me == 0 and step == 2:  # a part of the model has no gradient here
            net.wide.requires_grad_(False)
            loss = loss_of(net, step, part_of(me))
            net.wide.requires_grad_(True)
        before = last.clone()
        loss.backward()
        early = len(optimizer._pending)
        assert early == (0 if net is nets[0] else 1 if me == 0 and step == 2 else 3), early
        assert torch.equal(last, before)  # the backward pass may still need it
        optimizer.step()
    for one, other in zip(*(net.parameters() for net in nets)):
        assert torch.equal(one, other), step
with torch.no_grad():
    assert torch.equal(*(net.words(torch.arange(20)) for net in nets))
loss_of(nets[1], 5, part_of(me)).backward()
refused("a second time", lambda: loss_of(nets[1], 5, part_of(me)).backward())
optimizers[1].step()
assert optimizers[1].version == 5

# It is on the servers before step(), and a step has this worker's own gradient.
line = nn.Linear(2, 1)
optimizer = Optimizer(line, {"kind": "sgd", "momentum": 0}, lr=0.5, client=client,
                      prefix=f"async {me}.", consistency="async", overlap=True,
                      refuse_not_finite=True)
begin = line.weight.detach().clone()
line(torch.ones(1, 2)).sum().backward()
for future, _ in optimizer._pending:
    future.result()
close_to(torch.tensor(client.find(f"async {me}.weight").pull().values), begin[0] - 0.5)
assert torch.equal(line.weight, begin)
optimizer.step()
close_to(line.weight, begin - 0.5)
optimizer.zero_grad()
(line(torch.ones(1, 2)).sum() * float("nan")).backward()
refused("is nan", optimizer.step, gradus.NotFiniteError)
optimizer.zero_grad()
line(torch.ones(1, 2)).sum().backward()
optimizer.step()
close_to(line.weight, begin - 1.0)

# Nothing keeps parameters that nobody has.
gone = weakref.ref(line.weight)
optimizer = line = None
gc.collect()
assert gone() is None
print("ok")
'''


def test_torch_ps_gradients_that_are_pushed_during_backward_lead_to_the_same_weights(torch_ranks):
    lines = torch_ranks(2, OVERLAP, flags=("--servers", 2))
    assert lines == [["ok"], ["ok"]]
