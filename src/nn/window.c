/* SPDX-License-Identifier: Apache-2.0 */
/* What convolution and pooling share: windows that move over an image. */
#include "nn/layer.h"

#include "base/fail.h"
#include "base/number.h"

#include <string.h>

/* Output size of windows over an image; 0 if the kernel does not fit. */
static int64_t count_windows(int64_t size, int64_t kernel, int64_t stride, int64_t padding)
{
    return size + 2 * padding < kernel ? 0 : (size + 2 * padding - kernel) / stride + 1;
}

/* `same` keeps the size of the image (divided by the stride, rounded up); an even kernel cannot
 * without padding one side more than the other. */
static gr_status settle(gr_window_settings *set, const gr_node *node, gr_diag *diag)
{
    set->stride = set->stride ? set->stride : set->kernel;
    if (strcmp(set->padding_text, "same") == 0) {
        if (set->kernel % 2 == 0) {
            return gr_node_fail(
                node, diag, GR_E_INVALID,
                "padding 'same' needs an odd kernel, but it is %lld: give the padding in pixels",
                (long long)set->kernel);
        }
        set->padding = (set->kernel - 1) / 2;
    } else if (gr_number_int(set->padding_text, &set->padding) != GR_NUMBER_OK ||
               set->padding < 0) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "padding must be a number of pixels or 'same', but it is '%.40s'",
                            set->padding_text);
    }
    if (set->padding >= set->kernel) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "padding %lld must be smaller than the kernel %lld",
                            (long long)set->padding, (long long)set->kernel);
    }
    return GR_OK;
}

gr_status gr_layer_needs_image(const gr_layer_spec *spec, const gr_node *node, gr_diag *diag)
{
    char text[GR_TENSOR_NAME_BYTES];
    if (spec->shape_in.dims == 3) {
        return GR_OK;
    }
    gr_shape_format(&spec->shape_in, text, sizeof text);
    return gr_node_fail(node, diag, GR_E_INVALID,
                        "%s needs images (channels x height x width), but its input has the shape "
                        "%s: put it before flatten and linear layers, or give the data an image "
                        "shape",
                        spec->info.name, text);
}

gr_status gr_window_shape(gr_layer_spec *spec, int64_t channels, const gr_node *node, gr_diag *diag)
{
    gr_window_settings *set = spec->set;
    gr_status status = settle(set, node, diag);
    if (status == GR_OK) {
        status = gr_layer_needs_image(spec, node, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    int64_t height = count_windows(spec->shape_in.dim[1], set->kernel, set->stride, set->padding);
    int64_t width = count_windows(spec->shape_in.dim[2], set->kernel, set->stride, set->padding);
    if (height < 1 || width < 1) {
        char text[GR_TENSOR_NAME_BYTES];
        gr_shape_format(&spec->shape_in, text, sizeof text);
        return gr_node_fail(
            node, diag, GR_E_INVALID,
            "the kernel %lld of %s (padding %lld) is larger than its input %s: use a "
            "smaller kernel, more padding or fewer strides before it",
            (long long)set->kernel, spec->info.name, (long long)set->padding, text);
    }
    spec->info.output = (gr_shape){.dims = 3, .dim = {channels, height, width}};
    return GR_OK;
}

gr_conv_shape gr_layer_window(const gr_model *model, const gr_layer *layer)
{
    const gr_layer_spec *spec = layer->spec;
    const gr_window_settings *set = spec->set;
    const gr_shape *in = &spec->shape_in, *out = &spec->info.output;
    gr_conv_shape shape = {.batch = model->config.batch,
                           .channels_in = in->dim[0],
                           .height_in = in->dim[1],
                           .width_in = in->dim[2],
                           .channels_out = out->dim[0],
                           .height_out = out->dim[1],
                           .width_out = out->dim[2],
                           .kernel = set->kernel,
                           .stride = set->stride,
                           .padding = set->padding};
    return shape;
}
