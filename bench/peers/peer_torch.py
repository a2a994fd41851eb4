#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Allreduce of torch.distributed over gloo, measured and reported as the programs of peer.h do.

    peer_torch.py allreduce SIZES TIME_US     environment: RANK, WORLD_SIZE, PEER_FOLDER"""
import datetime
import json
import os
import sys
import time

import torch
import torch.distributed as dist

SAMPLES_MAX = 65536


def repeat(buffer, iterations):
    dist.barrier()
    samples = []
    start = before = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(buffer)
        now = time.perf_counter()
        samples.append(now - before)
        before = now
    return samples, (before - start) / iterations


def total(value):
    tensor = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(tensor)
    return tensor.item()


def wrong(buffer, rank, size):
    index = torch.arange(buffer.numel()) % 1021 * 7
    buffer.copy_((index + rank * 3) % 13)
    dist.all_reduce(buffer)
    want = sum(((index + r * 3) % 13).float() for r in range(size))
    return int((buffer != want).sum())


def main():
    operation, sizes, time_us = sys.argv[1:4]
    if operation != "allreduce":
        sys.exit(3)
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.path.join(os.environ["PEER_FOLDER"], "torch"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=120))
    for size_bytes in map(int, sizes.split(",")):
        buffer = torch.zeros(max(size_bytes // 4, 1), dtype=torch.float32)
        bad = wrong(buffer, rank, size)
        buffer.zero_()
        iterations = 1
        for share in (0.1, 1):
            mean = total(repeat(buffer, iterations)[1]) / size
            iterations = min(max(int(share * float(time_us) / 1e6 / (mean + 1e-8)), 1), SAMPLES_MAX)
        samples, mean = repeat(buffer, iterations)
        mean = total(mean) / size
        samples = torch.tensor(samples, dtype=torch.float64)
        dist.all_reduce(samples)
        bad = total(bad + wrong(buffer, rank, size))
        if rank == 0:
            print(json.dumps({"op": operation, "size_bytes": buffer.numel() * 4, "ranks": size,
                              "time_us_mean": mean * 1e6,
                              "time_us_median": samples.median().item() / size * 1e6,
                              "wrong": int(bad)}), flush=True)
    dist.barrier()


main()
