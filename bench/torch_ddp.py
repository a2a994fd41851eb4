#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The step of PyTorch's DistributedDataParallel with Gradus and with gloo, which take turns in the
same processes on one host: an MLP 784-4096-4096-10, a CNN, ResNet-18 and a small GPT.

    bench/torch_ddp.py --python /usr/bin/python3 --python OTHER --models mlp,gpt

Each --python is an interpreter with a torch of its own. `shared` is Gradus with the hook
gradus.torch.shared_buckets_hook, `hvd` its DistributedOptimizer, `horovod` that of Horovod, where
it is installed (its thread looks for work all the time, in the turns of the others as well: compare
it in a run of its own with --candidates hvd,horovod). `alone` is the same step without DDP, on all
workers at once: what no exchange can be faster than. For each model one line of JSON: of each
candidate the median of all steps in ms, the processor time of all workers for one step in ms (which
other programs on the machine hardly change), switches to other processes, and how many times as
long gloo and Horovod took in the rounds: median, smallest and largest."""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCHES = {"mlp": 64, "cnn": 64, "resnet18": 8, "gpt": 2}  # samples of each worker
DDP = ("gradus", "shared", "gloo")  # candidates with DistributedDataParallel
CONTEXT, WORDS = 64, 8192  # of the GPT


def mlp(nn):
    return nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
                         nn.Linear(4096, 10))


def cnn(nn):
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def resnet18(nn):
    """He et al. 2015, table 1: 11.7 million parameters."""
    class Block(nn.Module):
        def __init__(self, before, width, stride):
            super().__init__()
            self.way = nn.Sequential(nn.Conv2d(before, width, 3, stride, 1, bias=False),
                                     nn.BatchNorm2d(width), nn.ReLU(),
                                     nn.Conv2d(width, width, 3, 1, 1, bias=False),
                                     nn.BatchNorm2d(width))
            self.beside = nn.Identity() if stride == 1 and before == width else nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

        def forward(self, x):
            return (self.way(x) + self.beside(x)).relu()

    stages, before = [], 64
    for width in (64, 128, 256, 512):
        stages += [Block(before, width, 1 if width == 64 else 2), Block(width, width, 1)]
        before = width
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                         nn.MaxPool2d(3, 2, 1), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(512, 1000))


def gpt(nn):
    """Four layers of width 256 with 4 heads: 7.4 million parameters."""
    import torch

    class Gpt(nn.Module):
        def __init__(self, width=256):
            super().__init__()
            self.word, self.place = nn.Embedding(WORDS, width), nn.Embedding(CONTEXT, width)
            layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True,
                                               norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.out = nn.Linear(width, WORDS, bias=False)
            self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1))

        def forward(self, x):
            here = self.word(x) + self.place.weight
            return self.out(self.layers(here, self.mask)).flatten(0, 1)
    return Gpt()


MODELS = {"mlp": mlp, "cnn": cnn, "resnet18": resnet18, "gpt": gpt}


def samples(torch, name, batch):
    if name == "gpt":
        words = torch.randint(0, WORDS, (batch, CONTEXT + 1))
        return words[:, :-1], words[:, 1:].flatten()
    shape = {"mlp": (784,), "cnn": (1, 28, 28), "resnet18": (3, 64, 64)}[name]
    return torch.randn(batch, *shape), torch.randint(0, 10, (batch,))


def used():
    """Processor time of this process in s, and switches to other processes."""
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime, now.ru_nvcsw + now.ru_nivcsw


def measure(args):
    import torch
    import torch.distributed as dist
    import gradus.torch  # noqa: F401
    torch.set_num_threads(1)
    dist.init_process_group("gradus")
    gloo = dist.new_group(backend="gloo")
    groups = {name: gloo if name == "gloo" else dist.group.WORLD if name in DDP else None
              for name in args.candidates.split(",")}
    interfaces = {"hvd": gradus.torch}
    if "horovod" in groups:
        interfaces["horovod"] = start_horovod(dist)
    if "hvd" in groups:
        gradus.torch.init()
    for name in args.models.split(","):
        line = measure_model(args, torch, gradus, name, groups, interfaces)
        if dist.get_rank() == 0:
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()


def start_horovod(dist):
    """Horovod in these processes. Rank 0 is where they meet."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer
    rank, size, told = dist.get_rank(), dist.get_world_size(), [None]
    if rank == 0:
        start_horovod.server = RendezvousServer(0)
        told = [start_horovod.server.start()]
        start_horovod.server.init(get_host_assignments(parse_hosts(f"localhost:{size}"), size))
    dist.broadcast_object_list(told, 0)
    settings = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "CROSS_RANK": 0,
                "CROSS_SIZE": 1, "HOSTNAME": "localhost", "CONTROLLER": "gloo",
                "CPU_OPERATIONS": "gloo", "GLOO_IFACE": "lo", "GLOO_RENDEZVOUS_PORT": told[0],
                "GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in settings.items()})
    import horovod.torch as horovod
    horovod.init()
    return horovod


def measure_model(args, torch, gradus, name, groups, interfaces):
    dist, nn = torch.distributed, torch.nn
    batch = args.batch or BATCHES[name]
    steps = {}
    for candidate, group in groups.items():
        torch.manual_seed(1)
        model = MODELS[name](nn)
        size_mb = sum(one.numel() * one.element_size() for one in model.parameters()) / 1e6
        if group is not None:
            model = nn.parallel.DistributedDataParallel(
                model, process_group=group, gradient_as_bucket_view=args.bucket_view)
        if candidate == "shared":
            model.register_comm_hook(gradus.torch.SharedBuckets(group),
                                     gradus.torch.shared_buckets_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        if candidate in interfaces:
            optimizer = interfaces[candidate].DistributedOptimizer(
                optimizer, named_parameters=model.named_parameters())
        x, y = samples(torch, name, batch)

        def step(model=model, optimizer=optimizer, x=x, y=y):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        steps[candidate] = step
    laps = {candidate: [] for candidate in steps}
    costs = {candidate: torch.zeros(2, dtype=torch.float64) for candidate in steps}
    for number in range(-3, args.rounds):  # three to warm up: DDP makes its buckets anew in one
        for candidate in list(steps) if number % 2 else list(reversed(steps)):
            dist.barrier()
            before, lap = used(), []
            for _ in range(args.steps):
                begin = time.perf_counter()
                steps[candidate]()
                lap.append(time.perf_counter() - begin)
            if number >= 0:
                laps[candidate].append(lap)
                costs[candidate] += torch.tensor([now - then
                                                  for now, then in zip(used(), before)])
    for cost in costs.values():
        dist.all_reduce(cost)
    count = args.rounds * args.steps
    line = {"torch": torch.__version__, "model": name, "gradients_mb": round(size_mb, 1),
            "workers": dist.get_world_size(), "batch": batch, "rounds": args.rounds}
    for candidate, cost in costs.items():
        line[candidate] = {"ms": round(1e3 * statistics.median(sum(laps[candidate], [])), 2),
                           "cpu_ms": round(1e3 * float(cost[0]) / count, 2),
                           "switches": round(float(cost[1]) / count, 1)}
        for peer in [one for one in ("gloo", "horovod") if one in laps and one != candidate]:
            ratios = [statistics.median(b) / statistics.median(a)
                      for a, b in zip(laps[candidate], laps[peer])]
            line[candidate][f"{peer}_takes"] = [round(one(ratios), 3)
                                             for one in (statistics.median, min, max)]
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="interpreter; any number of times")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--candidates", default="gradus,shared,gloo,alone")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, help="samples of each worker; default by model")
    parser.add_argument("--bucket-view", action="store_true", help="gradient_as_bucket_view of DDP")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=3, help="of each candidate in a round")
    parser.add_argument("--build", default=str(ROOT / "build"), help="folder of a release build")
    parser.add_argument("--worker", action="store_true", help="is one of the processes")
    args = parser.parse_args()
    if args.worker:
        measure(args)
        return
    environment = dict(os.environ, LIBGRADUS=f"{args.build}/libgradus.so",
                       PYTHONPATH=str(ROOT / "python"), OPENBLAS_NUM_THREADS="1",
                       OMP_NUM_THREADS="1")
    for python in args.python or [sys.executable]:
        subprocess.run([f"{args.build}/gradus", "run", "-np", str(args.workers), "--no-prefix",
                        "--", python, __file__, "--worker", *sys.argv[1:]],
                       env=environment, check=True)


if __name__ == "__main__":
    main()
