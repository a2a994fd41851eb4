/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a program that Gradus does not touch: data, model and gradient. */
#include <string.h>

enum { FEATURES = 3, WEIGHTS = FEATURES + 1 };

/* Sample i: its features, and the answer that the model has to learn. */
static float sample(int i, float *x)
{
    unsigned bits = (unsigned)i * 2654435761u + 1;
    for (int f = 0; f < FEATURES; f++) {
        bits = bits * 1664525u + 1013904223u;
        x[f] = (float)(bits >> 16) / 32768.0f - 1.0f;
    }
    return 2.0f * x[0] - 3.0f * x[1] + 0.5f * x[2] + 1.0f;
}

/* Sums the gradients of samples [first, first + count); returns the sum of their squared errors. */
static float gradient(const float *w, int first, int count, float *sum)
{
    float loss = 0.0f;
    memset(sum, 0, WEIGHTS * sizeof *sum);
    for (int i = first; i < first + count; i++) {
        float x[FEATURES], answer = sample(i, x), error = w[FEATURES] - answer;
        for (int f = 0; f < FEATURES; f++) {
            error += w[f] * x[f];
        }
        for (int f = 0; f < FEATURES; f++) {
            sum[f] += error * x[f];
        }
        sum[FEATURES] += error;
        loss += error * error;
    }
    return loss;
}
