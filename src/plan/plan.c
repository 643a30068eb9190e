#include "plan/plan.h"

#include "base/log.h"
#include "formats/json.h"

/* The items of a rank's memory, in the order of reports. */
struct item {
    const char *name, *text;
    int64_t bytes;
    bool shared;
};
enum { ITEMS = 12 };

static void items_of(const struct engine_memory *m, struct item out[ITEMS])
{
    const struct shard_memory *s = &m->shard;
    const struct item items[ITEMS] = {
        {"parameters", "parameters", s->parameters, s->parameters_shared},
        {"masters", "fp32 masters", s->masters, false},
        {"moments", "optimizer moments", s->moments, false},
        {"gradient_sums", "gradient sums", s->sums, s->sums_shared},
        {"gradients_sent", "gradients of a unit", s->sent, false},
        {"gradients_received", "gradients received", s->received, false},
        {"hidden", "unit outputs", m->hidden, false},
        {"saved", "saved activations", m->saved, false},
        {"work", "temporaries", m->work, false},
        {"inputs", "inputs and losses", m->inputs, false},
        {"saving", "saving", m->saving, false},
        {"profile", "profile", m->profile, false},
    };
    for (int i = 0; i < ITEMS; i++)
        out[i] = items[i];
}

static void data_text(const char *name, const struct token_cache *data, const struct row_plan *rows,
                      struct strbuf *out)
{
    char documents[32], tokens[32], count[32];
    strbuf_printf(out, "%-22s %s documents, %s tokens, %s rows of %lld", name,
                  format_count(data->documents, documents), format_count(data->tokens, tokens),
                  format_count(rows->rows_per_epoch, count), (long long)rows->options.seq_len);
    int64_t dropped = data_summary_dropped(&data->summary);
    strbuf_printf(out, "\n");
    for (int r = 0; dropped > 0 && r < DATA_REASONS; r++)
        if (data->summary.dropped[r].count > 0)
            strbuf_printf(out, "%-22s %s dropped: %s (first: %s)\n", "",
                          format_count(data->summary.dropped[r].count, count),
                          data_reason_text((enum data_reason)r), data->summary.dropped[r].first);
    if (rows->truncated_documents > 0)
        strbuf_printf(out, "%-22s %s documents cut at %lld tokens, %s tokens lost\n", "",
                      format_count(rows->truncated_documents, count), (long long)rows->options.seq_len,
                      format_count(rows->truncated_tokens, tokens));
}

void plan_text(const struct train_plan *p, struct strbuf *out)
{
    char a[32], b[32];
    struct item items[ITEMS];
    items_of(&p->memory, items);
    strbuf_printf(out, "%-22s %s parameters, %s\n", "model", format_count(p->parameters, a),
                  p->model->config.model_type);
    if (p->data)
        data_text("training text", p->data, p->rows, out);
    if (p->eval_data)
        data_text("evaluation text", p->eval_data, p->eval_rows, out);
    strbuf_printf(out, "%-22s %d (%s), %d thread%s each, backend %s\n", "ranks", p->ranks, p->transport,
                  p->threads, p->threads == 1 ? "" : "s", p->backend);
    if (p->rows) {
        strbuf_printf(out, "%-22s %lld of %lld rows, %lld micro-batches each; an epoch has %lld\n", "steps",
                      (long long)p->total_steps, (long long)p->rows->options.global_batch,
                      (long long)p->micro_batches, (long long)p->rows->steps_per_epoch);
        if (p->resume_from)
            strbuf_printf(out, "%-22s %s, after step %lld\n", "goes on from", p->resume_from,
                          (long long)p->first_step);
    }
    for (int i = 0; i < ITEMS; i++)
        if (items[i].bytes > 0)
            strbuf_printf(out, "  %-20s %10s%s\n", items[i].text, format_bytes(items[i].bytes, a),
                          items[i].shared ? " shared by the ranks" : "");
    strbuf_printf(out, "%-22s %10s a rank", "memory", format_bytes(p->memory.private_total, a));
    if (p->memory.shared_total > 0)
        strbuf_printf(out, " and %s shared", format_bytes(p->memory.shared_total, b));
    strbuf_printf(out, ", %s on this machine", format_bytes(p->memory_needed, a));
    if (p->memory_available >= 0)
        strbuf_printf(out, " of %s available", format_bytes(p->memory_available, b));
    strbuf_printf(out, "\n");
    if (p->advice[0])
        strbuf_printf(out, "%-22s %s\n", "does not fit", p->advice);
}

static void data_json(struct json_writer *w, const char *name, const struct token_cache *data,
                      const struct row_plan *rows)
{
    if (!data) {
        json_write_null(w, name);
        return;
    }
    json_write_object(w, name);
    json_write_int(w, "documents", data->documents);
    json_write_int(w, "tokens", data->tokens);
    json_write_int(w, "rows_per_epoch", rows->rows_per_epoch);
    json_write_int(w, "steps_per_epoch", rows->steps_per_epoch);
    json_write_int(w, "targets_per_epoch", rows->targets_per_epoch);
    json_write_int(w, "truncated_documents", rows->truncated_documents);
    json_write_int(w, "truncated_tokens", rows->truncated_tokens);
    json_write_object(w, "dropped");
    for (int r = 0; r < DATA_REASONS; r++)
        json_write_int(w, data_reason_name((enum data_reason)r), data->summary.dropped[r].count);
    json_write_end(w);
    json_write_end(w);
}

void plan_json(const struct train_plan *p, struct strbuf *out)
{
    struct json_writer w;
    struct item items[ITEMS];
    items_of(&p->memory, items);
    json_writer_start(&w, out, 0);
    json_write_object(&w, NULL);
    json_write_string(&w, "model_type", p->model->config.model_type);
    json_write_int(&w, "parameters", p->parameters);
    json_write_int(&w, "ranks", p->ranks);
    json_write_string(&w, "transport", p->transport);
    json_write_int(&w, "threads", p->threads);
    json_write_string(&w, "backend", p->backend);
    json_write_int(&w, "steps", p->total_steps);
    json_write_int(&w, "first_step", p->first_step);
    json_write_int(&w, "micro_batches", p->micro_batches);
    data_json(&w, "train", p->data, p->rows);
    data_json(&w, "eval", p->eval_data, p->eval_rows);
    json_write_object(&w, "memory");
    for (int i = 0; i < ITEMS; i++)
        json_write_int(&w, items[i].name, items[i].bytes);
    json_write_bool(&w, "parameters_shared", p->memory.shard.parameters_shared);
    json_write_bool(&w, "gradient_sums_shared", p->memory.shard.sums_shared);
    json_write_int(&w, "rank", p->memory.private_total);
    json_write_int(&w, "shared", p->memory.shared_total);
    json_write_int(&w, "machine", p->memory_needed);
    json_write_int(&w, "available", p->memory_available);
    json_write_end(&w);
    json_write_bool(&w, "fits", p->advice[0] == '\0');
    if (p->advice[0])
        json_write_string(&w, "advice", p->advice);
    json_write_end(&w);
}
