/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels: the C reference against arithmetic written down another way, every instruction set
 * against the C reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll/reduce/reduce.h"
#include "support_values.h"

enum { COUNT_MAX = 300, ELEMENT_MAX = 16, GUARD = 64, ROUNDS = 40 };

/* splitmix64 (Steele, Lea and Flood 2014) */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- An element as a number, and back, by the definition of the formats ---------------------- */
typedef struct format {
    int mantissa_bits, exponent_bits;
} format;

static const format formats[GR_DTYPE_COUNT] = {
    [GR_F32] = {23, 8}, [GR_F64] = {52, 11}, [GR_F16] = {10, 5}, [GR_BF16] = {7, 8}};

static bool is_float(gr_dtype dtype)
{
    return formats[dtype].exponent_bits > 0;
}

static uint64_t get_bits(const void *at, gr_dtype dtype)
{
    uint64_t bits = 0;
    memcpy(&bits, at, gr_dtype_bytes(dtype));
    return bits;
}

static double value_of(uint64_t bits, gr_dtype dtype)
{
    format f = formats[dtype];
    uint64_t mantissa = bits & ((UINT64_C(1) << f.mantissa_bits) - 1);
    int exponent = (int)(bits >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
    int bias = (1 << (f.exponent_bits - 1)) - 1;
    double sign = bits >> (f.mantissa_bits + f.exponent_bits) & 1 ? -1 : 1;
    if (exponent == (1 << f.exponent_bits) - 1) {
        return mantissa ? (double)NAN : sign * (double)INFINITY;
    }
    if (exponent == 0) {
        return sign * ldexp((double)mantissa, 1 - bias - f.mantissa_bits);
    }
    double whole = (double)(mantissa + (UINT64_C(1) << f.mantissa_bits));
    return sign * ldexp(whole, exponent - bias - f.mantissa_bits);
}

/* To nearest even; the value is a multiple of no more than the format's smallest step. */
static double round_to(double value, gr_dtype dtype)
{
    format f = formats[dtype];
    int bias = (1 << (f.exponent_bits - 1)) - 1;
    if (dtype == GR_F64 || value == 0 || !isfinite(value)) {
        return value;
    }
    int exponent = ilogb(value) < 1 - bias ? 1 - bias : ilogb(value);
    double step = ldexp(1, exponent - f.mantissa_bits);
    double rounded = nearbyint(value / step) * step;
    return fabs(rounded) >= ldexp(1, bias + 1) ? copysign((double)INFINITY, value) : rounded;
}

static double expected_float(double x, double y, gr_dtype dtype, gr_redop op)
{
    if (isnan(x) || isnan(y)) {
        return (double)NAN;
    }
    if (op == GR_MIN || op == GR_MAX) {
        bool x_first = x < y || (x == y && signbit(x));
        return (op == GR_MIN) == x_first ? x : y;
    }
    /* The sum of two f32 in f64 is not always exact, but rounding it again to f32 or less is
     * harmless: 53 >= 2 * 24 + 2. Their product is exact. */
    double sum = op == GR_PRODUCT ? x * y : x + y;
    if (dtype == GR_F16 || dtype == GR_BF16) {
        sum = round_to(sum, GR_F32);
    }
    return round_to(sum, dtype);
}

static bool same_float(double x, double y)
{
    return (isnan(x) && isnan(y)) || (x == y && signbit(x) == signbit(y));
}

/* Complex numbers are two of another type. */
static gr_dtype part_of(gr_dtype dtype)
{
    return dtype == GR_COMPLEX64 ? GR_F32 : dtype == GR_COMPLEX128 ? GR_F64 : dtype;
}

static size_t parts_of(gr_dtype dtype)
{
    return vals_complex(dtype) ? 2 : 1;
}

/* Of a complex product; each step is rounded to the type of the parts. */
static double expected_part(const double x[2], const double y[2], int part, gr_dtype dtype)
{
    volatile double first = round_to(x[0] * y[part], dtype);
    volatile double second = round_to(x[1] * y[1 - part], dtype);
    return round_to(part == 0 ? first - second : first + second, dtype);
}

static bool is_signed(gr_dtype dtype)
{
    return dtype == GR_I8 || dtype == GR_I16 || dtype == GR_I32 || dtype == GR_I64;
}

/* Of a type with a sign, which is extended. */
static int64_t integer_of(uint64_t bits, gr_dtype dtype)
{
    size_t unused_bits = 64 - 8 * gr_dtype_bytes(dtype);
    return (int64_t)(bits << unused_bits) >> unused_bits;
}

static double number_of(uint64_t bits, gr_dtype dtype)
{
    return is_signed(dtype) ? (double)integer_of(bits, dtype) : (double)bits;
}

static uint64_t expected_bool(bool x, bool y, gr_redop op)
{
    switch (op) {
    case GR_PRODUCT:
    case GR_MIN:
    case GR_BAND:
        return x && y;
    case GR_BXOR:
        return x != y;
    default:
        return x || y;
    }
}

static uint64_t expected_integer(uint64_t x, uint64_t y, gr_dtype dtype, gr_redop op)
{
    uint64_t mask = UINT64_MAX >> (64 - 8 * gr_dtype_bytes(dtype));
    bool less = is_signed(dtype) ? integer_of(x, dtype) < integer_of(y, dtype) : x < y;
    switch (op) {
    case GR_PRODUCT:
        return (x * y) & mask;
    case GR_MIN:
        return less ? x : y;
    case GR_MAX:
        return less ? y : x;
    case GR_BAND:
        return x & y;
    case GR_BOR:
        return x | y;
    case GR_BXOR:
        return x ^ y;
    default:
        return (x + y) & mask;
    }
}

static void fill(unsigned char *at, size_t count, gr_dtype dtype, uint64_t *state)
{
    if (vals_complex(dtype)) {
        fill(at, 2 * count, part_of(dtype), state);
        return;
    }
    /* Zeros, the smallest and largest numbers, infinities and NaNs, of both signs. */
    format f = formats[dtype];
    uint64_t infinity = ((UINT64_C(1) << f.exponent_bits) - 1) << f.mantissa_bits;
    uint64_t quiet = infinity | UINT64_C(1) << (f.mantissa_bits ? f.mantissa_bits - 1 : 0);
    uint64_t one = infinity >> 1 & ~((UINT64_C(1) << f.mantissa_bits) - 1);
    const uint64_t special[] = {0, 1, infinity, infinity - 1, quiet, infinity + 1, one, one + 1};
    size_t size = gr_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        uint64_t random = next_random(state);
        uint64_t bits = dtype == GR_BOOL && random % 4 != 0 ? random >> 40 & 1 : random;
        if (random % 3 == 0 && is_float(dtype)) {
            bits = special[random / 3 % 8] | (random >> 40 & 1) << (size * 8 - 1);
        } else if (random % 3 == 1 && is_float(dtype)) {
            /* Near to one another, so that sums round and cancel. */
            bits = one + (random >> 8 & 0xfffff) % (UINT64_C(4) << f.mantissa_bits);
            bits |= (random >> 40 & 1) << (size * 8 - 1);
        }
        memcpy(at + i * size, &bits, size);
    }
}

/* One element of two operands and of the result. */
static bool is_defined(gr_dtype dtype, gr_redop op, const unsigned char *a, const unsigned char *b,
                       const unsigned char *result)
{
    gr_dtype kind = part_of(dtype);
    size_t size = gr_dtype_bytes(kind), parts = parts_of(dtype);
    if (dtype == GR_BOOL) {
        return result[0] == expected_bool(a[0] != 0, b[0] != 0, op);
    }
    if (!is_float(kind)) {
        return get_bits(result, dtype) ==
               expected_integer(get_bits(a, dtype), get_bits(b, dtype), dtype, op);
    }
    double x[2], y[2];
    for (size_t part = 0; part < parts; part++) {
        x[part] = value_of(get_bits(a + part * size, kind), kind);
        y[part] = value_of(get_bits(b + part * size, kind), kind);
    }
    for (size_t part = 0; part < parts; part++) {
        double expected = parts == 2 && op == GR_PRODUCT
                              ? expected_part(x, y, (int)part, kind)
                              : expected_float(x[part], y[part], kind, op);
        if (!same_float(value_of(get_bits(result + part * size, kind), kind), expected)) {
            return false;
        }
    }
    return true;
}

static void check_against_definition(gr_dtype dtype, gr_redop op, uint64_t *state)
{
    unsigned char a[COUNT_MAX * ELEMENT_MAX], b[COUNT_MAX * ELEMENT_MAX];
    unsigned char dst[COUNT_MAX * ELEMENT_MAX];
    size_t size = gr_dtype_bytes(dtype);
    fill(a, COUNT_MAX, dtype, state);
    fill(b, COUNT_MAX, dtype, state);
    gr_reduce_kernel(GR_ISA_C, dtype, op)(dst, a, b, COUNT_MAX);
    for (size_t i = 0; i < COUNT_MAX; i++) {
        const unsigned char *x = a + i * size, *y = b + i * size, *got = dst + i * size;
        if (!is_defined(dtype, op, x, y, got)) {
            gr_dtype kind = part_of(dtype);
            fail_msg("%s %s of %#llx and %#llx gives %#llx", gr_dtype_name(dtype),
                     gr_redop_name(op), (unsigned long long)get_bits(x, kind),
                     (unsigned long long)get_bits(y, kind),
                     (unsigned long long)get_bits(got, kind));
        }
    }
}

static bool has_kernel(int dtype, int op)
{
    return op != GR_USER && vals_reducible((gr_dtype)dtype, (gr_redop)op);
}

static void kernels_are_those_of_the_public_header(void **unused)
{
    (void)unused;
    for (int isa = 0; isa < GR_ISA_COUNT; isa++) {
        for (int dtype = 0; gr_isa_usable((gr_isa)isa) && dtype < GR_DTYPE_COUNT; dtype++) {
            for (int op = 0; op < GR_REDOP_COUNT; op++) {
                gr_reduce_fn *kernel = gr_reduce_kernel((gr_isa)isa, (gr_dtype)dtype, (gr_redop)op);
                assert_int_equal(kernel != NULL, has_kernel(dtype, op));
                assert_int_equal(gr_dtype_reduces((gr_dtype)dtype, (gr_redop)op),
                                 vals_reducible((gr_dtype)dtype, (gr_redop)op));
            }
            assert_int_equal(gr_dtype_scales((gr_dtype)dtype), dtype != GR_BOOL);
        }
    }
    char text[64];
    gr_dtype_list_reductions(GR_COMPLEX128, text, sizeof text);
    assert_string_equal(text, "sum, average or product");
}

static void test_reference_is_the_definition(void **unused)
{
    (void)unused;
    uint64_t state = 1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
            for (int op = 0; op < GR_REDOP_COUNT; op++) {
                if (has_kernel(dtype, op)) {
                    check_against_definition((gr_dtype)dtype, (gr_redop)op, &state);
                }
            }
        }
    }
}

static void test_every_f16_and_its_neighbours_round_right(void **unused)
{
    (void)unused;
    gr_reduce_fn *sum = gr_reduce_kernel(GR_ISA_C, GR_F16, GR_SUM);
    gr_reduce_fn *product = gr_reduce_kernel(GR_ISA_C, GR_F16, GR_PRODUCT);
    const uint16_t others[] = {0x0000, 0x8000, 0x0001, 0x3c00, 0xbc01, 0x1400, 0x7bff, 0x03ff};
    for (uint32_t x = 0; x < 0x10000; x++) {
        for (size_t k = 0; k < sizeof others / sizeof others[0]; k++) {
            uint16_t a = (uint16_t)x;
            uint16_t dst;
            double x_value = value_of(a, GR_F16), y_value = value_of(others[k], GR_F16);
            sum(&dst, &a, &others[k], 1);
            double expected = expected_float(x_value, y_value, GR_F16, GR_SUM);
            assert_true(same_float(value_of(dst, GR_F16), expected));
            product(&dst, &a, &others[k], 1);
            expected = expected_float(x_value, y_value, GR_F16, GR_PRODUCT);
            assert_true(same_float(value_of(dst, GR_F16), expected));
        }
    }
}

/* NaNs may differ in sign and payload. */
static bool same_elements(const unsigned char *x, const unsigned char *y, size_t count,
                          gr_dtype dtype)
{
    if (vals_complex(dtype)) {
        return same_elements(x, y, 2 * count, part_of(dtype));
    }
    size_t size = gr_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        uint64_t left = get_bits(x + i * size, dtype);
        uint64_t right = get_bits(y + i * size, dtype);
        bool both_nan =
            is_float(dtype) && isnan(value_of(left, dtype)) && isnan(value_of(right, dtype));
        if (left != right && !both_nan) {
            return false;
        }
    }
    return true;
}

/* One call at odd addresses, with dst apart (0), on a (1) or on b (2); nothing behind the end
 * moves. */
static void check_isa(gr_isa isa, gr_dtype dtype, gr_redop op, size_t count, int place,
                      uint64_t *state)
{
    static const size_t offsets[] = {0, 1, 4, 7};
    size_t size = gr_dtype_bytes(dtype);
    unsigned char memory[3][COUNT_MAX * ELEMENT_MAX + GUARD + 8], expected[COUNT_MAX * ELEMENT_MAX];
    unsigned char *at[3];
    for (int k = 0; k < 3; k++) {
        at[k] = memory[k] + offsets[next_random(state) % 4];
        memset(memory[k], 0xa5, sizeof memory[k]);
    }
    fill(at[1], count, dtype, state);
    fill(at[2], count, dtype, state);
    gr_reduce_kernel(GR_ISA_C, dtype, op)(expected, at[1], at[2], count);
    gr_reduce_kernel(isa, dtype, op)(at[place], at[1], at[2], count);
    if (!same_elements(at[place], expected, count, dtype)) {
        fail_msg("%s differs from c: %s %s, %zu elements, place %d", gr_isa_name(isa),
                 gr_dtype_name(dtype), gr_redop_name(op), count, place);
    }
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < GUARD; i++) {
            assert_int_equal(at[k][count * size + (size_t)i], 0xa5);
        }
    }
}

static void test_every_isa_gives_the_bits_of_the_reference(void **unused)
{
    (void)unused;
    uint64_t state = 2;
    for (int isa = 0; isa < GR_ISA_COUNT; isa++) {
        if (!gr_isa_usable((gr_isa)isa)) {
            assert_null(gr_reduce_kernel((gr_isa)isa, GR_F32, GR_SUM));
            continue;
        }
        for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
            for (int op = 0; op < GR_REDOP_COUNT; op++) {
                for (size_t count = 0; has_kernel(dtype, op) && count < COUNT_MAX;
                     count += count < 70 ? 1 : 37) {
                    check_isa((gr_isa)isa, (gr_dtype)dtype, (gr_redop)op, count, (int)(count % 3),
                              &state);
                }
            }
        }
    }
}

/* Into any two of an operand each and two places of their own. */
static void check_both(gr_isa isa, gr_dtype dtype, gr_redop op, size_t count, uint64_t *state)
{
    static const int places[][2] = {{0, 1}, {1, 0}, {2, 0}, {0, 3}, {3, 2}, {2, 3}};
    gr_reduce_both_fn *both = gr_reduce_both_kernel(isa, dtype, op);
    bool summed = op == GR_SUM || op == GR_AVERAGE;
    assert_true((both != NULL) ==
                (summed && (part_of(dtype) == GR_F32 || part_of(dtype) == GR_F64)));
    for (size_t i = 0; both && i < sizeof places / sizeof places[0]; i++) {
        unsigned char at[4][COUNT_MAX * ELEMENT_MAX + 1], expected[COUNT_MAX * ELEMENT_MAX];
        size_t bytes = count * gr_dtype_bytes(dtype);
        unsigned char *a = at[0] + 1, *b = at[1] + 1;
        unsigned char *dst = at[places[i][0]] + 1, *also = at[places[i][1]] + 1;
        memset(at, 0xa5, sizeof at);
        fill(a, count, dtype, state);
        fill(b, count, dtype, state);
        gr_reduce_kernel(GR_ISA_C, dtype, op)(expected, a, b, count);
        both(dst, also, a, b, count);
        assert_true(same_elements(dst, expected, count, dtype));
        assert_memory_equal(dst, also, bytes);
        assert_true(dst[-1] == 0xa5 && also[-1] == 0xa5);
        assert_true(count == COUNT_MAX || (dst[bytes] == 0xa5 && also[bytes] == 0xa5));
    }
}

static void test_both_places_get_the_bits_of_the_reference(void **unused)
{
    (void)unused;
    uint64_t state = 3;
    for (int isa = 0; isa < GR_ISA_COUNT; isa++) {
        if (!gr_isa_usable((gr_isa)isa)) {
            assert_null(gr_reduce_both_kernel((gr_isa)isa, GR_F32, GR_SUM));
            continue;
        }
        for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
            for (int op = 0; op < GR_REDOP_COUNT; op++) {
                for (size_t count = 1; has_kernel(dtype, op) && count <= COUNT_MAX;
                     count += count < 70 ? 3 : 37) {
                    check_both((gr_isa)isa, (gr_dtype)dtype, (gr_redop)op, count, &state);
                }
            }
        }
    }
}

static void check_scale(gr_dtype dtype, int divisor, uint64_t *state)
{
    unsigned char before[COUNT_MAX * ELEMENT_MAX], memory[COUNT_MAX * ELEMENT_MAX + 1];
    unsigned char *buf = memory + 1;
    size_t count = COUNT_MAX / parts_of(dtype);
    fill(before, count, dtype, state);
    memcpy(buf, before, count * gr_dtype_bytes(dtype));
    gr_scale_inverse(buf, count, dtype, divisor);
    dtype = part_of(dtype);
    size_t size = gr_dtype_bytes(dtype);
    for (size_t i = 0; i < COUNT_MAX; i++) {
        uint64_t x = get_bits(before + i * size, dtype);
        uint64_t got = get_bits(buf + i * size, dtype);
        if (is_signed(dtype)) {
            assert_true(integer_of(got, dtype) == integer_of(x, dtype) / divisor);
        } else if (!is_float(dtype)) {
            assert_true(got == x / (uint64_t)divisor);
        } else if (dtype == GR_F32) {
            float quotient = (float)value_of(x, dtype) / (float)divisor;
            assert_true(same_float(value_of(got, dtype), (double)quotient));
        } else if (dtype == GR_F64) {
            assert_true(same_float(value_of(got, dtype), value_of(x, dtype) / divisor));
        } else {
            float quotient = (float)value_of(x, dtype) / (float)divisor;
            assert_true(same_float(value_of(got, dtype), round_to((double)quotient, dtype)));
        }
    }
}

static void test_scale_divides_exactly(void **unused)
{
    (void)unused;
    static const int divisors[] = {1, 2, 3, 4, 5, 7, 8, 10, 64, 100, 1 << 20};
    uint64_t state = 3;
    for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
        for (size_t k = 0; dtype != GR_BOOL && k < sizeof divisors / sizeof divisors[0]; k++) {
            check_scale((gr_dtype)dtype, divisors[k], &state);
        }
    }
}

static double expected_multiple(uint64_t x, gr_dtype dtype, double factor)
{
    if (dtype == GR_F64) {
        return value_of(x, dtype) * factor;
    }
    if (is_float(dtype)) {
        float product = (float)value_of(x, dtype) * (float)factor;
        return dtype == GR_F32 ? (double)product : round_to((double)product, dtype);
    }
    int bits = (int)(8 * gr_dtype_bytes(dtype));
    double limit = ldexp(1, bits - is_signed(dtype)), least = is_signed(dtype) ? -limit : 0;
    double product = trunc(number_of(x, dtype) * factor);
    if (product >= limit) {
        return bits == 64 ? limit : limit - 1;
    }
    return product < least ? least : product + 0.0; /* -0 becomes 0 */
}

static void check_multiply(gr_dtype dtype, double factor, uint64_t *state)
{
    unsigned char memory[COUNT_MAX * ELEMENT_MAX + 1], out[COUNT_MAX * ELEMENT_MAX + GUARD];
    unsigned char *from = memory + 1;
    size_t count = COUNT_MAX / parts_of(dtype);
    fill(from, count, dtype, state);
    memset(out, 0xa5, sizeof out);
    gr_scale_to(out, from, count, dtype, factor);
    assert_int_equal(out[count * gr_dtype_bytes(dtype)], 0xa5);
    gr_dtype kind = part_of(dtype);
    size_t size = gr_dtype_bytes(kind);
    for (size_t i = 0; i < COUNT_MAX; i++) {
        uint64_t got = get_bits(out + i * size, kind);
        double expected = expected_multiple(get_bits(from + i * size, kind), kind, factor);
        double result = is_float(kind) ? value_of(got, kind) : number_of(got, kind);
        assert_true(same_float(result, expected));
    }
    gr_scale(from, count, dtype, factor);
    assert_true(same_elements(from, out, count, dtype));
}

static void test_factors_multiply_and_integers_stop_at_their_ends(void **unused)
{
    (void)unused;
    static const double factors[] = {1, 0.5, -3, 1.0 / 3, 0, 1e-6, 250.5, 1e20};
    uint64_t state = 4;
    for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
        for (size_t k = 0; dtype != GR_BOOL && k < sizeof factors / sizeof factors[0]; k++) {
            check_multiply((gr_dtype)dtype, factors[k], &state);
        }
    }
    int64_t most[2] = {INT64_MAX, INT64_MIN};
    gr_scale(most, 2, GR_I64, 1.0);
    assert_true(most[0] == INT64_MAX && most[1] == INT64_MIN);
    uint64_t large[2] = {UINT64_MAX, 5};
    gr_scale(large, 2, GR_U64, 1.0);
    assert_true(large[0] == UINT64_MAX && large[1] == 5);
    gr_scale(large, 2, GR_U64, -1.0);
    assert_true(large[0] == 0 && large[1] == 0);
    gr_scale(most, 2, GR_I64, (double)NAN);
    assert_true(most[0] == 0 && most[1] == 0);
}

static void test_scaled_values_are_added_and_what_is_not_finite_is_told(void **unused)
{
    (void)unused;
    float from[COUNT_MAX], to[COUNT_MAX + 1], expected[COUNT_MAX];
    for (size_t i = 0; i < COUNT_MAX; i++) {
        from[i] = 1.0f / (float)(i + 3);
        to[i] = (float)i - 0.7f;
        volatile float product = -0.3f * from[i];
        expected[i] = to[i] + product;
    }
    to[COUNT_MAX] = 5.0f;
    assert_true(gr_add_scaled_best()(to, from, -0.3f, COUNT_MAX));
    assert_memory_equal(to, expected, sizeof expected);
    assert_true(same_float((double)to[COUNT_MAX], 5.0));
    for (size_t i = 0; i < COUNT_MAX; i++) {
        float kept = from[i];
        from[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
        assert_false(gr_add_scaled_best()(to, from, 1.0f, COUNT_MAX));
        from[i] = kept;
    }
}

static void test_names_and_sizes(void **unused)
{
    (void)unused;
    static const char *const names[GR_DTYPE_COUNT] = {
        "f32", "f64",  "f16", "bf16", "i32", "i64",       "i8",        "u8",
        "i16", "bool", "u16", "u32",  "u64", "complex64", "complex128"};
    static const size_t sizes[GR_DTYPE_COUNT] = {4, 8, 2, 2, 4, 8, 1, 1, 2, 1, 2, 4, 8, 8, 16};
    for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
        assert_string_equal(gr_dtype_name((gr_dtype)dtype), names[dtype]);
        assert_int_equal(gr_dtype_bytes((gr_dtype)dtype), sizes[dtype]);
    }
    assert_int_equal(gr_dtype_bytes((gr_dtype)GR_DTYPE_COUNT), 0);
    assert_string_equal(gr_redop_name(GR_AVERAGE), "average");
    assert_string_equal(gr_redop_name(GR_PRODUCT), "product");
    assert_string_equal(gr_redop_name(GR_USER), "user");
    assert_string_equal(gr_redop_name(GR_BAND), "band");
    assert_string_equal(gr_redop_name(GR_BOR), "bor");
    assert_string_equal(gr_redop_name(GR_BXOR), "bxor");
    assert_string_equal(gr_redop_name((gr_redop)9), "?");
    assert_string_equal(gr_dtype_name((gr_dtype)GR_DTYPE_COUNT), "?");
    assert_null(gr_reduce_kernel(GR_ISA_C, GR_F32, GR_USER));
    assert_null(gr_reduce_kernel(GR_ISA_C, (gr_dtype)GR_DTYPE_COUNT, GR_SUM));
    assert_null(gr_reduce_kernel(GR_ISA_C, GR_F32, (gr_redop)-1));
    assert_true(gr_isa_usable(GR_ISA_C));
    assert_true(gr_isa_usable(gr_isa_best()));
    assert_false(gr_isa_usable((gr_isa)GR_ISA_COUNT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_are_those_of_the_public_header),
        cmocka_unit_test(test_reference_is_the_definition),
        cmocka_unit_test(test_every_f16_and_its_neighbours_round_right),
        cmocka_unit_test(test_every_isa_gives_the_bits_of_the_reference),
        cmocka_unit_test(test_both_places_get_the_bits_of_the_reference),
        cmocka_unit_test(test_scale_divides_exactly),
        cmocka_unit_test(test_factors_multiply_and_integers_stop_at_their_ends),
        cmocka_unit_test(test_scaled_values_are_added_and_what_is_not_finite_is_told),
        cmocka_unit_test(test_names_and_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
