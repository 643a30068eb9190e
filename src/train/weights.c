#include "train/weights.h"

#include "formats/json.h"
#include "train/specs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool shape_matches(const struct safetensors_tensor *t, const struct model_param *p)
{
    if (t->rank != p->ndim)
        return false;
    for (int i = 0; i < p->ndim; i++)
        if (t->shape[i] != p->dim[i])
            return false;
    return true;
}

static int check_param(const struct safetensors_set *set, const struct model_param *p, const char *directory,
                       struct error *err)
{
    const char *remedy = "config.json and weights must belong to one model";
    const struct safetensors_tensor *t = safetensors_set_find(set, p->name);
    if (!t)
        return error_set(err, ERROR_INPUT, directory, remedy, "the tensor %s is missing", p->name);
    char have[96];
    safetensors_describe(t, have, sizeof have);
    if (!dtype_info(t->dtype)->is_float)
        return error_set(err, ERROR_INPUT, t->path, "save the weights as F32, BF16 or F16",
                         "%s is %s, which holds no weights", p->name, have);
    if (shape_matches(t, p))
        return 0;
    if (p->ndim == 1)
        return error_set(err, ERROR_INPUT, t->path, remedy, "%s is %s, but config.json asks for [%lld]",
                         p->name, have, (long long)p->dim[0]);
    return error_set(err, ERROR_INPUT, t->path, remedy, "%s is %s, but config.json asks for [%lld, %lld]",
                     p->name, have, (long long)p->dim[0], (long long)p->dim[1]);
}

static bool knows(const struct model *m, const char *name)
{
    for (int u = 0; u < m->unit_count; u++)
        for (int k = 0; k < m->units[u].param_count; k++)
            if (model_specs_owns(m, u, k) && strcmp(m->units[u].params[k].name, name) == 0)
                return true;
    return false;
}

int weights_open(struct safetensors_set *set, const struct model *model, const char *directory,
                 const struct log *log, struct error *err)
{
    if (safetensors_set_open(set, directory, err) != 0)
        return -1;
    for (int u = 0; u < model->unit_count; u++) {
        for (int k = 0; k < model->units[u].param_count; k++) {
            if (model_specs_owns(model, u, k) &&
                check_param(set, &model->units[u].params[k], directory, err) != 0) {
                safetensors_set_close(set);
                return -1;
            }
        }
    }
    for (int64_t i = 0; i < set->count; i++)
        if (!knows(model, set->tensors[i]->name))
            log_warning(log, "%s: the tensor %s is not part of a %s model and is ignored",
                        set->tensors[i]->path, set->tensors[i]->name, model->config.model_type);
    return 0;
}

struct load_context {
    const struct model *model;
    const struct safetensors_set *set;
};

static int load_piece(void *context, int unit, int param, int64_t first, int64_t n, float *out,
                      struct error *err)
{
    const struct load_context *c = context;
    const char *name = c->model->units[unit].params[param].name;
    const struct safetensors_tensor *t = safetensors_set_find(c->set, name);
    if (!t)
        return error_set(err, ERROR_INPUT, c->set->directory, NULL, "the tensor %s is missing", name);
    if (safetensors_get(t, first, n, DTYPE_F32, out, err) != 0)
        return -1;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            return error_set(err, ERROR_INPUT, t->path, "take weights from before they went wrong",
                             "element %lld of %s is %g", (long long)(first + i), name, (double)out[i]);
    return 0;
}

int weights_load_shard(struct shard *shard, const struct model *model, enum shard_kind kind,
                       const struct safetensors_set *set, struct error *err)
{
    struct load_context c = {model, set};
    return shard_fill(shard, kind, load_piece, &c, err);
}

int weights_load(struct engine *e, enum shard_kind kind, const struct safetensors_set *set, struct error *err)
{
    return weights_load_shard(e->shard, e->model, kind, set, err);
}

int64_t weights_bytes(const struct model *model, enum dtype type)
{
    return dtype_bytes(type, model_parameter_count(model));
}

/* The parameters of one file. */
struct part {
    int first, end; /* numbers in the model's order */
    int64_t bytes;
};

struct save {
    struct engine *e;
    enum shard_kind kind;
    enum dtype type;
    const char *directory, *stem;
    int (*order)[2]; /* unit, parameter: owned ones in the model's order */
    int count;
    struct part *parts;
    int part_count;
    struct safetensors_writer writer;
    uint8_t *converted;
};

static const struct model_param *save_param(const struct save *s, int i)
{
    return &s->e->model->units[s->order[i][0]].params[s->order[i][1]];
}

static int order_make(struct save *s, int64_t limit, struct error *err)
{
    const struct model *m = s->e->model;
    size_t count = 1;
    for (int u = 0; u < m->unit_count; u++)
        count += (size_t)m->units[u].param_count;
    s->order = calloc(count, sizeof *s->order);
    s->parts = calloc(count, sizeof *s->parts);
    s->converted = malloc((size_t)1 << 20);
    if (!s->order || !s->parts || !s->converted)
        return error_memory(err, count * sizeof *s->parts, "a checkpoint");
    for (int u = 0; u < m->unit_count; u++) {
        for (int k = 0; k < m->units[u].param_count; k++) {
            if (!model_specs_owns(m, u, k))
                continue;
            int64_t bytes = dtype_bytes(s->type, model_param_elements(&m->units[u].params[k]));
            if (s->part_count == 0 || s->parts[s->part_count - 1].bytes + bytes > limit) {
                if (s->part_count == 0 || s->parts[s->part_count - 1].bytes > 0)
                    s->parts[s->part_count++] = (struct part){s->count, s->count, 0};
            }
            s->order[s->count][0] = u;
            s->order[s->count][1] = k;
            s->count++;
            s->parts[s->part_count - 1].end = s->count;
            s->parts[s->part_count - 1].bytes += bytes;
        }
    }
    return 0;
}

static void part_name(const struct save *s, int part, char out[80])
{
    if (s->part_count == 1)
        snprintf(out, 80, "%s.safetensors", s->stem);
    else
        snprintf(out, 80, "%s-%05d-of-%05d.safetensors", s->stem, part + 1, s->part_count);
}

static int write_values(void *context, const float *values, int64_t n, struct error *err)
{
    struct save *s = context;
    int64_t step = (1 << 20) / dtype_bytes(s->type, 1);
    for (int64_t at = 0; at < n; at += step) {
        int64_t count = n - at < step ? n - at : step;
        dtype_convert(s->type, s->converted, DTYPE_F32, values + at, count);
        if (safetensors_writer_write(&s->writer, s->converted, (size_t)dtype_bytes(s->type, count), err) != 0)
            return -1;
    }
    return 0;
}

static int part_open(struct save *s, int part, struct safetensors_plan *plan, struct error *err)
{
    if (safetensors_plan_metadata(plan, "format", "pt", err) != 0)
        return -1;
    for (int i = s->parts[part].first; i < s->parts[part].end; i++) {
        const struct model_param *p = save_param(s, i);
        if (safetensors_plan_add(plan, p->name, s->type, p->ndim, p->dim, err) != 0)
            return -1;
    }
    char name[80];
    part_name(s, part, name);
    char *path = file_join(s->directory, name);
    int status = path ? safetensors_writer_open(&s->writer, path, plan, err) : error_memory(err, 0, "a path");
    free(path);
    return status;
}

static int part_write(struct save *s, int part, struct weights_file *file, struct error *err)
{
    bool root = comm_rank(s->e->comm) == 0;
    struct safetensors_plan plan = {0};
    int status = root ? part_open(s, part, &plan, err) : 0;
    for (int i = s->parts[part].first; status == 0 && i < s->parts[part].end; i++)
        status = shard_fetch(s->e->shard, s->kind, s->order[i][0], s->order[i][1], write_values, s, err);
    if (root && status == 0) {
        part_name(s, part, file->name);
        status = safetensors_writer_commit(&s->writer, &file->bytes, &file->hash, err);
    } else if (root) {
        safetensors_writer_abort(&s->writer);
    }
    safetensors_plan_free(&plan);
    return status;
}

static int index_write(const struct save *s, struct weights_file *file, struct error *err)
{
    struct strbuf text = {0};
    struct json_writer w;
    char name[80];
    json_writer_start(&w, &text, 2);
    json_write_object(&w, NULL);
    json_write_object(&w, "metadata");
    json_write_int(&w, "total_size", weights_bytes(s->e->model, s->type));
    json_write_end(&w);
    json_write_object(&w, "weight_map");
    for (int part = 0; part < s->part_count; part++) {
        part_name(s, part, name);
        for (int i = s->parts[part].first; i < s->parts[part].end; i++)
            json_write_string(&w, save_param(s, i)->name, name);
    }
    json_write_end(&w);
    json_write_end(&w);
    strbuf_puts(&text, "\n");
    snprintf(file->name, sizeof file->name, "%s.safetensors.index.json", s->stem);
    file->bytes = (int64_t)text.length;
    char *path = file_join(s->directory, file->name);
    int status = text.failed || !path ? error_memory(err, 0, "an index") : 0;
    if (status == 0) {
        file->hash = hash_bytes(text.data, text.length, 0);
        status = file_write_all(path, text.data, text.length, err);
    }
    free(path);
    strbuf_free(&text);
    return status;
}

int weights_save(struct engine *e, enum shard_kind kind, enum dtype type, const char *directory,
                 const char *stem, int64_t limit, struct weights_file **files, int *file_count,
                 struct error *err)
{
    struct save s = {.e = e, .kind = kind, .type = type, .directory = directory, .stem = stem};
    *files = NULL;
    *file_count = 0;
    int status = order_make(&s, limit, err);
    struct weights_file *list = status == 0 ? calloc((size_t)s.part_count + 1, sizeof *list) : NULL;
    if (status == 0 && !list)
        status = error_memory(err, (size_t)s.part_count * sizeof *list, "a checkpoint");
    for (int part = 0; status == 0 && part < s.part_count; part++)
        status = part_write(&s, part, &list[part], err);
    int count = s.part_count;
    if (status == 0 && s.part_count > 1 && comm_rank(e->comm) == 0)
        status = index_write(&s, &list[count++], err);
    free(s.order);
    free(s.parts);
    free(s.converted);
    if (status != 0) {
        free(list);
        return -1;
    }
    *files = list;
    *file_count = count;
    return 0;
}
