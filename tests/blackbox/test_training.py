# SPDX-License-Identifier: Apache-2.0
"""Training through the command: the same bits, what is said, what is written."""

import functools
import hashlib
import json
import os
import pathlib
import re
import struct
import subprocess

import pytest
from conftest import cases, is_sanitized

SOURCE = pathlib.Path(os.environ.get("GRADUS_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("GRADUS_BUILD_DIR", SOURCE / "build"))
GRADUS = str(BUILD / "gradus")
DIGITS = SOURCE / "examples" / "digits"
LIMIT_S = 120


def gradus(*words, env=None, check=True):
    done = subprocess.run([GRADUS, *map(str, words)], capture_output=True, text=True,
                          timeout=LIMIT_S, env=dict(os.environ, **(env or {})))
    if check and done.returncode != 0:
        pytest.fail(f"gradus {' '.join(map(str, words))}: exit code "
                    f"{done.returncode}\n{done.stderr}")
    return done


def short_job(folder, name, **changes):
    """An example's job, of a few steps, with its output in `folder`; other top keys as given."""
    text = (DIGITS / f"{name}.yaml").read_text()
    text = re.sub(r"(?m)^(epochs|steps|output|eval_every):.*\n", "", text)
    text = re.sub(r"(?m)^(\s+file:\s*)\S+", lambda m: f"{m[1]}{DIGITS / 'digits.csv.gz'}", text)
    top = {"steps": 8, "output": folder / "out", **changes}
    for key, value in top.items():
        text = re.sub(rf"(?m)^{key}:.*\n", "", text)
        text += f"\n{key}: {value}"
    path = folder / f"{name}.yaml"
    path.write_text(text + "\n")
    return path


def run_job(job, workers, link="shm", env=None):
    """The last JSON object of a run."""
    done = gradus("run", "-np", workers, "--link", link, "--json", job, env=env)
    return json.loads(done.stdout.splitlines()[-1])


@functools.lru_cache(maxsize=None)
def reference_hash(name, base):
    folder = pathlib.Path(base) / f"reference-{name}"
    folder.mkdir()
    return run_job(short_job(folder, name), 1)["weights_sha256"]


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    return str(tmp_path_factory.mktemp("hashes"))


@pytest.mark.parametrize("name,link,algorithm,workers", cases(
    7, ["cnn", "mlp"], ["shm", "tcp"], ["direct", "halving-doubling", "tree"], [1, 2, 3, 4, 8]))
def test_same_bits(name, link, algorithm, workers, base, tmp_path):
    job = short_job(tmp_path, name)
    wanted = reference_hash(name, base)
    env = {"GRADUS_ALGORITHM": f"allreduce={algorithm}"}
    for turn in range(2):
        end = run_job(job, workers, link, env)
        assert end["weights_sha256"] == wanted, f"run {turn + 1}"
        assert end["workers"] == workers


def compressed_job(folder, name, compression):
    job = short_job(folder, name)
    job.write_text(job.read_text().replace("distribution:\n",
                                           f"distribution:\n  compression: {compression}\n"))
    return job


@functools.lru_cache(maxsize=None)
def compressed_hash(name, compression, base):
    folder = pathlib.Path(base) / f"compressed-{name}-{compression}"
    folder.mkdir()
    return run_job(compressed_job(folder, name, compression), 1)["weights_sha256"]


@pytest.mark.parametrize("name,compression,workers", cases(
    5, ["cnn", "mlp"], ["f16", "bf16", "topk", "sparse"], [2, 3, 8]))
def test_compressed_has_the_same_bits(name, compression, workers, base, tmp_path):
    """What travels is less; the result still does not depend on how many workers there are."""
    wanted = compressed_hash(name, compression, base)
    plain = reference_hash(name, base)
    assert (wanted == plain) == (compression == "sparse"), "sparse alone loses nothing"
    job = compressed_job(tmp_path, name, compression)
    link = "tcp" if workers == 3 else "shm"
    assert run_job(job, workers, link)["weights_sha256"] == wanted


def test_a_broken_order_is_seen(base, tmp_path):
    """A ring adds in another order: were that not visible, the tests above would prove nothing."""
    job = short_job(tmp_path, "mlp")
    job.write_text(job.read_text().replace("distribution:\n", "distribution:\n  exact: false\n"))
    wanted = reference_hash("mlp", base)
    env = {"GRADUS_EXACT": "0", "GRADUS_ALGORITHM": "allreduce=direct"}
    assert run_job(job, 4, env=env)["weights_sha256"] == wanted
    env["GRADUS_ALGORITHM"] = "allreduce=ring"
    assert run_job(job, 4, env=env)["weights_sha256"] != wanted


@pytest.mark.parametrize("setting", ["shm", "tcp"])
def test_the_link_of_the_job_file_is_used(setting, base, tmp_path):
    job = short_job(tmp_path, "mlp")
    job.write_text(re.sub(r"(?m)^distribution:\n(\s+)", rf"distribution:\n\1link: {setting}\n\1",
                          job.read_text()))
    lines = [json.loads(line)
             for line in gradus("run", "-np", 2, "--json", job).stdout.splitlines()]
    assert lines[0]["link"] == setting
    assert lines[-1]["weights_sha256"] == reference_hash("mlp", base)
    # What the command line says goes before what the file says.
    other = {"shm": "tcp", "tcp": "shm"}[setting]
    lines = gradus("run", "-np", 2, "--json", "--link", other, job).stdout.splitlines()
    assert json.loads(lines[0])["link"] == other


def test_job_without_shards_has_the_same_bits_for_any_number_of_workers(tmp_path):
    job = short_job(tmp_path, "mlp")
    job.write_text(re.sub(r"(?m)^distribution:\n(  .*\n)+", "", job.read_text()))
    assert "shards:" not in job.read_text()
    ends = [run_job(job, workers) for workers in (1, 2, 3)]
    assert [end["shards"] for end in ends] == [8, 8, 8]
    assert len({end["weights_sha256"] for end in ends}) == 1
    refused = gradus("run", "-np", 9, job, check=False)
    assert refused.returncode == 2
    assert "9 workers (-np) are more than the 8 shards" in refused.stderr
    assert "set shards: 16" in refused.stderr


def test_another_seed_is_another_model(base, tmp_path):
    job = short_job(tmp_path, "mlp", seed=12345)
    assert run_job(job, 1)["weights_sha256"] != reference_hash("mlp", base)


def test_json_lines_and_metrics_file(tmp_path):
    job = short_job(tmp_path, "mlp", epochs=2, eval_every=1)
    job.write_text(re.sub(r"(?m)^steps:.*\n", "", job.read_text()))
    done = gradus("run", "-np", 2, "--json", job)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["event"] for line in lines] == ["start", "epoch", "epoch", "end"]
    end = lines[-1]
    for key in ("test_accuracy", "weights_sha256", "workers", "steps", "samples_per_s",
                "comm_wait_share"):
        assert key in end
    assert 0.0 <= end["comm_wait_share"] <= 1.0
    assert end["samples_per_s"] > 0
    assert lines[2]["test_accuracy"] == end["test_accuracy"]
    metrics = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in metrics] == lines


def test_weights_file_and_eval(tmp_path):
    job = short_job(tmp_path, "cnn", steps=60)
    end = run_job(job, 2)
    path = tmp_path / "out" / "model.safetensors"
    assert pathlib.Path(end["weights"]) == path
    data = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + header_bytes])
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    assert header_bytes % 8 == 0
    assert list(tensors) == sorted(tensors)
    sha = hashlib.sha256()
    for name in sorted(tensors):
        begin, stop = tensors[name]["data_offsets"]
        sha.update(data[8 + header_bytes:][begin:stop])
    assert sha.hexdigest() == end["weights_sha256"]
    assert not list((tmp_path / "out").glob("*tmp*"))
    again = json.loads(gradus("eval", "--json", job, path).stdout.splitlines()[-1])
    for key in ("test_accuracy", "test_loss", "weights_sha256"):
        assert again[key] == end[key]

    path.write_bytes(data[:-10])
    done = gradus("eval", job, path, check=False)
    assert done.returncode != 0
    assert "truncated" in done.stderr


def test_accuracy(tmp_path):
    """The examples as they are, but for the output folder."""
    for name, wanted in (("mlp", 0.95), ("cnn", 0.975))[:1 if is_sanitized() else 2]:
        done = gradus("run", "-np", 2, "--json", "--output", tmp_path / name,
                      DIGITS / f"{name}.yaml")
        assert json.loads(done.stdout.splitlines()[-1])["test_accuracy"] >= wanted


def test_plain_lines(tmp_path):
    done = gradus("run", "-np", 2, short_job(tmp_path, "mlp"))
    assert "\r" not in done.stdout
    assert re.search(r"epoch 1/1  loss \d\.\d+  accuracy +[\d.]+ %", done.stdout)
    assert re.search(r"test accuracy [\d.]+ % \(\d+ of 360\)", done.stdout)
    assert re.search(r"sha256 [0-9a-f]{64}", done.stdout)


@pytest.mark.parametrize("workers", [1, 3])
def test_nan_is_named(workers, tmp_path):
    job = short_job(tmp_path, "mlp", steps=50)
    job.write_text(re.sub(r"learning_rate:\s*[\d.e+-]+", "learning_rate: 1.0e+6", job.read_text()))
    done = gradus("run", "-np", workers, job, check=False)
    assert done.returncode == 1
    assert re.search(r"step \d+: the (loss|gradient of \S+) became (NaN|infinite): first seen in "
                     r"the "
                     r"(output|gradient) of layer \"\S+\" on rank \d+ \(shard \d+\); lower the "
                     r"learning rate \(1e\+06\)", done.stderr), done.stderr
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_dry_run(tmp_path):
    done = gradus("run", "--dry-run", "-np", 4, short_job(tmp_path, "cnn"))
    assert "conv" in done.stdout
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
