#include "formats/tensorboard.h"

#include "base/clock.h"

#include "event.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, CRC_BYTES = 4, HEAD_BYTES = LENGTH_BYTES + CRC_BYTES };

/* Room that one scalar's record needs at most: frame, tag, the message's own bytes. */
enum { RECORD_MAX = EVENT_TAG_MAX + 128 };

/* ---- Checksums ---- */

uint32_t crc32c(const void *data, size_t n)
{
    /* Entry i is what the four bits i add to a remainder: the reflected polynomial, four steps on. */
    static const uint32_t table[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
                                       0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                       0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    const uint8_t *p = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        crc = (crc >> 4) ^ table[crc & 15];
        crc = (crc >> 4) ^ table[crc & 15];
    }
    return ~crc;
}

static uint32_t masked_crc(const void *data, size_t n)
{
    uint32_t crc = crc32c(data, n);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* ---- Writing ---- */

static int write_out(struct event_writer *w, struct error *err)
{
    size_t done = 0;
    while (done < w->fill) {
        ssize_t n = write(w->fd, w->buffer + done, w->fill - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int errnum = errno;
            /* What did arrive must not be written again. */
            memmove(w->buffer, w->buffer + done, w->fill - done);
            w->fill -= done;
            return error_errno(err, errnum, w->path, "write events");
        }
        done += (size_t)n;
    }
    w->fill = 0;
    return 0;
}

/* Appends one record; the message has at most RECORD_MAX bytes with its frame. */
static int put_event(struct event_writer *w, const Tercet__Event *event, struct error *err)
{
    if (EVENT_BUFFER - w->fill < RECORD_MAX && write_out(w, err) != 0)
        return -1;
    uint8_t *record = w->buffer + w->fill;
    uint64_t length = tercet__event__pack(event, record + HEAD_BYTES);
    memcpy(record, &length, LENGTH_BYTES);
    uint32_t crc = masked_crc(record, LENGTH_BYTES);
    memcpy(record + LENGTH_BYTES, &crc, CRC_BYTES);
    crc = masked_crc(record + HEAD_BYTES, length);
    memcpy(record + HEAD_BYTES + length, &crc, CRC_BYTES);
    w->fill += HEAD_BYTES + length + CRC_BYTES;
    return 0;
}

/* Creates the file with the first free number. */
static int create_file(struct event_writer *w, const char *directory, struct error *err)
{
    char host[256] = "localhost", name[512];
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0' || strchr(host, '/') != NULL)
        snprintf(host, sizeof host, "localhost");
    for (int number = 0;; number++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010" PRId64 ".%s.%ld.%d", (int64_t)clock_wall(),
                 host, (long)getpid(), number);
        free(w->path);
        w->path = file_join(directory, name);
        if (w->path == NULL)
            return error_memory(err, sizeof name, "a file name");
        w->fd = open(w->path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0)
            return 0;
        if (errno != EEXIST)
            return error_errno(err, errno, w->path, "create the file");
    }
}

int event_writer_open(struct event_writer *w, const char *directory, struct error *err)
{
    Tercet__Event event = TERCET__EVENT__INIT;
    *w = (struct event_writer){.fd = -1, .buffer = malloc(EVENT_BUFFER)};
    if (w->buffer == NULL)
        return error_memory(err, EVENT_BUFFER, "an event buffer");
    event.has_wall_time = 1;
    event.wall_time = clock_wall();
    event.file_version = (char *)"brain.Event:2";
    if (file_make_directories(directory, err) != 0 || create_file(w, directory, err) != 0 ||
        put_event(w, &event, err) != 0 || write_out(w, err) != 0) {
        w->fill = 0; /* nothing of it is worth another try */
        if (w->fd >= 0)
            unlink(w->path);
        event_writer_close(w, NULL);
        return -1;
    }
    return 0;
}

int event_writer_scalar(struct event_writer *w, const char *tag, int64_t step, double wall_time, float value,
                        struct error *err)
{
    size_t length = strlen(tag);
    if (length == 0 || length > EVENT_TAG_MAX)
        return error_set(err, ERROR_INPUT, w->path, NULL, "a tag has 1 to %d bytes, this one %zu",
                         EVENT_TAG_MAX, length);
    Tercet__Summary__Value scalar = TERCET__SUMMARY__VALUE__INIT;
    Tercet__Summary__Value *values[1] = {&scalar};
    Tercet__Summary summary = TERCET__SUMMARY__INIT;
    Tercet__Event event = TERCET__EVENT__INIT;
    scalar.tag = (char *)tag; /* packing only reads it */
    scalar.has_simple_value = 1;
    scalar.simple_value = value;
    summary.n_value = 1;
    summary.value = values;
    event.has_wall_time = 1;
    event.wall_time = wall_time;
    event.has_step = 1;
    event.step = step;
    event.summary = &summary;
    return put_event(w, &event, err);
}

int event_writer_flush(struct event_writer *w, struct error *err)
{
    return write_out(w, err);
}

int event_writer_close(struct event_writer *w, struct error *err)
{
    int status = 0;
    if (w->buffer == NULL) {
        *w = (struct event_writer){.fd = -1};
        return 0;
    }
    if (w->fd >= 0) {
        status = write_out(w, err);
        if (status == 0 && fsync(w->fd) != 0)
            status = error_errno(err, errno, w->path, "sync events");
        if (close(w->fd) != 0 && status == 0)
            status = error_errno(err, errno, w->path, "close the event file");
    }
    free(w->path);
    free(w->buffer);
    *w = (struct event_writer){.fd = -1};
    return status;
}

/* ---- Reading ---- */

static void forget_event(struct event_reader *r)
{
    if (r->message != NULL)
        tercet__event__free_unpacked(r->message, NULL);
    free(r->current.scalars);
    r->message = NULL;
    r->current = (struct event){0};
}

static int bad_record(const struct event_reader *r, struct error *err, const char *remedy,
                      const char *problem)
{
    return error_set(err, ERROR_INPUT, r->path, remedy, "the record at byte %zu %s", r->offset, problem);
}

static bool crc_matches(const uint8_t *data, size_t n, const uint8_t *stored)
{
    uint32_t crc;
    memcpy(&crc, stored, CRC_BYTES);
    return crc == masked_crc(data, n);
}

/* Finds the next record's message in the file. */
static int next_record(const struct event_reader *r, const uint8_t **data, size_t *n, struct error *err)
{
    const uint8_t *record = r->map.data + r->offset;
    size_t left = r->map.size - r->offset;
    uint64_t length;
    if (left < HEAD_BYTES)
        return bad_record(r, err, "read the file again when its writer has gone on", "is cut short");
    if (!crc_matches(record, LENGTH_BYTES, record + LENGTH_BYTES))
        return bad_record(r, err, NULL,
                          "has a length with a wrong checksum: this is no event file, or damaged");
    memcpy(&length, record, LENGTH_BYTES);
    if (left - HEAD_BYTES < CRC_BYTES || length > left - HEAD_BYTES - CRC_BYTES)
        return bad_record(r, err, "read the file again when its writer has gone on", "is cut short");
    *data = record + HEAD_BYTES;
    *n = length;
    if (!crc_matches(*data, *n, *data + *n))
        return bad_record(r, err, NULL, "has data with a wrong checksum: the file is damaged");
    return 0;
}

/* Fills r->current from the message. */
static int take_event(struct event_reader *r, struct error *err)
{
    const Tercet__Event *event = r->message;
    size_t n = event->summary != NULL ? event->summary->n_value : 0;
    r->current = (struct event){.wall_time = event->wall_time,
                                .step = event->step,
                                .file_version = event->file_version,
                                .scalars = calloc(n + 1, sizeof *r->current.scalars)};
    if (r->current.scalars == NULL)
        return error_memory(err, (n + 1) * sizeof *r->current.scalars, "an event");
    for (size_t i = 0; i < n; i++) {
        const Tercet__Summary__Value *value = event->summary->value[i];
        if (value->has_simple_value && value->tag != NULL)
            r->current.scalars[r->current.count++] = (struct event_scalar){value->tag, value->simple_value};
        else
            r->current.others++;
    }
    return 0;
}

int event_reader_open(struct event_reader *r, const char *path, struct error *err)
{
    *r = (struct event_reader){0};
    if (file_map(path, &r->map, err) != 0) {
        r->map = (struct file_map){0};
        return -1;
    }
    r->path = strdup(path);
    if (r->path == NULL) {
        event_reader_close(r);
        return error_memory(err, strlen(path) + 1, "a file name");
    }
    return 0;
}

int event_reader_next(struct event_reader *r, struct event *out, struct error *err)
{
    const uint8_t *data;
    size_t n;
    forget_event(r);
    *out = (struct event){0};
    if (r->offset == r->map.size)
        return 0;
    if (next_record(r, &data, &n, err) != 0)
        return -1;
    r->message = tercet__event__unpack(NULL, n, data);
    if (r->message == NULL)
        return bad_record(r, err, NULL, "is no Event message");
    if (take_event(r, err) != 0)
        return -1;
    r->offset += HEAD_BYTES + n + CRC_BYTES;
    *out = r->current;
    return 1;
}

void event_reader_close(struct event_reader *r)
{
    forget_event(r);
    file_unmap(&r->map);
    free(r->path);
    *r = (struct event_reader){0};
}
