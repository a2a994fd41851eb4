#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bare training step of bench_step.c in PyTorch, with the same interface and JSON line.

One process and one thread by default; --ddp W starts W processes with DistributedDataParallel over
gloo on 127.0.0.1, each with one thread and batch / W samples, so that the global batch stays.
"""

import argparse
import json
import os
import socket
import statistics
import time


def build(name):
    import torch.nn as nn
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512),
                             nn.ReLU(), nn.Linear(512, 10))
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def measure(args, rank, world):
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = build(args.model)
    if world > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    lose = torch.nn.CrossEntropyLoss()
    batch = args.batch // world
    x = torch.randn(batch, 1, 28, 28)
    y = torch.randint(0, 10, (batch,))

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = lose(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(10):
        step()
    start = time.perf_counter()
    step()
    # Every process must take the same number of steps, or DDP waits for ever.
    count = torch.tensor([max(5, int(args.seconds / (time.perf_counter() - start)))])
    if world > 1:
        torch.distributed.broadcast(count, 0)
        torch.distributed.barrier()
    laps = []
    cpu = time.thread_time()
    begin = time.perf_counter()
    for _ in range(int(count)):
        lap = time.perf_counter()
        loss = step()
        laps.append(time.perf_counter() - lap)
    total = time.perf_counter() - begin
    cpu = time.thread_time() - cpu
    median = statistics.median(laps)
    return {"engine": "torch " + torch.__version__, "model": args.model, "batch": args.batch,
            "workers": world, "steps": len(laps), "step_us": round(median * 1e6, 1),
            "step_us_min": round(min(laps) * 1e6, 1),
            "samples_per_s": round(args.batch / median, 1),
            "samples_per_s_mean": round(args.batch * len(laps) / total, 1),
            "cpu_us": round(cpu / len(laps) * 1e6, 1), "loss": float(loss)}


def report(args, result):
    if args.json:
        print(json.dumps(result), flush=True)
    else:
        print("{engine} {model} batch {batch}, {workers} worker(s): {samples_per_s} samples/s, "
              "{step_us} us a step (best {step_us_min})".format(**result), flush=True)


def worker(rank, world, port, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= world:
        os.sched_setaffinity(0, {cores[rank]})
    import torch.distributed as dist
    dist.init_process_group("gloo", rank=rank, world_size=world)
    result = measure(args, rank, world)
    if rank == 0:
        report(args, result)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--batch", type=int, default=128, help="global batch")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--ddp", type=int, default=1, metavar="W", help="processes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.ddp < 1 or args.batch % args.ddp:
        parser.error("the batch must be a multiple of the number of processes")
    os.environ["OMP_NUM_THREADS"] = "1"
    if args.ddp == 1:
        report(args, measure(args, 0, 1))
        return
    import torch.multiprocessing as processes
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes.spawn(worker, args=(args.ddp, port, args), nprocs=args.ddp)


if __name__ == "__main__":
    main()
