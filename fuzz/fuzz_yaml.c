/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as a job file: read into a tree, walked, each value read as each type and as the values
 * of a settings table. Whatever is wrong with them must end as a sentence. */

#include "base/config.h"
#include "doc/config_node.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* Each failure says so in words that begin with the file. */
static void check(gr_status status, gr_diag *diag)
{
    if (status != GR_OK) {
        require(diag->status == status);
        require(strncmp(diag->text, "job.yaml", 8) == 0);
        require(memchr(diag->text, '\0', sizeof diag->text) != NULL);
        require(strpbrk(diag->text, "\n\r\033") == NULL);
    }
    *diag = (gr_diag){0};
}

static void read_as_each_type(const gr_node *node)
{
    static const char *const known[] = {"model", "data", "optimizer", "epochs", NULL};
    gr_diag diag = {0};
    int64_t whole = 0;
    double real = 0.0;
    const char *text = NULL;
    gr_status status = gr_node_int(node, 1, 4096, &whole, &diag);
    require(status != GR_OK || (whole >= 1 && whole <= 4096));
    check(status, &diag);
    status = gr_node_double(node, -(double)INFINITY, 0.5, &real, &diag);
    require(status != GR_OK || real <= 0.5);
    check(status, &diag);
    status = gr_node_text(node, &text, &diag);
    require(status != GR_OK || text == node->text);
    check(status, &diag);
    check(gr_node_only(node, known, &diag), &diag);
}

/* Counts the nodes as they are written out; the document promises a limit. */
static int walk(const gr_node *node, int depth, int *budget)
{
    int count = 0;
    require(depth <= GR_DOC_DEPTH_MAX);
    require(node->line >= 1 && strcmp(node->file, "job.yaml") == 0);
    require((node->kind == GR_NODE_SCALAR) == (node->text != NULL));
    if ((*budget)-- > 0) {
        read_as_each_type(node);
    }
    for (const gr_node *child = node->child; child != NULL; child = child->next) {
        require(node->kind == GR_NODE_MAP || node->kind == GR_NODE_LIST);
        require((node->kind == GR_NODE_MAP) == (child->key != NULL));
        if (child->key != NULL && *budget > 0) {
            require(gr_node_get(node, child->key) == child); /* each key stands once */
        }
        walk(child, depth + 1, budget);
        count++;
    }
    require(count == node->count);
    return count;
}

typedef struct job_config {
    const gr_node *model;
    const char *name;
    int loss;
    int64_t seed;
    double epochs;
    int64_t bucket_bytes, wait_us;
    bool exact;
} job_config;

static const char *const losses[] = {"cross_entropy", "mse", NULL};

static const gr_config_field fields[] = {
    {.key = "model", .type = GR_CONFIG_NODE, .offset = offsetof(job_config, model)},
    {.key = "name", .type = GR_CONFIG_TEXT, .offset = offsetof(job_config, name)},
    {.key = "loss",
     .type = GR_CONFIG_CHOICE,
     .offset = offsetof(job_config, loss),
     .choices = losses},
    {.key = "seed", .type = GR_CONFIG_INT, .offset = offsetof(job_config, seed)},
    {.key = "epochs",
     .type = GR_CONFIG_DOUBLE,
     .offset = offsetof(job_config, epochs),
     .min = 0,
     .max = 1e6},
    {.key = "bucket", .type = GR_CONFIG_BYTES, .offset = offsetof(job_config, bucket_bytes)},
    {.key = "wait", .type = GR_CONFIG_DURATION, .offset = offsetof(job_config, wait_us)},
    {.key = "exact", .type = GR_CONFIG_BOOL, .offset = offsetof(job_config, exact)},
    {0}};

static const gr_config_table table = {
    .name = "job", .fields = fields, .struct_bytes = sizeof(job_config)};

static void read_as_config(const gr_doc *doc)
{
    job_config config;
    gr_arena arena;
    gr_diag diag = {0};
    gr_arena_init(&arena, 1 << 20);
    check(gr_config_defaults(&table, &config, &arena, &diag), &diag);
    gr_status status = gr_config_from_node(&table, &config, gr_doc_root(doc), &arena, &diag);
    require(status != GR_OK || (config.epochs >= 0 && config.epochs <= 1e6));
    check(status, &diag);
    gr_arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = size > 0 ? (const char *)data : "";
    for (int json = 0; json < 2; json++) {
        gr_doc *doc = NULL;
        gr_diag diag = {0};
        gr_status status = json ? gr_doc_parse_json("job.yaml", text, size, &doc, &diag)
                                : gr_doc_parse_yaml("job.yaml", text, size, &doc, &diag);
        require((status == GR_OK) == (doc != NULL));
        check(status, &diag);
        if (doc != NULL) {
            int budget = 2000; /* reads; a walk alone is cheap */
            walk(gr_doc_root(doc), 0, &budget);
            read_as_config(doc);
        }
        gr_doc_destroy(doc);
    }
    return 0;
}
