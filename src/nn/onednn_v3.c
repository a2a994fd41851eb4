/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/onednn_version.h"

#if DNNL_VERSION_MAJOR == 3

dnnl_status_t gr_dnn_desc_create(int dims, const dnnl_dims_t dim, dnnl_format_tag_t tag,
                                 gr_dnn_desc **desc_out)
{
    return dnnl_memory_desc_create_with_tag(desc_out, dims, dim, dnnl_f32, tag);
}

dnnl_status_t gr_dnn_desc_clone(const gr_dnn_desc *from, gr_dnn_desc **desc_out)
{
    return dnnl_memory_desc_clone(desc_out, from);
}

void gr_dnn_desc_destroy(gr_dnn_desc *desc)
{
    if (desc) {
        dnnl_memory_desc_destroy(desc);
    }
}

int gr_dnn_desc_dims(const gr_dnn_desc *desc, dnnl_dims_t dim_out)
{
    int dims = 0;
    const dnnl_dims_t *dim = NULL;
    /* Both queries can fail only for a NULL descriptor. */
    if (dnnl_memory_desc_query(desc, dnnl_query_ndims_s32, &dims) != dnnl_success ||
        dnnl_memory_desc_query(desc, dnnl_query_dims, &dim) != dnnl_success) {
        return 0;
    }
    for (int i = 0; i < dims; i++) {
        dim_out[i] = (*dim)[i];
    }
    return dims;
}

dnnl_status_t gr_dnn_append_relu(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, 0.0f, 0.0f);
}

dnnl_status_t gr_dnn_matmul(const gr_dnn_tensors *on, dnnl_primitive_desc_t *pd_out)
{
    return dnnl_matmul_primitive_desc_create(pd_out, on->engine, on->src, on->weights, on->bias,
                                             on->dst, on->attr);
}

dnnl_status_t gr_dnn_convolution(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                 dnnl_primitive_desc_t *pd_out)
{
    return dnnl_convolution_forward_primitive_desc_create(
        pd_out, on->engine, dnnl_forward_training, dnnl_convolution_direct, on->src, on->weights,
        on->bias, on->dst, windows->stride, windows->dilation, windows->before, windows->behind,
        on->attr);
}

dnnl_status_t gr_dnn_convolution_data(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                      dnnl_primitive_desc_t *pd_out)
{
    return dnnl_convolution_backward_data_primitive_desc_create(
        pd_out, on->engine, dnnl_convolution_direct, on->src, on->weights, on->dst, windows->stride,
        windows->dilation, windows->before, windows->behind, on->forward, on->attr);
}

dnnl_status_t gr_dnn_convolution_weights(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                         dnnl_primitive_desc_t *pd_out)
{
    return dnnl_convolution_backward_weights_primitive_desc_create(
        pd_out, on->engine, dnnl_convolution_direct, on->src, on->weights, on->bias, on->dst,
        windows->stride, windows->dilation, windows->before, windows->behind, on->forward,
        on->attr);
}

dnnl_status_t gr_dnn_pooling(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                             dnnl_prop_kind_t kind, dnnl_alg_kind_t algorithm,
                             dnnl_primitive_desc_t *pd_out)
{
    return dnnl_pooling_forward_primitive_desc_create(
        pd_out, on->engine, kind, algorithm, on->src, on->dst, windows->stride, windows->kernel,
        windows->dilation, windows->before, windows->behind, on->attr);
}

dnnl_status_t gr_dnn_pooling_back(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                  dnnl_alg_kind_t algorithm, dnnl_primitive_desc_t *pd_out)
{
    return dnnl_pooling_backward_primitive_desc_create(
        pd_out, on->engine, algorithm, on->src, on->dst, windows->stride, windows->kernel,
        windows->dilation, windows->before, windows->behind, on->forward, on->attr);
}

dnnl_status_t gr_dnn_batch_norm(const gr_dnn_tensors *on, dnnl_prop_kind_t kind, float epsilon,
                                unsigned flags, dnnl_primitive_desc_t *pd_out)
{
    return dnnl_batch_normalization_forward_primitive_desc_create(
        pd_out, on->engine, kind, on->src, on->src, epsilon, flags, on->attr);
}

dnnl_status_t gr_dnn_batch_norm_back(const gr_dnn_tensors *on, float epsilon, unsigned flags,
                                     dnnl_primitive_desc_t *pd_out)
{
    return dnnl_batch_normalization_backward_primitive_desc_create(
        pd_out, on->engine, dnnl_backward, on->src, on->src, on->src, epsilon, flags, on->forward,
        on->attr);
}

dnnl_status_t gr_dnn_gelu(const gr_dnn_tensors *on, dnnl_primitive_desc_t *pd_out)
{
    return dnnl_eltwise_forward_primitive_desc_create(pd_out, on->engine, dnnl_forward_training,
                                                      dnnl_eltwise_gelu_erf, on->src, on->src, 0.0f,
                                                      0.0f, on->attr);
}

dnnl_status_t gr_dnn_gelu_back(const gr_dnn_tensors *on, dnnl_primitive_desc_t *pd_out)
{
    return dnnl_eltwise_backward_primitive_desc_create(pd_out, on->engine, dnnl_eltwise_gelu_erf,
                                                       on->src, on->src, on->src, 0.0f, 0.0f,
                                                       on->forward, on->attr);
}

#endif
