/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_SERVER_MESSAGE_H
#define GR_PS_SERVER_MESSAGE_H

/* What servers send to each other: the payloads of the kinds from GR_PS_VIEW on. Pure functions. */

#include "ps/message.h"
#include "ps/server/membership_view.h"
#include "ps/store/store.h"

typedef struct gr_ps_beat {
    gr_ps_view view;
    uint64_t stamp; /* the sender's clock, above 0 */
    uint64_t echo;  /* the newest stamp of the receiver's that has come; 0: none */
} gr_ps_beat;

/* What a replica says of a block. */
typedef enum gr_ps_word {
    GR_PS_HAS = 0,     /* all updates up to this version */
    GR_PS_REFUSES = 1, /* it has no memory for the block: there is no replica of it */
    GR_PS_WHOLE = 2    /* all of the image */
} gr_ps_word;

typedef struct gr_ps_ack {
    uint64_t key, version;
    uint32_t block;
    gr_ps_word word;
} gr_ps_ack;

enum {
    GR_PS_ACKS_MAX = 64,     /* in one message */
    GR_PS_HEAD_MAX = 6 << 10 /* any payload between servers but values */
};

/* What follows an UPDATE or an IMAGE: vectors, each in COPYs of GR_PS_COPY_MAX bytes, the last one
 * shorter. Of a block of elements there is one of the sum, or one of the values and one of each
 * state; of a table's one with the numbers of the rows and then all of them, none for no rows. */
enum { GR_PS_COPY_MAX = 1 << 20 };
uint64_t gr_ps_update_bytes(const gr_ps_update *update); /* of each vector */
uint64_t gr_ps_image_bytes(const gr_ps_image *image);

/* `out` has GR_PS_HEAD_MAX. */
size_t gr_ps_put_beat(const gr_ps_beat *beat, uint8_t *out);
size_t gr_ps_put_update(const gr_ps_update *update, uint8_t *out);
size_t gr_ps_put_image(const gr_ps_image *image, uint8_t *out);
size_t gr_ps_put_acks(const gr_ps_ack *acks, int count, uint8_t *out);

gr_status gr_ps_get_beat(const uint8_t *in, size_t size_bytes, gr_ps_beat *beat_out,
                         gr_diag *diag) GR_MUST_CHECK;
/* Its clients are in `clients_out`, values and rows are to come. */
gr_status gr_ps_get_update(const uint8_t *in, size_t size_bytes, gr_ps_update *update_out,
                           int clients_out[GR_PS_PEERS_MAX], gr_diag *diag) GR_MUST_CHECK;
gr_status gr_ps_get_image(const uint8_t *in, size_t size_bytes, gr_ps_image *image_out,
                          gr_ps_seen seen_out[GR_PS_PEERS_MAX], gr_diag *diag) GR_MUST_CHECK;
gr_status gr_ps_get_acks(const uint8_t *in, size_t size_bytes, gr_ps_ack acks_out[GR_PS_ACKS_MAX],
                         int *count_out, gr_diag *diag) GR_MUST_CHECK;

#endif
