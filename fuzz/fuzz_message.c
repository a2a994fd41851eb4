/* SPDX-License-Identifier: Apache-2.0 */

/* What members and coordinator say to each other: any bytes, as they are and with a right length
 * and checksum. What decodes is within its limits and encodes to the same bytes. */

#include "base/codec.h"
#include "base/hash.h"
#include "group/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORLD = 4 };

typedef struct input {
    gr_message_kind kind;
    const uint8_t *body;
    size_t body_bytes;
    uint8_t *out; /* with room for any message to WORLD members */
} input;

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* `size` bytes of in->out are what the message would be as one of its own. */
static void expect_body(const input *in, size_t size)
{
    require(size == GR_MESSAGE_HEAD_BYTES + in->body_bytes);
    require(memcmp(in->out + GR_MESSAGE_HEAD_BYTES, in->body, in->body_bytes) == 0);
}

static void check_member(const gr_member *member)
{
    require(memchr(member->host_name, '\0', sizeof member->host_name) != NULL);
    require(memchr(member->local, '\0', sizeof member->local) != NULL);
    require(memchr(member->remote, '\0', sizeof member->remote) != NULL);
    require(memchr(member->failover, '\0', sizeof member->failover) != NULL);
    require(member->number < GR_GROUP_WORLD_MAX);
}

static void try_small(const input *in, gr_diag *diag)
{
    gr_hello hello;
    gr_missing missing;
    gr_diag failure;
    gr_assignment assignment;
    gr_history history;
    uint64_t generation;
    gr_op_report report;
    if (gr_op_report_get(in->body, in->body_bytes, GR_GROUP_WORLD_MAX, &report, diag) == GR_OK) {
        require(memchr(report.text, '\0', sizeof report.text) != NULL);
        require(report.awaits_count <= GR_REPORT_AWAITS_MAX);
        expect_body(in, gr_message_put_report(&report, in->out));
    }
    if (gr_message_get_hello(in->body, in->body_bytes, &hello, diag) == GR_OK) {
        check_member(&hello.member);
        expect_body(in, gr_message_put_hello(&hello, in->out));
    }
    if (gr_message_get_missing(in->body, in->body_bytes, &missing, diag) == GR_OK) {
        require(missing.listed <= GR_MISSING_LISTED_MAX && missing.total <= GR_GROUP_WORLD_MAX);
        expect_body(in, gr_message_put_missing(&missing, in->out));
    }
    if (gr_message_get_fail(in->body, in->body_bytes, &failure, diag) == GR_OK) {
        require(memchr(failure.text, '\0', sizeof failure.text) != NULL);
        expect_body(in, gr_message_put_fail(&failure, in->out));
    }
    if (gr_message_get_assignment(in->body, in->body_bytes, &assignment, diag) == GR_OK) {
        require(assignment.rank < assignment.world_size &&
                assignment.world_size <= GR_GROUP_WORLD_MAX);
        expect_body(in, gr_message_put_assignment(&assignment, in->out));
    }
    if (gr_message_get_ready(in->body, in->body_bytes, &generation, diag) == GR_OK) {
        expect_body(in, gr_message_put_ready(generation, in->out));
    }
    if (gr_message_get_history(in->body, in->body_bytes, &history, diag) == GR_OK) {
        require(history.committed <= history.accepted);
        expect_body(in, gr_message_put_history(&history, in->out));
    }
}

static void try_members(const input *in, gr_diag *diag)
{
    gr_member members[WORLD];
    uint64_t generation;
    for (int world = 1; world <= WORLD; world++) {
        if (gr_message_get_members(in->body, in->body_bytes, world, &generation, members, diag) ==
            GR_OK) {
            for (int rank = 0; rank < world; rank++) {
                check_member(&members[rank]);
            }
            expect_body(in, gr_message_put_members(generation, world, members, in->out));
        }
    }
}

static void try_bytes(const uint8_t *bytes, size_t size, uint8_t *out)
{
    input in = {.out = out};
    gr_diag diag = {0};
    gr_status status = gr_message_get(bytes, size, &in.kind, &in.body, &in.body_bytes, &diag);
    require(status == GR_OK || status == GR_PENDING || diag.text[0] != '\0');
    if (status == GR_OK) {
        require(in.kind > 0 && in.kind < GR_MESSAGE_KIND_END);
        require(in.body_bytes <= size - GR_MESSAGE_HEAD_BYTES);
        /* Each decoder sees each body: the receiver's state says which is meant, not the sender. */
        if (in.body_bytes + GR_MESSAGE_HEAD_BYTES <= GR_MESSAGE_SMALL_MAX) {
            try_small(&in, &diag);
        }
        try_members(&in, &diag);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    uint8_t *out = malloc(gr_message_members_max(WORLD) + GR_MESSAGE_SMALL_MAX);
    require(exact != NULL && out != NULL);
    if (size > 0) {
        memcpy(exact, data, size);
    }
    try_bytes(exact, size, out);
    if (size >= GR_MESSAGE_HEAD_BYTES) {
        size_t body = size - GR_MESSAGE_HEAD_BYTES;
        gr_put_u32(exact + 8, (uint32_t)body);
        gr_put_u32(exact + 12, 0);
        gr_put_u64(exact + 16, gr_hash64(exact + GR_MESSAGE_HEAD_BYTES, body,
                                         gr_hash64(exact, 16, gr_get_u32(exact))));
        try_bytes(exact, size, out);
    }
    free(exact);
    free(out);
    return 0;
}
