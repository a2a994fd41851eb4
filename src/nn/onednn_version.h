/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_ONEDNN_VERSION_H
#define GR_NN_ONEDNN_VERSION_H

/* What differs between the C APIs of oneDNN 2 (Debian 12) and oneDNN 3 (Debian 13). In version 2 a
 * memory descriptor is a plain struct, and a primitive descriptor is made from an operation
 * descriptor; in version 3 a memory descriptor is opaque, and each primitive has one function that
 * makes its primitive descriptor. onednn_v2.c and onednn_v3.c implement this header; one of them is
 * empty, depending on the installed version. Only onednn.c includes this header.
 *
 * All descriptors are borrowed for the call. Each function returns oneDNN's own status and writes
 * its output only on success. */

#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR == 2
typedef dnnl_memory_desc_t gr_dnn_desc;
#elif DNNL_VERSION_MAJOR == 3
typedef struct dnnl_memory_desc gr_dnn_desc;
#else
#error "Gradus supports oneDNN 2 and 3; this is another version"
#endif

/* The new descriptor belongs to the caller, who destroys it. `from` is not NULL. */
dnnl_status_t gr_dnn_desc_create(int dims, const dnnl_dims_t dim, dnnl_format_tag_t tag,
                                 gr_dnn_desc **desc_out);
dnnl_status_t gr_dnn_desc_clone(const gr_dnn_desc *from, gr_dnn_desc **desc_out);
void gr_dnn_desc_destroy(gr_dnn_desc *desc); /* NULL is fine */
/* The number of dimensions; dim_out receives their sizes. */
int gr_dnn_desc_dims(const gr_dnn_desc *desc, dnnl_dims_t dim_out);

/* Appends a ReLU to `ops`. */
dnnl_status_t gr_dnn_append_relu(dnnl_post_ops_t ops);

/* Where the windows of a convolution or a pooling lie: height first, then width. */
typedef struct gr_dnn_windows {
    dnnl_dims_t kernel, stride, dilation, before, behind;
} gr_dnn_windows;

/* The tensors of an operation; a gradient stands at the place of the tensor that it belongs to.
 * A backward pass has the primitive descriptor of its forward pass as `forward`. */
typedef struct gr_dnn_tensors {
    const gr_dnn_desc *src, *weights, *bias, *dst; /* bias: NULL where there is none */
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attr;
    const_dnnl_primitive_desc_t forward; /* NULL in a forward pass */
} gr_dnn_tensors;

/* The caller destroys *pd_out with dnnl_primitive_desc_destroy. */
dnnl_status_t gr_dnn_matmul(const gr_dnn_tensors *on, dnnl_primitive_desc_t *pd_out);
dnnl_status_t gr_dnn_convolution(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                 dnnl_primitive_desc_t *pd_out);
dnnl_status_t gr_dnn_convolution_data(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                      dnnl_primitive_desc_t *pd_out);
dnnl_status_t gr_dnn_convolution_weights(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                         dnnl_primitive_desc_t *pd_out);
dnnl_status_t gr_dnn_pooling(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                             dnnl_prop_kind_t kind, dnnl_alg_kind_t algorithm,
                             dnnl_primitive_desc_t *pd_out);
dnnl_status_t gr_dnn_pooling_back(const gr_dnn_tensors *on, const gr_dnn_windows *windows,
                                  dnnl_alg_kind_t algorithm, dnnl_primitive_desc_t *pd_out);
/* src and dst, and their gradients, have one descriptor. */
dnnl_status_t gr_dnn_batch_norm(const gr_dnn_tensors *on, dnnl_prop_kind_t kind, float epsilon,
                                unsigned flags, dnnl_primitive_desc_t *pd_out);
dnnl_status_t gr_dnn_batch_norm_back(const gr_dnn_tensors *on, float epsilon, unsigned flags,
                                     dnnl_primitive_desc_t *pd_out);
dnnl_status_t gr_dnn_gelu(const gr_dnn_tensors *on, dnnl_primitive_desc_t *pd_out);
dnnl_status_t gr_dnn_gelu_back(const gr_dnn_tensors *on, dnnl_primitive_desc_t *pd_out);

#endif
