# SPDX-License-Identifier: Apache-2.0
"""Horovod's elastic training: a worker is killed, another one comes, and nothing is lost or done
twice."""
import ast

import pytest

PROGRAM = '''
import os
import signal
import torch
import gradus.torch as hvd

victim = os.environ["GRADUS_RANK"] == "1" and "GRADUS_JOINING" not in os.environ
both = hvd.ProcessSet([0, 1])
hvd.init(process_sets=[both])
model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0),
                                     model.named_parameters())
sizes, errors = [], []


@hvd.elastic.run
def train(state):
    """Until the job is whole again; every step changes the weights by the same."""
    while state.step < 20 or hvd.size() < 3:
        if victim and state.step == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            optimizer.zero_grad()
            model(torch.tensor([[1.0, 2.0]])).sum().backward()
            optimizer.step()
        except hvd.HorovodInternalError as error:
            errors.append((state.step, str(error)))
            raise
        state.step += 1
        if state.step % 3 == 0:
            state.commit()
    return state.step


state = hvd.elastic.TorchState(model, optimizer, step=0)
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])
step = train(state)
assert model.weight.tolist() == [[-step, -2 * step]], (model.weight, step)
assert all(at == 7 and "rank 1" in text for at, text in errors), errors
if both.included():
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=both) == 2

# A state goes back to its last commit, and a sampler gives what nobody has done.
state.save()
state.step = -1
state.restore()
assert state.step == step
sampler = hvd.elastic.ElasticSampler(range(11), shuffle=False)
state = hvd.elastic.TorchState(sampler=sampler)
assert list(sampler) == [*range(hvd.rank(), 11, 3), 0][:4] and len(sampler) == 4
if hvd.rank() == 0:  # the others have come in the places of lost ones
    sampler.record_batch(0, 2)
state.sync()
assert sampler.state_dict() == {"epoch": 0, "processed_num": 6} and len(sampler) == 2
left = sum(hvd.allgather_object(list(sampler)), [])
assert set(left) == set(range(6, 11)) and len(left) == 6
sampler.set_epoch(1)
assert len(sampler) == 4
shuffled = hvd.elastic.ElasticSampler(range(11), seed=3)
first = sum(zip(*hvd.allgather_object(list(shuffled))), ())
shuffled.record_batch(0, 1)
shuffled.reset()
assert sorted(first[:11]) == list(range(11))
assert sum(zip(*hvd.allgather_object(list(shuffled))), ())[:8] == first[3:11]

# The function of a program is called with the object alone.
own = hvd.elastic.ObjectState(lambda one: hvd.broadcast_object(one), hvd.rank, place=hvd.rank())
own.sync()
assert own.place == 0

# Any rank may ask for a change, and programs look whether one has.
assert state._host_messages.empty()
state.on_hosts_updated()
assert not state._host_messages.empty()
try:
    hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, x=1).check_host_updates()
    state.check_host_updates()
except hvd.HostsUpdatedInterrupt:
    print((sizes, len(errors)))
'''


def test_horovod_elastic_goes_on_without_a_killed_worker_and_with_another(torch_ranks):
    lines = torch_ranks(3, PROGRAM, flags=["--min-workers", 1, "--max-workers", 3, "--restarts", 1])
    found = sorted((ast.literal_eval(line) for line, in lines), key=lambda one: len(one[0]))
    assert found[0] == ([], 0)  # the worker that has come
    for sizes, errors in found[1:]:
        assert (sizes[0], sizes[-1], errors) == (2, 3, 1), found


def test_horovod_error_ends_a_job_that_needs_all_workers(torch_ranks):
    lines = torch_ranks(2, '''
        import os
        import signal
        import torch
        import gradus.torch as hvd
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the job ends: it still has to say why
        hvd.init()

        @hvd.elastic.run
        def train(state):
            hvd.allreduce(torch.ones(1))
            if hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            hvd.allreduce(torch.ones(1))
        try:
            train(hvd.elastic.TorchState())
        except hvd.HorovodInternalError as error:
            print("rank 1 died" in str(error), "--min-workers" in str(error.__cause__))
        ''', code=1)
    assert lines == [["True True"], []], torch_ranks.err


HOSTS = '''
import os
import socket
import sys
import threading
import torch
import gradus.torch as hvd

hvd.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0),
                                     model.named_parameters())
sizes = []


def name(*lines):
    if hvd.rank() == 0:
        with open("hosts.new", "w") as file:
            file.write("\\n".join(lines) + "\\n")
        os.replace("hosts.new", "hosts.list")


@hvd.elastic.run
def train(state):
    """Until another host has come and gone."""
    sizes.append(hvd.size())
    while state.phase < 3:
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        state.step += 1
        if state.phase == 0:
            name("localhost:2", socket.gethostname() + ":1")
            state.phase = 1
        elif state.phase == 1 and hvd.size() == 3:
            name("localhost:2")
            state.phase = 2
        elif state.phase == 2 and hvd.size() == 2:
            state.phase = 3
        state.commit()
        threading.Event().wait(0.01)  # the worker that comes needs the cores as well


state = hvd.elastic.TorchState(model, optimizer, step=0, phase=0)
train(state)
print((sizes, model.weight.item() == -state.step))
'''


@pytest.mark.long
def test_horovod_elastic_goes_on_while_hosts_come_and_go(torch_ranks):
    (torch_ranks.folder / "hosts.list").write_text("localhost:2\n")
    script = torch_ranks.folder / "hosts.sh"
    script.write_text("#!/bin/sh\ncat hosts.list\n")
    script.chmod(0o755)
    done = torch_ranks.gradus("run", "-np", 2, "--min-np", 1, "--max-np", 3, "--no-prefix",
                        "--host-discovery-script", script, "--discovery-interval", "200ms", "--",
                        *torch_ranks.words, torch_ranks.write(HOSTS), env=torch_ranks.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["([2, 3, 2], True)"] * 2, done.stderr


def test_horovod_elastic_goes_on_when_a_worker_is_lost_in_a_reset(torch_ranks):
    lines = torch_ranks(3, '''
        import os
        import signal
        import torch
        import gradus.torch as hvd
        hvd.init()
        first, resets = hvd.rank(), []


        def reset():
            resets.append(hvd.size())
            if first == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            hvd.add_process_set([0]) if hvd.size() > 1 else hvd.allreduce(torch.ones(1))


        @hvd.elastic.run
        def train(state):
            while hvd.size() > 1:
                if first == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                hvd.allreduce(torch.ones(1))
            return state.step


        state = hvd.elastic.TorchState(step=7)
        state.register_reset_callbacks([reset])
        print(train(state), resets)
        ''', flags=["--min-workers", 1, "--max-workers", 3])
    assert lines == [["7 [2, 1]"], [], []]
