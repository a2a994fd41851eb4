/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_UPDATER_H
#define GR_TRAIN_UPDATER_H

/* The optimizers of the trainer on a parameter server: the same kernels, the same bits. */

#include "nn/optimizer.h"
#include "ps/store/store.h"

/* A tensor's `optimizer` is the text of an `optimizer:` part of a job file, YAML or JSON; an empty
 * one means the defaults. Weight decay applies if it is not 0. The learning rate is that of each
 * push, so schedules and linear scaling are the workers' matter; clip_norm is refused, since no
 * server sees the whole gradient. GR_UPDATER_SUM: values are the sum of the gradients of the last
 * step, whatever they were before, and whoever pulls them runs the optimizer. */
#define GR_UPDATER_SUM "sum"
gr_ps_updater_ops gr_updater_ops(void);

/* The text with which a server does to a tensor what the trainer with this config does to one whose
 * weights decay or (not `decay`) do not. The same config gives the same text everywhere. */
enum { GR_UPDATER_TEXT_BYTES = 512 };
void gr_updater_text(const gr_optimizer_config *config, bool decay,
                     char text_out[GR_UPDATER_TEXT_BYTES]);

/* What checkpoints call the index-th vector of states of a tensor with this text; NULL: the text is
 * of no optimizer of ours, or it has no such vector. */
const char *gr_updater_state_name(const char *text, int index);

#endif
