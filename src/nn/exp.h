/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_EXP_H
#define GR_NN_EXP_H

#include <stdint.h>
#include <string.h>

/* e^x for x <= 0 from additions and products alone: libm's differs in the last bit between
 * machines, and gradients come from it. Relative error below 1e-15; 0 below -700. */
static inline double gr_exp_negative(double x)
{
    static const double terms[] = {1.0 / 6227020800.0,
                                   1.0 / 479001600.0,
                                   1.0 / 39916800.0,
                                   1.0 / 3628800.0,
                                   1.0 / 362880.0,
                                   1.0 / 40320.0,
                                   1.0 / 5040.0,
                                   1.0 / 720.0,
                                   1.0 / 120.0,
                                   1.0 / 24.0,
                                   1.0 / 6.0,
                                   0.5,
                                   1.0,
                                   1.0};
    /* x = k ln 2 + r; a number so large that no fraction fits is added and taken away again to
     * round. Its last bits are then k, which become the exponent. */
    double shifted = x * 1.44269504088896340736 + 0x1.8p52, k = shifted - 0x1.8p52;
    double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    double sum = terms[0], power;
    for (int n = 1; n < 14; n++) {
        sum = sum * r + terms[n];
    }
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    memcpy(&power, &bits, sizeof power);
    return x > -700.0 ? sum * power : x != x ? x : 0.0;
}

#endif
