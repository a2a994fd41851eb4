/* SPDX-License-Identifier: Apache-2.0 */

/* What clients and servers of parameters say: the first byte says as what the rest is read. What
 * decodes is within its limits and encodes to the same bytes; rows lie within their message. */

#include "base/codec.h"
#include "ps/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void check_spec(const gr_ps_spec *spec)
{
    gr_diag diag = {0};
    require(gr_ps_check_spec(spec, &diag) == GR_OK);
    require(gr_ps_cut_of(spec->elements).blocks > 0);
}

/* A message of rows: two bytes each of their count and of the columns, one that says whether it
 * brings values, then the message. */
static void try_rows(const uint8_t *in, size_t size)
{
    enum { NUMBERS = 5 };
    gr_diag diag = {0};
    gr_ps_row_list list;
    uint32_t message[GR_PS_SMALL_MAX / sizeof(uint32_t)];
    if (size < NUMBERS) {
        return;
    }
    uint32_t count = gr_get_u16(in), columns = 1u + gr_get_u16(in + 2);
    size -= NUMBERS;
    memcpy(message, in + NUMBERS, size);
    if (gr_ps_get_rows(message, size, in[4] % 2 != 0, count, columns, &list, &diag) != GR_OK) {
        return;
    }
    const uint8_t *end = (const uint8_t *)message + size;
    require(list.count == count && (const uint8_t *)(list.rows + count) <= end);
    require((list.values != NULL) == (in[4] % 2 != 0));
    require(list.values == NULL || (const uint8_t *)(list.values + (size_t)count * columns) == end);
}

/* Values with their numbers: one byte for how many there are, then they. */
static void try_pairs(const uint8_t *in, size_t size)
{
    gr_diag diag = {0};
    float values[256 + 1] = {0}, back[256];
    uint32_t message[GR_PS_SMALL_MAX / sizeof(uint32_t)], again[256];
    if (size == 0) {
        return;
    }
    size_t count = in[0];
    values[count] = 1.0f;
    memcpy(message, in + 1, size - 1);
    if (gr_ps_get_pairs(message, size - 1, values, count, &diag) != GR_OK) {
        return;
    }
    require(values[count] == 1.0f);
    size_t wrote = gr_ps_put_pairs(values, count, again);
    if (wrote != 0) {
        wrote = wrote == GR_PS_PAIRS_NONE ? 0 : wrote;
        require(wrote <= size - 1 && wrote < count * sizeof *values + 1);
        require(gr_ps_get_pairs(again, wrote, back, count, &diag) == GR_OK);
        require(memcmp(back, values, count * sizeof *values) == 0);
    }
}

/* A whole payload of kind `what`; the size of what it encodes to, 0: it is malformed. */
static size_t try_one(int what, const uint8_t *in, size_t size, uint8_t *out)
{
    gr_diag diag = {0};
    gr_ps_texts texts;
    gr_ps_hello hello;
    gr_ps_spec spec;
    gr_ps_request request;
    gr_ps_done done;
    gr_ps_entry entry;
    gr_ps_counters counters;
    switch (what) {
    case 0:
        return gr_ps_get_hello(in, size, &hello, &diag) == GR_OK ? gr_ps_put_hello(&hello, out) : 0;
    case 1:
        if (gr_ps_get_spec(in, size, &spec, &texts, &diag) != GR_OK) {
            return 0;
        }
        check_spec(&spec);
        return gr_ps_put_spec(&spec, out);
    case 2:
        return gr_ps_get_request(in, size, &request, &diag) == GR_OK
                   ? gr_ps_put_request(&request, out)
                   : 0;
    case 3:
        if (gr_ps_get_done(in, size, &done, &diag) != GR_OK) {
            return 0;
        }
        require(memchr(done.text, '\0', sizeof done.text) != NULL);
        return gr_ps_put_done(&done, out);
    case 4:
        if (gr_ps_get_entry(in, size, &entry, &texts, &diag) != GR_OK) {
            return 0;
        }
        check_spec(&entry.tensor);
        return gr_ps_put_entry(&entry, out);
    default:
        return gr_ps_get_counters(in, size, &counters, &diag) == GR_OK
                   ? gr_ps_put_counters(&counters, out)
                   : 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t out[GR_PS_SMALL_MAX];
    if (size == 0 || size > GR_PS_SMALL_MAX) {
        return 0;
    }
    int what = data[0] % 8;
    if (what >= 6) {
        (what == 6 ? try_rows : try_pairs)(data + 1, size - 1);
        return 0;
    }
    size_t back = try_one(what, data + 1, size - 1, out);
    require(back == 0 || (back == size - 1 && memcmp(out, data + 1, back) == 0));
    return 0;
}
