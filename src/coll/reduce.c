/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/reduce.h"
#include "coll/reduce_table.h"

size_t gr_dtype_bytes(gr_dtype dtype)
{
    switch (dtype) {
    case GR_F32:
    case GR_I32:
        return 4;
    case GR_F64:
    case GR_I64:
        return 8;
    case GR_F16:
    case GR_BF16:
    case GR_I16:
        return 2;
    case GR_I8:
    case GR_U8:
        return 1;
    default:
        return 0;
    }
}

const char *gr_dtype_name(gr_dtype dtype)
{
    switch (dtype) {
    case GR_F32:
        return "f32";
    case GR_F64:
        return "f64";
    case GR_F16:
        return "f16";
    case GR_BF16:
        return "bf16";
    case GR_I32:
        return "i32";
    case GR_I64:
        return "i64";
    case GR_I8:
        return "i8";
    case GR_U8:
        return "u8";
    case GR_I16:
        return "i16";
    default:
        return "?";
    }
}

const char *gr_redop_name(gr_redop op)
{
    switch (op) {
    case GR_SUM:
        return "sum";
    case GR_AVERAGE:
        return "average";
    case GR_MIN:
        return "min";
    case GR_MAX:
        return "max";
    case GR_PRODUCT:
        return "product";
    case GR_USER:
        return "user";
    default:
        return "?";
    }
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
    const gr_reduce_table *table = table_of(gr_isa_best());
    if ((unsigned)dtype < GR_DTYPE_COUNT) {
        table->scale[dtype](buf, count, divisor);
    }
}

void gr_scale_to(void *dst, const void *src, size_t count, gr_dtype dtype, double factor)
{
    const gr_reduce_table *table = table_of(gr_isa_best());
    if ((unsigned)dtype < GR_DTYPE_COUNT) {
        table->multiply[dtype](dst, src, count, factor);
    }
}

gr_add_scaled_fn *gr_add_scaled_best(void)
{
    return table_of(gr_isa_best())->add_scaled;
}

void gr_scale(void *buf, size_t count, gr_dtype dtype, double factor)
{
    gr_scale_to(buf, buf, count, dtype, factor);
}
