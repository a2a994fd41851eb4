/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_EVALUATION_H
#define GR_TRAIN_EVALUATION_H

/* How good weights are on the test part. What does not exist (accuracy of a regression, R2 of
 * targets that are all equal) is NaN here and null in JSON. */

#include <gradus/status.h>

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* With more classes there is no confusion matrix, and nothing about each class. */
enum { GR_CONFUSION_CLASSES_MAX = 1024 };

typedef struct gr_confusion {
    int64_t classes;          /* 0: a regression, or too many */
    const char *const *names; /* [classes]; NULL: numbers from 0; borrowed */
    const double *counts;     /* [actual][predicted], whole numbers; borrowed */
} gr_confusion;

typedef struct gr_evaluation {
    int64_t samples;      /* of the whole test part; 0: nothing was evaluated */
    int64_t correct;      /* -1: a regression */
    double loss;          /* mean */
    double rmse, mae, r2; /* regression: root of the mean squared error, mean absolute error,
                            * coefficient of determination */
    gr_confusion confusion;
} gr_evaluation;

/* Nothing is known. */
gr_evaluation gr_evaluation_none(void);
double gr_evaluation_accuracy(const gr_evaluation *evaluation);

/* A number as JSON, which knows no NaN and no infinity: null. NULL: no memory. */
json_t *gr_json_number(double value);
/* The numbers as members "test_accuracy", "test_loss", "test_rmse", "test_mae" and "test_r2" of
 * `object`; with at most `classes_max` classes also "classes" (name, precision, recall and samples
 * of each) and "confusion" (a row of predictions for each actual class), which else are null.
 * Returns false without memory. */
bool gr_evaluation_json(const gr_evaluation *evaluation, int64_t classes_max, json_t *object);

/* For people: accuracy or errors in a line; with up to 20 classes a table of them and the confusion
 * matrix. */
void gr_evaluation_print(const gr_evaluation *evaluation, FILE *out);

#endif
