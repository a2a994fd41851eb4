/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/onednn_version.h"

#if DNNL_VERSION_MAJOR == 2

#include <stdlib.h>

dnnl_status_t gr_dnn_desc_create(int dims, const dnnl_dims_t dim, dnnl_format_tag_t tag,
                                 gr_dnn_desc **desc_out)
{
    gr_dnn_desc *desc = calloc(1, sizeof *desc);
    if (!desc) {
        return dnnl_out_of_memory;
    }
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(desc, dims, dim, dnnl_f32, tag);
    if (status != dnnl_success) {
        free(desc);
        return status;
    }
    *desc_out = desc;
    return dnnl_success;
}

dnnl_status_t gr_dnn_desc_clone(const gr_dnn_desc *from, gr_dnn_desc **desc_out)
{
    gr_dnn_desc *desc = malloc(sizeof *desc);
    if (!desc) {
        return dnnl_out_of_memory;
    }
    *desc = *from;
    *desc_out = desc;
    return dnnl_success;
}

void gr_dnn_desc_destroy(gr_dnn_desc *desc)
{
    free(desc);
}

int gr_dnn_desc_dims(const gr_dnn_desc *desc, dnnl_dims_t dim_out)
{
    for (int i = 0; i < desc->ndims; i++) {
        dim_out[i] = desc->dims[i];
    }
    return desc->ndims;
}

dnnl_status_t gr_dnn_append_relu(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_eltwise(ops, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
}

/* `status` is the result of describing the operation in `desc`. */
static dnnl_status_t finish(dnnl_status_t status, const_dnnl_op_desc_t desc,
                            const gr_dnn_tensors *on, dnnl_primitive_desc_t *pd_out)
{
    return status != dnnl_success
               ? status
               : dnnl_primitive_desc_create(pd_out, desc, on->attr, on->engine, on->forward);
}

dnnl_status_t gr_dnn_matmul(const gr_dnn_tensors *on, dnnl_primitive_desc_t *pd_out)
{
    dnnl_matmul_desc_t desc;
    return finish(dnnl_matmul_desc_init(&desc, on->src, on->weights, on->bias, on->dst), &desc, on,
                  pd_out);
}

dnnl_status_t gr_dnn_convolution(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                 dnnl_primitive_desc_t *pd_out)
{
    dnnl_convolution_desc_t desc;
    dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(
        &desc, dnnl_forward_training, dnnl_convolution_direct, on->src, on->weights, on->bias,
        on->dst, windows->stride, windows->dilation, windows->before, windows->behind);
    return finish(status, &desc, on, pd_out);
}

dnnl_status_t gr_dnn_convolution_data(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                      dnnl_primitive_desc_t *pd_out)
{
    dnnl_convolution_desc_t desc;
    dnnl_status_t status = dnnl_dilated_convolution_backward_data_desc_init(
        &desc, dnnl_convolution_direct, on->src, on->weights, on->dst, windows->stride,
        windows->dilation, windows->before, windows->behind);
    return finish(status, &desc, on, pd_out);
}

dnnl_status_t gr_dnn_convolution_weights(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                         dnnl_primitive_desc_t *pd_out)
{
    dnnl_convolution_desc_t desc;
    dnnl_status_t status = dnnl_dilated_convolution_backward_weights_desc_init(
        &desc, dnnl_convolution_direct, on->src, on->weights, on->bias, on->dst, windows->stride,
        windows->dilation, windows->before, windows->behind);
    return finish(status, &desc, on, pd_out);
}

dnnl_status_t gr_dnn_pooling(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                             dnnl_prop_kind_t kind, dnnl_alg_kind_t algorithm,
                             dnnl_primitive_desc_t *pd_out)
{
    dnnl_pooling_desc_t desc;
    dnnl_status_t status =
        dnnl_pooling_forward_desc_init(&desc, kind, algorithm, on->src, on->dst, windows->stride,
                                       windows->kernel, windows->before, windows->behind);
    return finish(status, &desc, on, pd_out);
}

dnnl_status_t gr_dnn_pooling_back(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                  dnnl_alg_kind_t algorithm, dnnl_primitive_desc_t *pd_out)
{
    dnnl_pooling_desc_t desc;
    dnnl_status_t status =
        dnnl_pooling_backward_desc_init(&desc, algorithm, on->src, on->dst, windows->stride,
                                        windows->kernel, windows->before, windows->behind);
    return finish(status, &desc, on, pd_out);
}

dnnl_status_t gr_dnn_batch_norm(const gr_dnn_tensors *on, dnnl_prop_kind_t kind, float epsilon,
                                unsigned flags, dnnl_primitive_desc_t *pd_out)
{
    dnnl_batch_normalization_desc_t desc;
    return finish(dnnl_batch_normalization_forward_desc_init(&desc, kind, on->src, epsilon, flags),
                  &desc, on, pd_out);
}

dnnl_status_t gr_dnn_batch_norm_back(const gr_dnn_tensors *on, float epsilon, unsigned flags,
                                     dnnl_primitive_desc_t *pd_out)
{
    dnnl_batch_normalization_desc_t desc;
    dnnl_status_t status = dnnl_batch_normalization_backward_desc_init(
        &desc, dnnl_backward, on->src, on->src, epsilon, flags);
    return finish(status, &desc, on, pd_out);
}

dnnl_status_t gr_dnn_gelu(const gr_dnn_tensors *on, dnnl_primitive_desc_t *pd_out)
{
    dnnl_eltwise_desc_t desc;
    dnnl_status_t status = dnnl_eltwise_forward_desc_init(
        &desc, dnnl_forward_training, dnnl_eltwise_gelu_erf, on->src, 0.0f, 0.0f);
    return finish(status, &desc, on, pd_out);
}

dnnl_status_t gr_dnn_gelu_back(const gr_dnn_tensors *on, dnnl_primitive_desc_t *pd_out)
{
    dnnl_eltwise_desc_t desc;
    dnnl_status_t status =
        dnnl_eltwise_backward_desc_init(&desc, dnnl_eltwise_gelu_erf, on->src, on->src, 0.0f, 0.0f);
    return finish(status, &desc, on, pd_out);
}

#endif
