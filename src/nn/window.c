/* SPDX-License-Identifier: Apache-2.0 */
/* What convolution and pooling share: windows that move over an image. */
#include "nn/layer.h"

#include "base/fail.h"

/* Output size of windows over an image; 0 if the kernel does not fit. */
static int64_t count_windows(int64_t size, int64_t kernel, int64_t stride, int64_t padding)
{
    return size + 2 * padding < kernel ? 0 : (size + 2 * padding - kernel) / stride + 1;
}

gr_status gr_window_shape(gr_layer_spec *spec, int64_t channels, const gr_node *node, gr_diag *diag)
{
    const gr_layer_settings *set = &spec->set;
    char text[80];
    gr_shape_format(&spec->shape_in, text, sizeof text);
    if (spec->shape_in.dims != 3) {
        return gr_node_fail(
            node, diag, GR_E_INVALID,
            "%s needs images (channels x height x width), but its input has the "
            "shape %s: put it before flatten and linear layers, or give the data an "
            "image shape",
            spec->info.name, text);
    }
    int64_t height = count_windows(spec->shape_in.dim[1], set->kernel, set->stride, set->padding);
    int64_t width = count_windows(spec->shape_in.dim[2], set->kernel, set->stride, set->padding);
    if (height < 1 || width < 1) {
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
    const gr_shape *in = &spec->shape_in, *out = &spec->info.output;
    gr_conv_shape shape = {.batch = model->config.batch,
                           .channels_in = in->dim[0],
                           .height_in = in->dim[1],
                           .width_in = in->dim[2],
                           .channels_out = out->dim[0],
                           .height_out = out->dim[1],
                           .width_out = out->dim[2],
                           .kernel = spec->set.kernel,
                           .stride = spec->set.stride,
                           .padding = spec->set.padding,
                           .bias = spec->set.bias};
    return shape;
}
