/* SPDX-License-Identifier: Apache-2.0 */
/* The rows that a program adds to the sets of the engine, by a definition of its own in place of
 * one of these. They stand in a file apart: a compiler that sees an array of one element takes its
 * size for granted. */
#include "nn/layer.h"
#include "nn/optimizer.h"

__attribute__((weak)) const gr_layer_ops *const gr_extra_layers[] = {NULL};
__attribute__((weak)) const gr_backend *const gr_extra_backends[] = {NULL};
__attribute__((weak)) const gr_optimizer_ops *const gr_extra_optimizers[] = {NULL};
