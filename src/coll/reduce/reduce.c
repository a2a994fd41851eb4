/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/reduce/reduce.h"
#include "base/text.h"
#include "coll/reduce/reduce_table.h"

#include <math.h>

/* By gr_dtype. */
static const struct {
    const char *name;
    size_t bytes;
    bool inexact; /* sums and products are rounded */
} types[GR_DTYPE_COUNT] = {
    [GR_F32] = {"f32", 4, true},
    [GR_F64] = {"f64", 8, true},
    [GR_F16] = {"f16", 2, true},
    [GR_BF16] = {"bf16", 2, true},
    [GR_I32] = {"i32", 4, false},
    [GR_I64] = {"i64", 8, false},
    [GR_I8] = {"i8", 1, false},
    [GR_U8] = {"u8", 1, false},
    [GR_I16] = {"i16", 2, false},
    [GR_BOOL] = {"bool", 1, false},
    [GR_U16] = {"u16", 2, false},
    [GR_U32] = {"u32", 4, false},
    [GR_U64] = {"u64", 8, false},
    [GR_COMPLEX64] = {"complex64", 8, true},
    [GR_COMPLEX128] = {"complex128", 16, true},
};

/* By gr_redop. */
static const char *const redop_names[GR_REDOP_COUNT] = {
    [GR_SUM] = "sum",   [GR_AVERAGE] = "average", [GR_MIN] = "min",
    [GR_MAX] = "max",   [GR_PRODUCT] = "product", [GR_USER] = "user",
    [GR_BAND] = "band", [GR_BOR] = "bor",         [GR_BXOR] = "bxor",
};

size_t gr_dtype_bytes(gr_dtype dtype)
{
    return (unsigned)dtype < GR_DTYPE_COUNT ? types[dtype].bytes : 0;
}

const char *gr_dtype_name(gr_dtype dtype)
{
    return (unsigned)dtype < GR_DTYPE_COUNT ? types[dtype].name : "?";
}

const char *gr_redop_name(gr_redop op)
{
    return (unsigned)op < GR_REDOP_COUNT ? redop_names[op] : "?";
}

bool gr_dtype_any_order(gr_dtype dtype)
{
    return !types[dtype].inexact;
}

bool gr_dtype_reduces(gr_dtype dtype, gr_redop op)
{
    return op == GR_USER || gr_reduce_kernel(GR_ISA_C, dtype, op) != NULL;
}

bool gr_dtype_scales(gr_dtype dtype)
{
    return gr_reduce_c.multiply[dtype] != NULL;
}

bool gr_dtype_holds_factor(gr_dtype dtype, double factor)
{
    bool in_f32 = dtype == GR_F32 || dtype == GR_F16 || dtype == GR_BF16 || dtype == GR_COMPLEX64;
    float by = (float)factor;
    return !in_f32 || (isfinite(by) && (by != 0 || factor == 0));
}

void gr_dtype_list_reductions(gr_dtype dtype, char *text, size_t size_bytes)
{
    const char *names[GR_REDOP_COUNT + 1];
    int count = 0;
    for (int op = 0; op < GR_REDOP_COUNT; op++) {
        if (gr_reduce_kernel(GR_ISA_C, dtype, (gr_redop)op)) {
            names[count++] = redop_names[op];
        }
    }
    names[count] = NULL;
    gr_text_list(text, size_bytes, names);
}

const char *gr_isa_name(gr_isa isa)
{
    switch (isa) {
    case GR_ISA_C:
        return "c";
    case GR_ISA_AVX2:
        return "avx2";
    case GR_ISA_AVX512:
        return "avx512";
    case GR_ISA_NEON:
        return "neon";
    default:
        return "?";
    }
}

static const gr_reduce_table *table_of(gr_isa isa)
{
    switch (isa) {
    case GR_ISA_C:
        return &gr_reduce_c;
#if defined(__x86_64__)
    /* Every processor with AVX2 has the F16C conversions and FMA, which these files may use too. */
    case GR_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &gr_reduce_avx2
                                                                               : NULL;
    case GR_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                   ? &gr_reduce_avx512
                   : NULL;
#elif defined(__aarch64__)
    case GR_ISA_NEON:
        return &gr_reduce_neon;
#endif
    default:
        return NULL;
    }
}

int gr_isa_usable(gr_isa isa)
{
    return table_of(isa) != NULL;
}

gr_isa gr_isa_best(void)
{
    static const gr_isa by_speed[] = {GR_ISA_AVX512, GR_ISA_AVX2, GR_ISA_NEON};
    for (size_t i = 0; i < sizeof by_speed / sizeof by_speed[0]; i++) {
        if (gr_isa_usable(by_speed[i])) {
            return by_speed[i];
        }
    }
    return GR_ISA_C;
}

gr_reduce_fn *gr_reduce_kernel(gr_isa isa, gr_dtype dtype, gr_redop op)
{
    const gr_reduce_table *table = table_of(isa);
    if (!table || (unsigned)dtype >= GR_DTYPE_COUNT || (unsigned)op >= GR_REDOP_COUNT) {
        return NULL;
    }
    return table->reduce[dtype][op];
}

gr_reduce_both_fn *gr_reduce_both_kernel(gr_isa isa, gr_dtype dtype, gr_redop op)
{
    const gr_reduce_table *table = table_of(isa);
    if (!table || (unsigned)dtype >= GR_DTYPE_COUNT || (op != GR_SUM && op != GR_AVERAGE)) {
        return NULL;
    }
    return table->sum_both[dtype];
}

void gr_scale_inverse(void *buf, size_t count, gr_dtype dtype, int divisor)
{
    table_of(gr_isa_best())->scale[dtype](buf, count, divisor);
}

void gr_scale_to(void *dst, const void *src, size_t count, gr_dtype dtype, double factor)
{
    table_of(gr_isa_best())->multiply[dtype](dst, src, count, factor);
}

gr_add_scaled_fn *gr_add_scaled_best(void)
{
    return table_of(gr_isa_best())->add_scaled;
}

void gr_scale(void *buf, size_t count, gr_dtype dtype, double factor)
{
    gr_scale_to(buf, buf, count, dtype, factor);
}
