/* SPDX-License-Identifier: Apache-2.0 */
/* docs/tutorial.md, step 1: a training loop on one machine. */
#include "model.h"

#include <stdio.h>

enum { BATCH = 64, STEPS = 40 };

int main(void)
{
    float w[WEIGHTS] = {0}, sum[WEIGHTS], loss = 0.0f;
    for (int step = 0; step < STEPS; step++) {
        loss = gradient(w, step * BATCH, BATCH, sum) / BATCH;
        for (int i = 0; i < WEIGHTS; i++) {
            w[i] -= 0.3f * sum[i] / BATCH;
        }
    }
    printf("loss %.5f, first weight %a\n", loss, w[0]);
    return 0;
}
