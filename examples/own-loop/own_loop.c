/* SPDX-License-Identifier: Apache-2.0 */

/* Logistic regression on handwritten digits with a training loop of one's own: Gradus only makes
 * the gradients meet. Every rank reads all samples, works on its shards of each batch, and ends
 * with the same weights, bit for bit, whatever the number of workers.
 *
 *   gradus run -np 3 -- ./own_loop digits.csv.gz */

#include <gradus/gradus.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { PIXELS = 64, CLASSES = 10, TRAIN = 1400, TEST = 397, SHARDS = 8, BATCH = 40, EPOCHS = 20 };
enum { WEIGHTS = CLASSES * (PIXELS + 1) };

static float images[TRAIN + TEST][PIXELS + 1]; /* the last input is 1: the bias */
static int labels[TRAIN + TEST];

static int read_digits(const char *path)
{
    char line[1024];
    int count = 0;
    gzFile file = gzopen(path, "rb");
    while (file != NULL && count < TRAIN + TEST && gzgets(file, line, sizeof line) != NULL) {
        char *at = line;
        for (int p = 0; p < PIXELS; p++) {
            images[count][p] = strtof(at, &at) / 16.0f;
            at += *at == ',';
        }
        images[count][PIXELS] = 1.0f;
        labels[count++] = (int)strtol(at, NULL, 10);
    }
    gzclose(file);
    return count;
}

/* The classes' probabilities for one image; returns the most likely one. */
static int predict(const float *weights, const float *image, float *probability)
{
    float largest = -INFINITY, total = 0.0f;
    int best = 0;
    for (int c = 0; c < CLASSES; c++) {
        probability[c] = 0.0f;
        for (int p = 0; p <= PIXELS; p++) {
            probability[c] += weights[c * (PIXELS + 1) + p] * image[p];
        }
        if (probability[c] > largest) {
            largest = probability[c];
            best = c;
        }
    }
    for (int c = 0; c < CLASSES; c++) {
        total += probability[c] = expf(probability[c] - largest);
    }
    for (int c = 0; c < CLASSES; c++) {
        probability[c] /= total;
    }
    return best;
}

/* The gradient of one shard: samples [first, first + BATCH / SHARDS). */
static void shard_gradient(const float *weights, int first, float *gradient)
{
    float probability[CLASSES];
    memset(gradient, 0, WEIGHTS * sizeof(float));
    for (int i = first; i < first + BATCH / SHARDS; i++) {
        predict(weights, images[i], probability);
        for (int c = 0; c < CLASSES; c++) {
            float error = (probability[c] - (float)(c == labels[i])) / BATCH;
            for (int p = 0; p <= PIXELS; p++) {
                gradient[c * (PIXELS + 1) + p] += error * images[i][p];
            }
        }
    }
}

int main(int argc, char **argv)
{
    gr_comm *comm;
    gr_diag diag;
    if (argc != 2 || read_digits(argv[1]) != TRAIN + TEST) {
        fprintf(stderr, "usage: own_loop digits.csv.gz\n");
        return 2;
    }
    if (gr_comm_create(NULL, &comm, &diag) != GR_OK) {
        fprintf(stderr, "%s\n", diag.text);
        return 1;
    }
    int first, count;
    static float weights[WEIGHTS], gradient[SHARDS][WEIGHTS];
    gr_shard_range(SHARDS, gr_comm_size(comm), gr_comm_rank(comm), &first, &count);
    for (int start = 0; start + BATCH <= TRAIN * EPOCHS; start += BATCH) {
        /* Each rank fills the rows of its shards and the sum gathers them; then all add alike. */
        memset(gradient, 0, sizeof gradient);
        for (int s = first; s < first + count; s++) {
            shard_gradient(weights, start % TRAIN + s * (BATCH / SHARDS), gradient[s]);
        }
        if (gr_allreduce(comm, gradient, SHARDS * WEIGHTS, GR_F32, GR_SUM) != GR_OK) {
            fprintf(stderr, "%s\n", gr_comm_diag(comm)->text);
            return 1;
        }
        for (int s = 0; s < SHARDS; s++) {
            for (int w = 0; w < WEIGHTS; w++) {
                weights[w] -= 0.5f * gradient[s][w];
            }
        }
    }
    int right = 0;
    float probability[CLASSES];
    for (int i = TRAIN; i < TRAIN + TEST; i++) {
        right += predict(weights, images[i], probability) == labels[i];
    }
    printf("rank %d of %d: test accuracy %.2f %%, first weights %a %a\n", gr_comm_rank(comm),
           gr_comm_size(comm), 100.0 * right / TEST, (double)weights[20], (double)weights[21]);
    gr_comm_destroy(comm);
    return 0;
}
