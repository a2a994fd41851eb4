/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/backend.h"

#include "base/fail.h"
#include "base/text.h"
#include "nn/layer.h"

#include <string.h>

enum { BACKENDS_MAX = 16 };

static const gr_backend_kernels none[] = {{NULL, NULL}};
static const gr_backend reference = {.name = "reference", .kernels = none};

static gr_status open_onednn(gr_model *model, gr_diag *diag)
{
    gr_status status = gr_dnn_create(&model->dnn, diag);
    if (status != GR_OK) {
        return status;
    }
    model->input_layout =
        gr_layout_plain(model->dnn, model->config.batch, &model->config.spec->input);
    return gr_layout_check(model->input_layout, "the model's input", diag);
}

/* The kernels of relu, dropout, flatten and global_pool are our own passes in either backend; those
 * of sigmoid, tanh and softmax are in this one. */
static const gr_backend_kernels onednn_kernels[] = {
    {&gr_linear_ops, &gr_linear_onednn},
    {&gr_conv2d_ops, &gr_conv2d_onednn},
    {&gr_batch_norm_ops, &gr_batch_norm_onednn},
    {&gr_gelu_ops, &gr_gelu_onednn},
    {&gr_sigmoid_ops, &gr_sigmoid_onednn},
    {&gr_tanh_ops, &gr_tanh_onednn},
    {&gr_softmax_ops, &gr_softmax_onednn},
    {&gr_max_pool_ops, &gr_max_pool_onednn},
    {&gr_avg_pool_ops, &gr_avg_pool_onednn},
    {&gr_add_ops, &gr_add_onednn},
    {NULL, NULL},
};
static const gr_backend onednn = {.name = "onednn", .open = open_onednn, .kernels = onednn_kernels};

static const gr_backend *const backends[] = {&onednn, &reference, NULL};

gr_status gr_backend_find(const char *name, const gr_backend **backend_out, gr_diag *diag)
{
    const char *names[2 * BACKENDS_MAX + 1] = {NULL};
    int count = 0;
    for (int list = 0; list < 2; list++) {
        const gr_backend *const *at = list == 0 ? backends : gr_extra_backends;
        for (; *at != NULL && count < 2 * BACKENDS_MAX; at++) {
            names[count++] = (*at)->name;
            if (strcmp(name ? name : onednn.name, (*at)->name) == 0) {
                *backend_out = *at;
                return GR_OK;
            }
        }
    }
    char known[256];
    gr_text_list(known, sizeof known, names);
    return gr_fail(diag, GR_E_INVALID, "there is no backend named '%s'; take %s", name, known);
}

const gr_kernels *gr_backend_kernels_of(const gr_backend *backend, const gr_layer_ops *ops)
{
    for (const gr_backend_kernels *at = backend->kernels; at->of; at++) {
        if (at->of == ops) {
            return at->kernels;
        }
    }
    return &ops->reference;
}
