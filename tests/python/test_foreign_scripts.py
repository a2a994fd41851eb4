# SPDX-License-Identifier: Apache-2.0
"""Scripts that nobody here wrote, unchanged: each ends with the loss of its run over gloo.

GRADUS_SCRIPTS names a folder with clones of their repositories, `horovod`, `pytorch-lightning`
and `examples` (PyTorch's, which want accelerators: foreign_driver.py gives them the CPU);
GRADUS_PYTHONS an interpreter that has torch, torchvision, lightning, accelerate and transformers.
"""
import gzip
import os
import pathlib
import re
import shutil
import struct

import pytest

from conftest import SOURCE, Ranks, has

pytestmark = pytest.mark.long
HERE = pathlib.Path(__file__).parent
SCRIPTS = pathlib.Path(os.environ.get("GRADUS_SCRIPTS", "/nonexistent"))
TRAINER = '''
import sys
import torch
import transformers
import gradus.torch

torch.distributed.init_process_group(sys.argv[1])  # accelerate knows no other name than gloo's
torch.manual_seed(1)
data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (64, 16))]
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
    vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
trainer = transformers.Trainer(model=model, train_dataset=data, args=transformers.TrainingArguments(
    "out", use_cpu=True, per_device_train_batch_size=8, max_steps=12, logging_steps=4, report_to=[],
    save_strategy="no", learning_rate=0.01, disable_tqdm=True))
print("loss", trainer.train().training_loss, torch.distributed.get_backend())
'''


def write_mnist(folder):
    """The digits of the repository as MNIST's files, where torchvision looks for them."""
    with gzip.open(SOURCE / "examples/digits/digits.csv.gz", "rt") as file:
        rows = [[float(word) for word in line.split(",")] for line in file]
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    inside = range(2, 26)
    for name, part in (("train", rows[:512]), ("t10k", rows[512:768])):
        images = bytes(int(row[(y - 2) // 3 * 8 + (x - 2) // 3] * 255 / 16)
                       if y in inside and x in inside else 0
                       for row in part for y in range(28) for x in range(28))
        labels = bytes(int(row[64]) for row in part)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">4I", 2051, len(part), 28, 28) + images)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2I", 2049, len(part)) + labels)
    return folder


class Foreign(Ranks):
    """Runs scripts with an interpreter that has certain modules."""

    def run(self, count, *words):
        """What the job writes."""
        done = self.gradus("run", "-np", count, "--", self.python, "-W", "ignore", *words,
                           env=self.environment, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def on(self, backend, count, *words):
        return self.run(count, HERE / "foreign_driver.py", backend, *words)


@pytest.fixture
def foreign(gradus, tmp_path):
    def make(*modules):
        named = [path for path in os.environ.get("GRADUS_PYTHONS", "").split(":") if path]
        python = next((path for path in named if all(has(path, one) for one in modules)), None)
        if python is None:
            pytest.skip(f"GRADUS_PYTHONS names no interpreter with {' and '.join(modules)}")
        made = Foreign(gradus, tmp_path, python)
        made.environment.update({
            "PYTHONPATH": f"{SOURCE}/python/horovod:{SOURCE}/python", "HOME": str(tmp_path),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "ACCELERATE_USE_CPU": "true",
            "TORCHELASTIC_RUN_ID": "1", "LT_ACCELERATOR": "cpu", "LT_STRATEGY": "ddp",
            "LT_CLI_USED": "1", "LT_NUM_NODES": "1"})
        return made
    return make


def script_of(*parts):
    path = SCRIPTS.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"GRADUS_SCRIPTS names no folder with {'/'.join(parts)}")
    return path


def numbers(pattern, output):
    """Sorted, since ranks write in any order."""
    return sorted(float(one) for one in re.findall(pattern, output))


def compare(pattern, found, expected):
    found, expected = numbers(pattern, found), numbers(pattern, expected)
    print("gradus", found, "gloo", expected)
    assert found and found == pytest.approx(expected, rel=1e-4, abs=1.5e-4)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["pytorch/pytorch_mnist.py",
                                  "elastic/pytorch/pytorch_mnist_elastic.py"])
def test_foreign_horovod_script_ends_with_the_loss_over_gloo(foreign, tmp_path, name, count):
    ranks, script = foreign("torchvision", "filelock"), script_of("horovod", "examples", name)
    words = [script, "--epochs", 2, "--data-dir", write_mnist(tmp_path / "data")]
    found = ranks.run(count, *words)
    (tmp_path / "horovod").mkdir()  # in place of the package
    (tmp_path / "horovod" / "__init__.py").write_text("")
    shutil.copy(HERE / "gloo_horovod.py", tmp_path / "horovod" / "torch.py")
    ranks.environment["PYTHONPATH"] = str(tmp_path)
    compare(r"(?:Loss|Average loss): ([\d.]+)", found, ranks.run(count, *words))


@pytest.mark.parametrize("name", ["pytorch/pytorch_synthetic_benchmark.py",
                                  "elastic/pytorch/pytorch_synthetic_benchmark_elastic.py"])
def test_foreign_horovod_benchmark_runs(foreign, name):
    script = script_of("horovod", "examples", name)
    out = foreign("torchvision").run(
        2, script, "--model", "resnet18", "--batch-size", 1, "--num-warmup-batches", 1,
        "--num-batches-per-iter", 1, "--num-iters", 2)
    assert "Total img/sec on 2 CPU(s)" in out


@pytest.mark.parametrize("count", [2, 4])
def test_foreign_lightning_script_ends_with_the_loss_over_gloo(foreign, tmp_path, count):
    ranks = foreign("lightning", "torchvision", "torchmetrics")
    ranks.environment["LT_DEVICES"] = str(count)
    example = script_of("pytorch-lightning", "examples", "fabric", "image_classifier")
    shutil.copytree(example, tmp_path / "examples" / "fabric" / "image_classifier")
    write_mnist(tmp_path / "Datasets")
    words = [tmp_path / "examples/fabric/image_classifier/train_fabric.py", "--epochs", 2]
    compare(r"Average loss: ([\d.]+)", ranks.on("gradus", count, *words),
            ranks.on("gloo", count, *words))


@pytest.mark.parametrize("name", ["tensor_parallel_example.py", "sequence_parallel_example.py"])
def test_foreign_pytorch_example_ends_with_the_loss_over_gloo(foreign, name):
    ranks = foreign("torch")
    ranks.environment["CPU_FOR_DEVICES"] = "1"
    script = script_of("examples", "distributed", "tensor_parallelism", name)
    compare(r"last loss (-?[\d.]+)", ranks.on("gradus", 2, script), ranks.on("gloo", 2, script))


def test_foreign_fsdp_example_runs(foreign):
    """Some of its weights begin with whatever the memory holds: its losses cannot be compared."""
    ranks = foreign("torch")
    ranks.environment["CPU_FOR_DEVICES"] = "1"
    out = ranks.on("gradus", 2, script_of("examples", "distributed", "FSDP2", "example.py"))
    assert out.count("last loss") == 2 and list((ranks.folder / "checkpoints").rglob("*.pt"))


@pytest.mark.parametrize("name", ["test_ops", "test_sync", "test_script"])
def test_foreign_accelerate_script_finds_its_values(foreign, name):
    """Those of `accelerate test`, which compare for themselves."""
    foreign("accelerate").on("gradus", 2, f"accelerate.test_utils.scripts.{name}")


@pytest.mark.parametrize("count", [2, 4])
def test_foreign_trainer_ends_with_the_loss_over_gloo(foreign, tmp_path, count):
    ranks = foreign("transformers", "accelerate")
    (tmp_path / "train.py").write_text(TRAINER)
    found, expected = (ranks.run(count, tmp_path / "train.py", one) for one in ("gradus", "gloo"))
    compare(r"loss ([\d.]+)", found, expected)
    assert found.count(" gradus\n") == count
