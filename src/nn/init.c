/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/layer.h"

#include "base/philox.h"

#include <math.h>
#include <string.h>

/* Streams of weights are apart from those of dropout, whose high word is a step of the job. */
#define INIT_STREAM UINT64_C(0xffffffff00000001)

/* Does a ReLU or GELU follow, looking through layers that only scale, choose or move values? */
static bool feeds_rectifier(const gr_model_spec *spec, int index)
{
    for (int i = index + 1; i < spec->count; i++) {
        const gr_layer_spec *layer = &spec->layers[i];
        if (layer->input != index) {
            continue;
        }
        if (layer->ops == &gr_relu_ops || layer->ops == &gr_gelu_ops) {
            return true;
        }
        bool passes = layer->ops == &gr_batch_norm_ops || layer->ops == &gr_max_pool_ops ||
                      layer->ops == &gr_avg_pool_ops || layer->ops == &gr_dropout_ops ||
                      layer->ops == &gr_flatten_ops || layer->ops == &gr_add_ops;
        return passes && feeds_rectifier(spec, i);
    }
    return false;
}

static void fill(float *values, size_t count, float value)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = value;
    }
}

void gr_model_init_weights(const gr_model *model, float *values)
{
    memset(values, 0, model->values * sizeof *values);
    for (int i = 0; i < model->layer_count; i++) {
        const gr_layer *layer = &model->layers[i];
        gr_tensor_need needs[GR_LAYER_TENSORS_MAX];
        int count = layer->spec->ops->tensors ? layer->spec->ops->tensors(layer->spec, needs) : 0;
        for (int t = 0; t < count; t++) {
            float *tensor = values + layer->offset[needs[t].role];
            size_t elements = (size_t)gr_shape_count(&needs[t].shape);
            if (layer->spec->ops == &gr_batch_norm_ops) {
                bool one = needs[t].role == GR_ROLE_WEIGHT || needs[t].role == GR_ROLE_VARIANCE;
                fill(tensor, elements, one ? 1.0f : 0.0f);
            } else if (needs[t].role == GR_ROLE_WEIGHT) {
                /* [out][in] or [out][in][height][width]: a window's pixels count on both sides. */
                double out = (double)needs[t].shape.dim[0];
                double fan_in = (double)elements / out;
                double pixels = fan_in / (double)needs[t].shape.dim[1];
                bool he = feeds_rectifier(model->config.spec, i);
                float deviation = (float)sqrt(2.0 / (he ? fan_in : fan_in + out * pixels));
                gr_philox_normal(model->config.seed, INIT_STREAM, (uint32_t)i, tensor, elements);
                for (size_t at = 0; at < elements; at++) {
                    tensor[at] *= deviation;
                }
            }
        }
    }
}
