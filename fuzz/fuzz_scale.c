/* SPDX-License-Identifier: Apache-2.0 */

/* Datagrams to a running launcher: byte 0 is the size of the first, and so on. Only what has the
 * form of a request is one; the answer fits. */

#include "launch/scale.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { DATAGRAMS_MAX = 8 };
    int ends[2], yes = 1, sent = 0, taken = 0;
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        return 0;
    }
    require(setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) == 0);
    for (size_t at = 0; at < size && sent < DATAGRAMS_MAX; sent++) {
        size_t length = data[at] < size - at - 1 ? data[at] : size - at - 1;
        require(send(ends[1], data + at + 1, length, 0) == (ssize_t)length);
        at += 1 + length;
    }
    gr_scale_request request;
    while (gr_scale_receive(ends[0], &request)) {
        gr_scheduler_answer answer = {.asked = request.workers, .has = 4, .least = 2, .most = 8};
        require(request.workers >= 0 && taken++ < sent);
        for (int word = GR_WORD_TOLD; word <= GR_WORD_ENDING; word++) {
            answer.word = (gr_scheduler_word)word;
            const gr_scale_reply reply = gr_scale_word(&answer);
            require(memchr(reply.text, '\0', sizeof reply.text) != NULL && reply.text[0] != '\0');
        }
    }
    close(ends[0]);
    close(ends[1]);
    return 0;
}
