/* SPDX-License-Identifier: Apache-2.0 */
/* Push-pulls by ps-lite, as bench_ps does them: servers add what all workers push to their values,
 * and answer with these. The role of the process is in its environment (DMLC_ROLE, ...).
 *
 *   program SIZES TIME_US      sizes in bytes with commas between */
#include "peer.h"

#include <ps/ps.h>

#include <vector>

namespace {

/* One slice of each size, in the order of the keys that begin there. */
struct Slice {
    std::vector<float> sum, values;
    std::vector<ps::KVMeta> waiting;
};

class Sums {
  public:
    void operator()(const ps::KVMeta &meta, const ps::KVPairs<float> &data,
                    ps::KVServer<float> *server)
    {
        Slice &slice = slices_[data.keys[0]];
        size_t count = data.vals.size();
        slice.sum.resize(count);
        slice.values.resize(count);
        for (size_t i = 0; i < count; i++) {
            slice.sum[i] = (slice.waiting.empty() ? 0 : slice.sum[i]) + data.vals[i];
        }
        slice.waiting.push_back(meta);
        if (slice.waiting.size() < (size_t)ps::NumWorkers()) {
            return;
        }
        for (size_t i = 0; i < count; i++) {
            slice.values[i] += slice.sum[i];
        }
        ps::KVPairs<float> answer;
        answer.keys = data.keys;
        answer.lens = data.lens;
        answer.vals.reset(slice.values.data(), count, [](float *) {});
        for (const ps::KVMeta &who : slice.waiting) {
            server->Response(who, answer);
        }
        slice.waiting.clear();
    }

  private:
    std::unordered_map<ps::Key, Slice> slices_;
};

int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void measure(ps::KVWorker<float> *worker, int number, size_t bytes, double time_us)
{
    size_t count = bytes / sizeof(float), servers = (size_t)ps::NumServers();
    /* What is small goes to one server, as with us. */
    size_t slices = count < 4096 ? 1 : servers;
    ps::SArray<ps::Key> keys;
    ps::SArray<int> lens;
    const auto &ranges = ps::Postoffice::Get()->GetServerKeyRanges();
    for (size_t i = 0; i < slices; i++) {
        keys.push_back(ranges[i].begin() + (ps::Key)number);
        lens.push_back((int)(count * (i + 1) / slices - count * i / slices));
    }
    ps::SArray<float> gradient(count, 1.0f), values(count, 0.0f);
    std::vector<double> samples;
    double over = peer_now_us() + time_us;
    /* The time to stop is the same for all: worker 0 says it in its gradient. */
    for (bool last = false; !last;) {
        double start_us = peer_now_us();
        gradient[0] = ps::MyRank() == 0 && start_us > over ? 0.5f : 1.0f;
        worker->Wait(worker->ZPushPull(keys, gradient, &values, &lens));
        samples.push_back(peer_now_us() - start_us);
        last = values[0] != (float)(ps::NumWorkers() * samples.size());
    }
    double want = (double)ps::NumWorkers() * samples.size();
    size_t wrong = 0;
    for (size_t i = 1; i < count; i++) {
        wrong += values[i] != (float)want;
    }
    qsort(samples.data(), samples.size(), sizeof(double), by_value);
    if (ps::MyRank() == 0) {
        printf("{\"op\": \"push-pull\", \"size_bytes\": %zu, \"steps\": %zu, "
               "\"time_us_median\": %.3f, \"wrong\": %zu}\n",
               bytes, samples.size(), samples[samples.size() / 2], wrong);
        fflush(stdout);
    }
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s SIZES TIME_US\n", argv[0]);
        return 2;
    }
    ps::Start(0);
    if (ps::IsServer()) {
        auto *server = new ps::KVServer<float>(0);
        server->set_request_handle(Sums());
        ps::RegisterExitCallback([server]() { delete server; });
    }
    if (ps::IsWorker()) {
        ps::KVWorker<float> worker(0, 0);
        int number = 0;
        for (char *word = strtok(argv[1], ","); word != nullptr; word = strtok(nullptr, ",")) {
            ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
            measure(&worker, number++, (size_t)strtoull(word, nullptr, 10), atof(argv[2]));
        }
    }
    ps::Finalize(0, true);
    return 0;
}
