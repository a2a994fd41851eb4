/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_NN_SUPPORT_H
#define GR_TESTS_NN_SUPPORT_H

#include "base/arena.h"
#include "doc/doc.h"
#include "nn/layer.h"
#include "nn/model.h"
#include "nn/optimizer.h"

/* A model from text, with weights from a seed and made-up samples. Fails the test on any error. */
typedef struct net {
    gr_arena arena;
    gr_doc *doc;
    gr_model_spec *spec;
    gr_model *model;
    size_t values_count, x_count, outputs_count;
    float *values, *gradients, *x, *targets;
    int32_t *labels;
    gr_batch batch;
    gr_diag diag;
} net;

typedef struct net_options {
    const char *layers; /* YAML */
    gr_shape input;
    int batch;
    gr_loss_kind loss;
    const char *backend;
    bool evaluation;
} net_options;

void net_open(net *n, const net_options *options);
void net_close(net *n);
/* Forward and backward; returns the loss, gradients in n->gradients. */
double net_step(net *n);
double net_loss(net *n);                /* forward only, in training mode */
double net_outputs(net *n, float *out); /* evaluation; returns the loss */

/* The status and sentence of reading a model. */
gr_status spec_status(const char *layers, const gr_shape *input, gr_diag *diag);

/* |a - b| over the larger norm of both; 0 if both are 0. */
double relative_distance(const float *a, const float *b, size_t count);

#define FEATURES(n) ((gr_shape){.dims = 1, .dim = {(n)}})
#define IMAGE(c, h, w) ((gr_shape){.dims = 3, .dim = {(c), (h), (w)}})

#endif
