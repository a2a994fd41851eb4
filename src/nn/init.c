/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/layer.h"

#include "base/philox.h"

#include <math.h>
#include <string.h>

/* Streams of weights are apart from those of dropout, whose high word is a step of the job. */
#define INIT_STREAM UINT64_C(0xffffffff00000001)

/* Returns true if a ReLU or GELU follows, behind layers that only scale, choose or move values. */
static bool feeds_rectifier(const gr_model_spec *spec, int index)
{
    for (int i = index + 1; i < spec->count; i++) {
        const gr_layer_spec *layer = &spec->layers[i];
        if (layer->input != index) {
            continue;
        }
        return layer->ops->rectifies || (layer->ops->passes_on && feeds_rectifier(spec, i));
    }
    return false;
}

void gr_init_weight(const gr_model *model, const gr_layer *layer, float *values)
{
    gr_tensor_need needs[GR_LAYER_TENSORS_MAX];
    (void)layer->spec->ops->tensors(layer->spec, needs);
    const gr_shape *shape = &needs[0].shape; /* of the weight, which is the first */
    float *tensor = values + layer->offset[GR_ROLE_WEIGHT];
    size_t elements = (size_t)gr_shape_count(shape);
    /* A window's pixels count on both sides. */
    double out = (double)shape->dim[0];
    double fan_in = (double)elements / out;
    double pixels = fan_in / (double)shape->dim[1];
    bool he = feeds_rectifier(model->config.spec, layer->index);
    float deviation = (float)sqrt(2.0 / (he ? fan_in : fan_in + out * pixels));
    gr_philox_normal(model->config.seed, INIT_STREAM, (uint32_t)layer->index, tensor, elements);
    for (size_t at = 0; at < elements; at++) {
        tensor[at] *= deviation;
    }
}

void gr_model_init_weights(const gr_model *model, float *values)
{
    memset(values, 0, model->values * sizeof *values);
    for (int i = 0; i < model->layer_count; i++) {
        const gr_layer *layer = &model->layers[i];
        if (layer->spec->ops->init) {
            layer->spec->ops->init(model, layer, values);
        }
    }
}
