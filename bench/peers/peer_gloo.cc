/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of peer.h on Gloo's library over TCP. The ranks meet through files.
 *   environment: RANK, WORLD_SIZE, PEER_FOLDER (empty at start), PEER_HOST (address to listen at),
 *   PEER_ALGORITHM: ring, bcube (today's functions), halving-doubling, ring-chunked (classes) */
#include "peer.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

struct Gloo {
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::string algorithm;
    std::function<void()> operation; // of the size at hand
};

std::string from_environment(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value != nullptr ? value : otherwise;
}

// The options hold the buffers; both live as long as the operation.
std::function<void()> allreduce(Gloo *g, peer_case *c)
{
    std::vector<float *> buffers{c->out};
    int count = static_cast<int>(c->count);
    if (g->algorithm == "halving-doubling") {
        auto all =
            std::make_shared<gloo::AllreduceHalvingDoubling<float>>(g->context, buffers, count);
        return [all] { all->run(); };
    }
    if (g->algorithm == "ring-chunked") {
        auto all = std::make_shared<gloo::AllreduceRingChunked<float>>(g->context, buffers, count);
        return [all] { all->run(); };
    }
    auto options = std::make_shared<gloo::AllreduceOptions>(g->context);
    options->setAlgorithm(g->algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                  : gloo::AllreduceOptions::Algorithm::RING);
    options->setOutput(c->out, c->count);
    options->setReduceFunction(
        static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
    return [options] { gloo::allreduce(*options); };
}

std::function<void()> rooted(Gloo *g, peer_case *c)
{
    bool root = c->rank == 0;
    size_t all = c->count * static_cast<size_t>(c->size);
    if (peer_is(c, "broadcast")) {
        auto options = std::make_shared<gloo::BroadcastOptions>(g->context);
        options->setOutput(c->out, c->count);
        options->setRoot(0);
        return [options] { gloo::broadcast(*options); };
    }
    if (peer_is(c, "reduce")) {
        auto options = std::make_shared<gloo::ReduceOptions>(g->context);
        options->setInput(c->in, c->count);
        options->setOutput(c->out, c->count);
        options->setRoot(0);
        options->setReduceFunction(
            static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
        return [options] { gloo::reduce(*options); };
    }
    if (peer_is(c, "gather")) {
        auto options = std::make_shared<gloo::GatherOptions>(g->context);
        options->setInput(c->in, c->count);
        if (root) {
            options->setOutput(c->out, all);
        }
        options->setRoot(0);
        return [options] { gloo::gather(*options); };
    }
    auto options = std::make_shared<gloo::ScatterOptions>(g->context);
    if (root) {
        std::vector<float *> blocks;
        for (int i = 0; i < c->size; i++) {
            blocks.push_back(c->in + static_cast<size_t>(i) * c->count);
        }
        options->setInputs(blocks, c->count);
    }
    options->setOutput(c->out, c->count);
    options->setRoot(0);
    return [options] { gloo::scatter(*options); };
}

std::function<void()> unrooted(Gloo *g, peer_case *c)
{
    size_t all = c->count * static_cast<size_t>(c->size);
    if (peer_is(c, "allgather")) {
        auto options = std::make_shared<gloo::AllgatherOptions>(g->context);
        options->setInput(c->in, c->count);
        options->setOutput(c->out, all);
        return [options] { gloo::allgather(*options); };
    }
    if (peer_is(c, "alltoall")) {
        auto options = std::make_shared<gloo::AlltoallOptions>(g->context);
        options->setInput(c->in, all);
        options->setOutput(c->out, all);
        return [options] { gloo::alltoall(*options); };
    }
    if (peer_is(c, "barrier")) {
        auto options = std::make_shared<gloo::BarrierOptions>(g->context);
        return [options] { gloo::barrier(*options); };
    }
    if (peer_is(c, "sendrecv")) {
        std::shared_ptr<gloo::transport::UnboundBuffer> from =
            g->context->createUnboundBuffer(c->in, c->count * sizeof(float));
        std::shared_ptr<gloo::transport::UnboundBuffer> to =
            g->context->createUnboundBuffer(c->out, c->count * sizeof(float));
        int next = (c->rank + 1) % c->size, last = (c->rank + c->size - 1) % c->size;
        return [from, to, next, last] {
            to->recv(last, 1);
            from->send(next, 1);
            from->waitSend();
            to->waitRecv();
        };
    }
    return nullptr;
}

bool prepare(void *arg, peer_case *c)
{
    auto *g = static_cast<Gloo *>(arg);
    if (peer_is(c, "allreduce")) {
        g->operation = allreduce(g, c);
    } else if (peer_is(c, "broadcast") || peer_is(c, "reduce") || peer_is(c, "gather") ||
               peer_is(c, "scatter")) {
        g->operation = rooted(g, c);
    } else {
        g->operation = unrooted(g, c); // reduce-scatter is in place over all blocks or not at all
    }
    return g->operation != nullptr;
}

void run(void *arg, peer_case *)
{
    static_cast<Gloo *>(arg)->operation();
}

void sum(void *arg, double *values, int count)
{
    auto *g = static_cast<Gloo *>(arg);
    gloo::AllreduceOptions options(g->context);
    options.setOutput(values, static_cast<size_t>(count));
    options.setReduceFunction(
        static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<double>));
    gloo::allreduce(options);
}

void finish(void *arg)
{
    static_cast<Gloo *>(arg)->operation = nullptr;
}

} // namespace

int main(int argc, char **argv)
{
    int rank = atoi(from_environment("RANK", "0").c_str());
    int size = atoi(from_environment("WORLD_SIZE", "1").c_str());
    Gloo g;
    g.algorithm = from_environment("PEER_ALGORITHM", "ring");
    gloo::transport::tcp::attr attr(from_environment("PEER_HOST", "127.0.0.1").c_str());
    auto device = gloo::transport::tcp::CreateDevice(attr);
    g.context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    gloo::rendezvous::FileStore store(from_environment("PEER_FOLDER", "."));
    g.context->connectFullMesh(store, device);
    std::string operation = argc > 1 ? argv[1] : "";
    bool separate = operation == "alltoall" || operation == "sendrecv" || operation == "reduce" ||
                    operation == "allgather" || operation == "gather" || operation == "scatter";
    const peer_calls calls = {&g, prepare, run, sum, finish};
    int code = peer_main(argc, argv, &calls, rank, size, separate);
    double nothing = 0;
    sum(&g, &nothing, 1); // nobody leaves while another one is still at work
    return code;
}
