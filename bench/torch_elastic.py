#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Recovery of a script with Horovod's elastic interface: a random worker of three, or two, kills
itself with SIGKILL at a random moment, another one comes, and so on.

    bench/torch_elastic.py --kills 100

Reports the time from the kill to the end of the next step of the survivors (which have committed
every step), and how long the job was without the worker. It fails if a step was lost or done twice,
since each one changes the weights by the same, or if one took longer than --limit."""
import argparse
import faulthandler
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHOLE_STEPS = 5  # of all workers before the next kill
LATEST_S = 0.03  # behind the end of the last of them


def work(args):
    import torch
    import gradus.torch as hvd
    torch.set_num_threads(1)
    hvd.init()
    model = torch.nn.Linear(args.width, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0),
                                         model.named_parameters())
    folder, x = pathlib.Path(args.worker), torch.ones(1, args.width)
    state = hvd.elastic.TorchState(model, optimizer, step=0, kills=0, whole=0)

    def die(number, delay_s):
        time.sleep(delay_s)
        (folder / str(number)).write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    @hvd.elastic.run
    def train(state):
        while state.kills <= args.kills:
            faulthandler.dump_traceback_later(args.limit, exit=True)
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            state.step += 1
            record(state.kills)
            state.whole = state.whole + 1 if hvd.size() == args.workers else 0
            chosen = state.whole == WHOLE_STEPS
            state.kills += chosen
            state.commit()
            if chosen and state.kills <= args.kills:
                dice = random.Random(f"{args.seed} {state.kills}")
                delay_s = dice.uniform(0, LATEST_S)
                if dice.randrange(args.workers) == hvd.rank():
                    threading.Thread(target=die, args=(state.kills, delay_s), daemon=True).start()

    def record(kills):
        """Rank 0 writes when a step was that of another number of workers than the one before."""
        if hvd.rank() == 0 and hvd.size() != record.size:
            with open(folder / "steps", "a") as file:
                file.write(f"{kills} {hvd.size()} {time.monotonic()}\n")
        record.size = hvd.size()
    record.size = args.workers
    train(state)
    faulthandler.cancel_dump_traceback_later()
    if not torch.equal(model.weight, torch.full_like(model.weight, -state.step)):
        raise SystemExit(f"{state.step} steps have made {model.weight[0, 0]} of a weight")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, choices=(2, 3), default=3)
    parser.add_argument("--limit", type=float, default=300, help="seconds of a step at most")
    parser.add_argument("--width", type=int, default=1 << 16, help="weights of the model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    parser.add_argument("--build", default=str(ROOT / "build"), help="folder of a release build")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    environment = dict(os.environ, LIBGRADUS=f"{args.build}/libgradus.so",
                       PYTHONPATH=str(ROOT / "python"), OPENBLAS_NUM_THREADS="1",
                       OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        count = args.workers
        subprocess.run([f"{args.build}/gradus", "run", "-np", str(count), "--min-workers",
                        str(count - 1), "--max-workers", str(count), "--restarts",
                        str(args.kills), "--no-prefix", "--", args.python, __file__, "--worker",
                        name, *sys.argv[1:]], env=environment, check=True)
        killed = {number: float((folder / str(number)).read_text())
                  for number in range(1, args.kills + 1)}
        first = {}
        for line in (folder / "steps").read_text().splitlines():
            number, size, when = line.split()
            first.setdefault((int(number), int(size)), float(when))
    after = {size: [1e3 * (first[number, size] - when) for number, when in killed.items()
                    if (number, size) in first] for size in (count - 1, count)}
    print(json.dumps({"kills": args.kills, "seen": len(after[count - 1]), **{
        what: [round(one(after[size])) for one in (statistics.median, min, max)]
        for what, size in (("next_step_ms", count - 1), ("whole_again_ms", count))}}))


if __name__ == "__main__":
    main()
