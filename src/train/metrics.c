#include "train/metrics.h"

#include "base/clock.h"
#include "base/file.h"
#include "formats/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Room for any line, made before the first step: steps allocate nothing. */
enum { LINE_BYTES = 1023 };

/* The step that a line of metrics.jsonl is about, -1 where it is no such line, and whether it tells an
 * evaluation. Fails only where the line could not be looked at. */
static int line_step(const char *line, size_t n, int64_t *step, bool *evaluation, struct error *err)
{
    json_t *value = NULL;
    struct error local;
    *step = -1;
    if (json_parse("metrics.jsonl", 1, line, n, &value, &local) != 0) {
        if (local.kind == ERROR_INPUT)
            return 0;
        if (err)
            *err = local;
        return -1;
    }
    const json_t *number = json_object_get(value, "step");
    if (json_is_integer(number))
        *step = json_integer_value(number);
    *evaluation = json_object_get(value, "eval_loss") != NULL;
    json_decref(value);
    return 0;
}

/* Keeps the lines of steps up to `step`: those after it will be written again. */
static int cut_back(const char *path, int64_t step, int64_t *last_evaluation, struct error *err)
{
    char *text;
    size_t n;
    if (!file_exists(path))
        return 0;
    if (file_read(path, SIZE_MAX / 2, &text, &n, err) != 0)
        return -1;
    size_t kept = 0;
    for (size_t at = 0; at < n;) {
        const char *newline = memchr(text + at, '\n', n - at);
        size_t length = newline ? (size_t)(newline - (text + at)) + 1 : n - at;
        bool evaluation = false;
        int64_t s = -1;
        if (newline && line_step(text + at, length, &s, &evaluation, err) != 0) {
            free(text);
            return -1;
        }
        if (s >= 0 && s <= step) {
            if (evaluation)
                *last_evaluation = s;
            memmove(text + kept, text + at, length);
            kept += length;
        }
        at += length;
    }
    int status = kept == n ? 0 : file_write_all(path, text, kept, err);
    free(text);
    return status;
}

int metrics_open(struct metrics *m, const char *output, int64_t step, int64_t every, bool tensorboard,
                 struct error *err)
{
    *m = (struct metrics){.fd = -1, .every = every, .last_evaluation = -1};
    strbuf_printf(&m->line, "%*s", LINE_BYTES, "");
    if (m->line.failed)
        return error_memory(err, LINE_BYTES, "a line of metrics");
    m->path = file_join(output, "metrics.jsonl");
    if (!m->path)
        return error_memory(err, 0, "a path");
    if (cut_back(m->path, step, &m->last_evaluation, err) != 0)
        return -1;
    m->fd = open(m->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (m->fd < 0)
        return error_errno(err, errno, m->path, "open the file");
    if (!tensorboard)
        return 0;
    char *directory = file_join(output, "tensorboard");
    int status = directory ? event_writer_open(&m->events, directory, err) : error_memory(err, 0, "a path");
    m->events_open = status == 0;
    free(directory);
    return status;
}

static int append(struct metrics *m, struct error *err)
{
    strbuf_puts(&m->line, "\n");
    if (m->line.failed)
        return error_memory(err, m->line.length, "a line of metrics");
    for (size_t at = 0; at < m->line.length;) {
        ssize_t n = write(m->fd, m->line.data + at, m->line.length - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, errno, m->path, "write");
        at += (size_t)n;
    }
    return 0;
}

static int scalar(struct metrics *m, const char *tag, int64_t step, double value, struct error *err)
{
    return event_writer_scalar(&m->events, tag, step, clock_wall(), (float)value, err);
}

int metrics_step(struct metrics *m, const struct metrics_step *s, const struct log *log, struct error *err)
{
    struct json_writer w;
    double rate = s->seconds > 0 ? (double)s->tokens / s->seconds : 0;
    bool shown = s->step % m->every == 0 || s->step == s->total;
    strbuf_clear(&m->line);
    json_writer_start(&w, &m->line, 0);
    json_write_object(&w, NULL);
    json_write_int(&w, "step", s->step);
    json_write_double(&w, "loss", s->loss);
    json_write_double(&w, "lr", s->lr);
    json_write_double(&w, "grad_norm", s->grad_norm);
    json_write_int(&w, "tokens", s->tokens);
    json_write_int(&w, "tokens_seen", s->tokens_seen);
    json_write_double(&w, "seconds", s->seconds);
    json_write_double(&w, "tokens_per_second", rate);
    json_write_double(&w, "peak_share", s->peak_share > 0 ? s->peak_share : (double)NAN);
    json_write_end(&w);
    if (append(m, err) != 0)
        return -1;
    if (!shown)
        return 0;
    if (m->events_open && (scalar(m, "train/loss", s->step, s->loss, err) != 0 ||
                           scalar(m, "train/lr", s->step, s->lr, err) != 0 ||
                           scalar(m, "train/grad_norm", s->step, s->grad_norm, err) != 0 ||
                           scalar(m, "train/tokens_per_second", s->step, rate, err) != 0 ||
                           event_writer_flush(&m->events, err) != 0))
        return -1;
    char left[32], peak[48] = "";
    if (s->peak_share > 0 && s->peak_share <= 1)
        snprintf(peak, sizeof peak, "  %.0f %% of peak", 100 * s->peak_share);
    log_progress(
        log, s->step == s->total, "step %lld/%lld  loss %.4f  lr %.3g  norm %.3f  %.0f tokens/s  %s left%s",
        (long long)s->step, (long long)s->total, s->loss, s->lr, s->grad_norm, rate,
        format_duration(s->seconds_left, left), peak); /* what a narrow terminal cuts off stands last */
    return 0;
}

int metrics_eval(struct metrics *m, int64_t step, double loss, int64_t targets, double seconds,
                 const struct log *log, struct error *err)
{
    struct json_writer w;
    strbuf_clear(&m->line);
    json_writer_start(&w, &m->line, 0);
    json_write_object(&w, NULL);
    json_write_int(&w, "step", step);
    json_write_double(&w, "eval_loss", loss);
    json_write_int(&w, "eval_targets", targets);
    json_write_double(&w, "eval_seconds", seconds);
    json_write_end(&w);
    if (append(m, err) != 0)
        return -1;
    if (m->events_open &&
        (scalar(m, "eval/loss", step, loss, err) != 0 || event_writer_flush(&m->events, err) != 0))
        return -1;
    log_info(log, "step %lld: evaluation loss %.4f over %lld targets", (long long)step, loss,
             (long long)targets);
    return 0;
}

int metrics_close(struct metrics *m, struct error *err)
{
    int status = 0;
    if (m->path && m->fd >= 0) {
        if (fsync(m->fd) != 0)
            status = error_errno(err, errno, m->path, "sync");
        close(m->fd);
    }
    if (m->events_open && event_writer_close(&m->events, status == 0 ? err : NULL) != 0)
        status = -1;
    strbuf_free(&m->line);
    free(m->path);
    *m = (struct metrics){.fd = -1};
    return status;
}
