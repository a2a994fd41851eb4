/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/tensor.h"

#include "base/hash.h"
#include "ps/place.h"

#include <math.h>
#include <string.h>

const char *gr_ps_mode_name(gr_ps_mode mode)
{
    static const char *const names[] = {"bsp", "backup", "async", "ssp"};
    return (unsigned)mode < GR_PS_MODE_COUNT ? names[mode] : "?";
}

uint64_t gr_ps_tensor_key(const char *name)
{
    return gr_hash64(name, strlen(name), 0);
}

gr_ps_tensor gr_ps_tensor_of(const gr_ps_spec *spec)
{
    return (gr_ps_tensor){.name = spec->name,
                          .elements = spec->elements,
                          .block = spec->columns > 0 ? 0 : gr_ps_cut_of(spec->elements).block,
                          .mode = (gr_ps_mode)spec->consistency,
                          .shards = spec->shards,
                          .aggregate = spec->aggregate,
                          .total = spec->total,
                          .staleness = spec->staleness,
                          .adapt_rate = spec->adapt_rate != 0,
                          .refuse_not_finite = spec->refuse_not_finite != 0,
                          .optimizer = spec->optimizer,
                          .columns = spec->columns,
                          .seed = spec->seed,
                          .deviation = spec->deviation,
                          .gradient_type = (gr_dtype)spec->gradient_type};
}

gr_ps_spec gr_ps_spec_of(const gr_ps_tensor *tensor)
{
    return (gr_ps_spec){.name = tensor->name,
                        .elements = tensor->elements,
                        .consistency = (int)tensor->mode,
                        .shards = tensor->shards,
                        .aggregate = tensor->aggregate,
                        .total = tensor->total,
                        .staleness = tensor->staleness,
                        .adapt_rate = tensor->adapt_rate,
                        .refuse_not_finite = tensor->refuse_not_finite,
                        .optimizer = tensor->optimizer,
                        .columns = tensor->columns,
                        .seed = tensor->seed,
                        .deviation = tensor->deviation,
                        .gradient_type = (int)tensor->gradient_type};
}

/* The blocks are those of place.h, but that tests may have smaller ones. */
static gr_ps_cut cut_of(const gr_ps_tensor *tensor)
{
    if (tensor->columns > 0) {
        return gr_ps_cut_table();
    }
    return (gr_ps_cut){.elements = tensor->elements,
                       .block = tensor->block,
                       .blocks = (uint32_t)((tensor->elements - 1) / tensor->block + 1)};
}

uint32_t gr_ps_tensor_blocks(const gr_ps_tensor *tensor)
{
    return cut_of(tensor).blocks;
}

uint32_t gr_ps_tensor_block_count(const gr_ps_tensor *tensor, uint32_t block)
{
    gr_ps_cut cut = cut_of(tensor);
    return gr_ps_block_count(&cut, block);
}

bool gr_ps_is_table(const gr_ps_tensor *tensor)
{
    return tensor->columns >= 1 && tensor->columns <= GR_PS_COLUMNS_MAX && tensor->elements > 0 &&
           tensor->elements % tensor->columns == 0 &&
           tensor->elements / tensor->columns <= GR_PS_ROWS_MAX && isfinite(tensor->deviation) &&
           tensor->deviation >= 0.0f;
}
