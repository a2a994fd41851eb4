/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/tensor.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"

#include <math.h>
#include <string.h>

uint64_t gr_ps_tensor_key(const char *name)
{
    return gr_hash64(name, strlen(name), 0);
}

static const char *optimizer_of(const gr_ps_spec *spec)
{
    return spec->optimizer != NULL ? spec->optimizer : "";
}

size_t gr_ps_texts_bytes(const gr_ps_spec *spec)
{
    return strlen(spec->name) + strlen(optimizer_of(spec)) + 2;
}

gr_ps_tensor gr_ps_tensor_of(const gr_ps_spec *spec)
{
    return (gr_ps_tensor){.spec = *spec,
                          .key = gr_ps_tensor_key(spec->name),
                          .cut =
                              spec->columns > 0 ? gr_ps_cut_table() : gr_ps_cut_of(spec->elements)};
}

void gr_ps_copy_texts(gr_ps_spec *spec, char *texts)
{
    char *optimizer = stpcpy(texts, spec->name) + 1;
    strcpy(optimizer, optimizer_of(spec));
    spec->name = texts;
    spec->optimizer = optimizer;
}

/* ---- What can be declared -------------------------------------------------------------------- */

enum { STALENESS_MAX = 1 << 20 };

static bool is_table(const gr_ps_spec *spec)
{
    return spec->columns <= GR_PS_COLUMNS_MAX && spec->elements > 0 &&
           spec->elements % spec->columns == 0 &&
           spec->elements / spec->columns <= GR_PS_ROWS_MAX && isfinite(spec->deviation) &&
           spec->deviation >= 0.0f;
}

static gr_status check_mode(const gr_ps_spec *spec, gr_diag *diag)
{
    switch (spec->consistency) {
    case GR_BSP:
        return spec->shards >= 1 && spec->shards <= GR_PS_SHARDS_MAX
                   ? GR_OK
                   : gr_fail(diag, GR_E_INVALID, "tensor \"%s\": shards is %d, must be 1 to %d",
                             spec->name, spec->shards, GR_PS_SHARDS_MAX);
    case GR_BSP_BACKUP:
        return spec->aggregate >= 1 && spec->aggregate <= spec->total &&
                       spec->total <= GR_PS_WORKERS_MAX
                   ? GR_OK
                   : gr_fail(diag, GR_E_INVALID,
                             "tensor \"%s\": the first %d of %d pushes are to count; it must be 1 "
                             "of 1 up to %d of %d",
                             spec->name, spec->aggregate, spec->total, GR_PS_WORKERS_MAX,
                             GR_PS_WORKERS_MAX);
    case GR_ASYNC:
        return GR_OK;
    case GR_SSP:
        return spec->staleness >= 0 && spec->staleness <= STALENESS_MAX
                   ? GR_OK
                   : gr_fail(diag, GR_E_INVALID, "tensor \"%s\": staleness is %d, must be 0 to %d",
                             spec->name, spec->staleness, STALENESS_MAX);
    default:
        return gr_fail(diag, GR_E_INVALID, "tensor \"%s\": there is no mode %d", spec->name,
                       spec->consistency);
    }
}

gr_status gr_ps_check_spec(const gr_ps_spec *spec, gr_diag *diag)
{
    size_t size = spec->name != NULL ? strnlen(spec->name, GR_PS_NAME_BYTES) : 0;
    if (size == 0 || size >= GR_PS_NAME_BYTES || !gr_text_printable(spec->name, size, false)) {
        return gr_fail(diag, GR_E_INVALID,
                       "a tensor's name must have 1 to %d characters, all of them printable",
                       GR_PS_NAME_BYTES - 1);
    }
    if (spec->columns > 0 ? !is_table(spec) : spec->deviation != 0.0f) {
        return gr_fail(
            diag, GR_E_INVALID,
            "tensor \"%s\": %llu elements in rows of %u columns that begin with a "
            "deviation of %g cannot be: it needs whole rows, at most %u of them, at most "
            "%d columns, and a deviation of 0 or more",
            spec->name, (unsigned long long)spec->elements, spec->columns, (double)spec->deviation,
            GR_PS_ROWS_MAX, GR_PS_COLUMNS_MAX);
    }
    int type = spec->gradient_type;
    if (type != GR_F32 && (spec->columns > 0 || (type != GR_F16 && type != GR_BF16))) {
        return gr_fail(
            diag, GR_E_INVALID,
            "tensor \"%s\": gradients travel as f32, f16 or bf16, those of a table as f32 "
            "only; type %d (%s) cannot be",
            spec->name, type, gr_dtype_name((gr_dtype)type));
    }
    if (gr_ps_cut_of(spec->elements).blocks == 0) {
        return gr_fail(diag, GR_E_INVALID, "tensor \"%s\" has %llu elements, must have 1 to %llu",
                       spec->name, (unsigned long long)spec->elements,
                       (unsigned long long)GR_PS_ELEMENTS_MAX);
    }
    const char *text = optimizer_of(spec);
    size_t text_bytes = strnlen(text, GR_PS_OPTIMIZER_BYTES);
    if (text_bytes >= GR_PS_OPTIMIZER_BYTES || !gr_text_printable(text, text_bytes, true)) {
        return gr_fail(diag, GR_E_INVALID,
                       "tensor \"%s\": the optimizer's text must have at most %d characters, all "
                       "of them printable",
                       spec->name, GR_PS_OPTIMIZER_BYTES - 1);
    }
    return check_mode(spec, diag);
}
