#include "cli/inspect.h"

#include "cli/cli.h"
#include "formats/json.h"
#include "formats/tensorboard.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tag {
    char *name;
    int64_t count, first_step, last_step;
    float last, least, greatest; /* of finite values, the extremes; NaN when there were none */
};

struct event_summary {
    int64_t events, others;
    double first_time, last_time;
    struct tag *tags;
    int64_t count, capacity;
};

/* The tag of this name, new ones at the end; NULL when out of memory. Files have a few dozen. */
static struct tag *find_tag(struct event_summary *s, const char *name)
{
    for (int64_t i = 0; i < s->count; i++)
        if (strcmp(s->tags[i].name, name) == 0)
            return &s->tags[i];
    if (s->count == s->capacity) {
        int64_t capacity = s->capacity ? 2 * s->capacity : 32;
        struct tag *tags = realloc(s->tags, (size_t)capacity * sizeof *tags);
        if (!tags)
            return NULL;
        s->tags = tags;
        s->capacity = capacity;
    }
    struct tag *tag = &s->tags[s->count];
    *tag = (struct tag){.name = strdup(name), .least = NAN, .greatest = NAN};
    if (!tag->name)
        return NULL;
    s->count++;
    return tag;
}

static int add_event(struct event_summary *s, const struct event *event, struct error *err)
{
    if (s->events++ == 0)
        s->first_time = event->wall_time;
    s->last_time = event->wall_time;
    s->others += event->others;
    for (int64_t i = 0; i < event->count; i++) {
        struct tag *tag = find_tag(s, event->scalars[i].tag);
        float value = event->scalars[i].value;
        if (!tag)
            return error_memory(err, sizeof *tag, "a list of tags");
        if (tag->count++ == 0)
            tag->first_step = event->step;
        tag->last_step = event->step;
        tag->last = value;
        if (isfinite(value)) {
            tag->least = fminf(tag->least, value); /* NaN yields to a number */
            tag->greatest = fmaxf(tag->greatest, value);
        }
    }
    return 0;
}

static void put_events(struct strbuf *out, const char *path, const struct event_summary *s)
{
    char number[32], last[32], least[32], greatest[32];
    int width = 3;
    cli_put_field(out, "event file", "%s", path);
    cli_put_field(out, "events", "%s", format_count(s->events, number));
    cli_put_field(out, "time", "%s", format_duration(s->last_time - s->first_time, number));
    if (s->others > 0)
        cli_put_field(out, "not scalars", "%s", format_count(s->others, number));
    for (int64_t i = 0; i < s->count; i++) {
        int n = (int)strnlen(s->tags[i].name, 60);
        width = n > width ? n : width;
    }
    if (s->count > 0)
        strbuf_printf(out, "\n%-*s  %10s  %10s  %10s  %13s  %13s  %13s\n", width, "tag", "values",
                      "from step", "to step", "last", "least", "greatest");
    for (int64_t i = 0; i < s->count; i++) {
        const struct tag *tag = &s->tags[i];
        size_t start = out->length;
        cli_put_text(out, tag->name);
        int written = (int)(out->length - start);
        strbuf_printf(out, "%*s  %10" PRId64 "  %10" PRId64 "  %10" PRId64 "  %13s  %13s  %13s\n",
                      width > written ? width - written : 0, "", tag->count, tag->first_step, tag->last_step,
                      format_float(tag->last, last), format_float(tag->least, least),
                      format_float(tag->greatest, greatest));
    }
}

static void write_events(struct strbuf *out, const char *path, const struct event_summary *s)
{
    struct json_writer w;
    json_writer_start(&w, out, 0);
    json_write_object(&w, NULL);
    json_write_string(&w, "kind", "events");
    json_write_string(&w, "path", path);
    json_write_int(&w, "events", s->events);
    json_write_int(&w, "others", s->others);
    json_write_double(&w, "first_time", s->first_time);
    json_write_double(&w, "last_time", s->last_time);
    json_write_array(&w, "tags");
    for (int64_t i = 0; i < s->count; i++) {
        const struct tag *tag = &s->tags[i];
        json_write_object(&w, NULL);
        json_write_string(&w, "tag", tag->name);
        json_write_int(&w, "count", tag->count);
        json_write_int(&w, "first_step", tag->first_step);
        json_write_int(&w, "last_step", tag->last_step);
        json_write_float(&w, "last", tag->last);
        json_write_float(&w, "least", tag->least);
        json_write_float(&w, "greatest", tag->greatest);
        json_write_end(&w);
    }
    json_write_end(&w);
    json_write_end(&w);
}

int inspect_events(const char *path, bool json, struct strbuf *out, struct error *err)
{
    struct event_reader reader;
    struct event event;
    struct event_summary summary = {0};
    int got, status = 0;
    if (event_reader_open(&reader, path, err) != 0)
        return -1;
    while (status == 0 && (got = event_reader_next(&reader, &event, err)) == 1)
        status = add_event(&summary, &event, err);
    if (status == 0) {
        status = got;
        (json ? write_events : put_events)(out, path, &summary);
    }
    event_reader_close(&reader);
    for (int64_t i = 0; i < summary.count; i++)
        free(summary.tags[i].name);
    free(summary.tags);
    return status;
}
