#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The step of PyTorch's DistributedDataParallel with Gradus and with gloo, which take turns in the
same processes: an MLP 784-4096-4096-10 on one host.

    bench/torch_ddp.py --python /usr/bin/python3 --python OTHER

Each --python is an interpreter with a torch of its own. Reports the median of all steps of each
backend, and the median, smallest and largest of the rounds' ratios."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def measure(args):
    import torch
    import torch.distributed as dist
    import gradus.torch  # noqa: F401
    torch.set_num_threads(1)
    dist.init_process_group("gradus")
    groups = {"gradus": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    nn, width = torch.nn, args.width
    steps = {}
    for name, group in groups.items():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                              nn.Linear(width, 10))
        model = nn.parallel.DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x, y = torch.randn(args.batch, 784), torch.randint(0, 10, (args.batch,))

        def step(model=model, optimizer=optimizer, x=x, y=y):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        steps[name] = step
    laps = {name: [] for name in steps}
    for number in range(-1, args.rounds):  # one to warm up
        order = list(steps) if number % 2 else list(reversed(steps))
        for name in order:
            dist.barrier()
            lap = []
            for _ in range(args.steps):
                begin = time.perf_counter()
                steps[name]()
                lap.append(time.perf_counter() - begin)
            if number >= 0:
                laps[name].append(lap)
    if dist.get_rank() == 0:
        ratios = [statistics.median(a) / statistics.median(b)
                  for a, b in zip(laps["gradus"], laps["gloo"])]
        print(json.dumps({"torch": torch.__version__, "workers": dist.get_world_size(),
                          "batch": args.batch, "width": width, "rounds": args.rounds,
                          **{f"{name}_ms": round(1e3 * statistics.median(sum(of, [])), 2)
                             for name, of in laps.items()},
                          "ratio": round(statistics.median(ratios), 3),
                          "ratio_min": round(min(ratios), 3), "ratio_max": round(max(ratios), 3)}))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="interpreter; any number of times")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples of each worker")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=3, help="of each backend in a round")
    parser.add_argument("--build", default=str(ROOT / "build"), help="folder of a release build")
    parser.add_argument("--worker", action="store_true", help="is one of the processes")
    args = parser.parse_args()
    if args.worker:
        measure(args)
        return
    environment = dict(os.environ, LIBGRADUS=f"{args.build}/libgradus.so",
                       PYTHONPATH=str(ROOT / "python"), OPENBLAS_NUM_THREADS="1")
    for python in args.python or [sys.executable]:
        subprocess.run([f"{args.build}/gradus", "run", "-np", str(args.workers), "--no-prefix",
                        "--", python, __file__, "--worker", "--batch", str(args.batch), "--width",
                        str(args.width), "--rounds", str(args.rounds), "--steps", str(args.steps)],
                       env=environment, check=True)


if __name__ == "__main__":
    main()
