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

static const struct model_param *param_of(const struct model *m, const struct weights_tensor *t)
{
    return &m->units[t->unit].params[t->param];
}

/* Lists the model's own parameters in order, each with the file that it falls into. */
static int tensors_list(struct weights_layout *l, const struct model *m, int64_t limit, struct error *err)
{
    size_t count = 1;
    for (int u = 0; u < m->unit_count; u++)
        count += (size_t)m->units[u].param_count;
    l->tensors = calloc(count, sizeof *l->tensors);
    if (!l->tensors)
        return error_memory(err, count * sizeof *l->tensors, "the layout of a checkpoint");
    int64_t filled = 0;
    for (int u = 0; u < m->unit_count; u++) {
        for (int k = 0; k < m->units[u].param_count; k++) {
            if (!model_specs_owns(m, u, k))
                continue;
            int64_t bytes = dtype_bytes(l->type, model_param_elements(&m->units[u].params[k]));
            bool begins = l->file_count == 0 || (filled > 0 && filled + bytes > limit);
            l->file_count += begins;
            filled = begins ? bytes : filled + bytes;
            l->tensors[l->tensor_count++] = (struct weights_tensor){u, k, l->file_count - 1, 0};
        }
    }
    return 0;
}

static void file_name(const struct weights_layout *l, const char *stem, int file, char out[80])
{
    if (l->file_count == 1)
        snprintf(out, 80, "%s.safetensors", stem);
    else
        snprintf(out, 80, "%s-%05d-of-%05d.safetensors", stem, file + 1, l->file_count);
}

/* The header of one file, and where its tensors begin. */
static int file_lay_out(struct weights_layout *l, const struct model *m, int file, struct error *err)
{
    struct safetensors_plan plan = {0};
    struct weights_file *f = &l->files[file];
    int status = safetensors_plan_metadata(&plan, "format", "pt", err);
    for (int i = 0; i < l->tensor_count && status == 0; i++) {
        if (l->tensors[i].file != file)
            continue;
        const struct model_param *p = param_of(m, &l->tensors[i]);
        l->tensors[i].offset = plan.data_bytes;
        status = safetensors_plan_add(&plan, p->name, l->type, p->ndim, p->dim, err);
    }
    if (status == 0)
        status = safetensors_plan_header(&plan, f->name, &f->header, err);
    f->bytes = (int64_t)f->header.length + plan.data_bytes;
    for (int i = 0; i < l->tensor_count; i++)
        if (l->tensors[i].file == file)
            l->tensors[i].offset += (int64_t)f->header.length;
    safetensors_plan_free(&plan);
    return status;
}

static int index_make(struct weights_layout *l, const struct model *m, struct error *err)
{
    struct json_writer w;
    json_writer_start(&w, &l->index, 2);
    json_write_object(&w, NULL);
    json_write_object(&w, "metadata");
    json_write_int(&w, "total_size", weights_bytes(m, l->type));
    json_write_end(&w);
    json_write_object(&w, "weight_map");
    for (int i = 0; i < l->tensor_count; i++)
        json_write_string(&w, param_of(m, &l->tensors[i])->name, l->files[l->tensors[i].file].name);
    json_write_end(&w);
    json_write_end(&w);
    strbuf_puts(&l->index, "\n");
    return l->index.failed ? error_memory(err, l->index.length, "an index") : 0;
}

int weights_layout_create(struct weights_layout *out, const struct model *model, enum dtype type,
                          const char *stem, int64_t limit, struct error *err)
{
    *out = (struct weights_layout){.type = type};
    int status = tensors_list(out, model, limit, err);
    if (status == 0) {
        out->files = calloc((size_t)out->file_count + 1, sizeof *out->files);
        if (!out->files)
            status = error_memory(err, (size_t)out->file_count * sizeof *out->files, "a checkpoint");
    }
    for (int i = 0; status == 0 && i < out->file_count; i++) {
        file_name(out, stem, i, out->files[i].name);
        status = file_lay_out(out, model, i, err);
    }
    snprintf(out->index_name, sizeof out->index_name, "%s.safetensors.index.json", stem);
    if (status == 0 && out->file_count > 1)
        status = index_make(out, model, err);
    if (status != 0)
        weights_layout_free(out);
    return status;
}

void weights_layout_free(struct weights_layout *l)
{
    for (int i = 0; l->files && i < l->file_count; i++)
        strbuf_free(&l->files[i].header);
    free(l->files);
    free(l->tensors);
    strbuf_free(&l->index);
    *l = (struct weights_layout){0};
}

bool weights_tensor_owned(const struct weights_layout *l, int i, const struct shard *shard)
{
    int64_t first, end;
    shard_owned(shard, l->tensors[i].unit, l->tensors[i].param, &first, &end);
    return first < end;
}

int weights_write_owned(const struct weights_layout *l, int i, const struct shard *shard,
                        enum shard_kind kind, struct file_part *file, const struct weights_buffers *buffers,
                        struct error *err)
{
    const struct weights_tensor *t = &l->tensors[i];
    int64_t first, end;
    shard_owned(shard, t->unit, t->param, &first, &end);
    for (int64_t at = first; at < end; at += WEIGHTS_PIECE) {
        int64_t n = end - at < WEIGHTS_PIECE ? end - at : WEIGHTS_PIECE;
        if (shard_read(shard, kind, t->unit, t->param, at, n, buffers->values, err) != 0)
            return -1;
        const void *bytes = buffers->values;
        if (l->type != DTYPE_F32) {
            dtype_convert(l->type, buffers->converted, DTYPE_F32, buffers->values, n);
            bytes = buffers->converted;
        }
        if (file_part_write(file, t->offset + dtype_bytes(l->type, at), bytes,
                            (size_t)dtype_bytes(l->type, n), err) != 0)
            return -1;
    }
    return 0;
}
