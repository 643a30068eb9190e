/* TensorBoard event files: scalars by tag and step, written and read.
 *
 * A file is a row of records
 *
 *     8 bytes    n, the data's length, little-endian
 *     4 bytes    masked CRC-32C of these 8 bytes
 *     n bytes    data: an Event message (event.proto)
 *     4 bytes    masked CRC-32C of the data
 *
 * where masked(c) = rotate_right(c, 15) + 0xa282ead8 modulo 2^32. The first event carries the version
 * "brain.Event:2". Files are only ever appended to; a run that goes on opens another one in the same
 * directory, and TensorBoard shows them as one.
 *
 *     struct event_writer w;
 *     event_writer_open(&w, "run/tensorboard", err)
 *     event_writer_scalar(&w, "loss", step, clock_wall(), loss, err)   // allocates nothing
 *     event_writer_flush(&w, err)
 *     event_writer_close(&w, err) */
#ifndef TERCET_FORMATS_TENSORBOARD_H
#define TERCET_FORMATS_TENSORBOARD_H

#include "base/error.h"
#include "base/file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CRC-32C (Castagnoli, reflected polynomial 0x82f63b78) of n bytes. */
uint32_t crc32c(const void *data, size_t n);

enum { EVENT_TAG_MAX = 512, EVENT_BUFFER = 1 << 16 };

struct event_writer {
    int fd; /* private */
    char *path;
    uint8_t *buffer;
    size_t fill;
};

/* Creates directory/events.out.tfevents.<seconds>.<host>.<pid>.<n> (the directory too), with the
 * lowest n that is free, and writes the version. */
int event_writer_open(struct event_writer *w, const char *directory, struct error *err);
/* Appends one scalar; `tag` has 1 … EVENT_TAG_MAX bytes, wall_time is in seconds since 1970. Buffered:
 * flush after each step that should be seen at once. */
int event_writer_scalar(struct event_writer *w, const char *tag, int64_t step, double wall_time, float value,
                        struct error *err);
int event_writer_flush(struct event_writer *w, struct error *err);
/* Flushes, syncs and closes; the writer is gone afterwards, whether it worked or not. Safe on a zeroed
 * or closed writer. */
int event_writer_close(struct event_writer *w, struct error *err);

struct event_scalar {
    const char *tag;
    float value;
};

struct event {
    double wall_time;
    int64_t step;
    const char *file_version;     /* NULL but in the first event */
    struct event_scalar *scalars; /* values of other kinds (images, histograms) are not among them */
    int64_t count;
    int64_t others; /* values of other kinds */
};

struct event_reader {
    struct file_map map;
    char *path;
    size_t offset;        /* of the next record */
    void *message;        /* private: owns the current event's strings */
    struct event current; /* private */
};

int event_reader_open(struct event_reader *r, const char *path, struct error *err);
/* 1: *out holds the next event, valid until the next call. 0: the file ends here. -1 (ERROR_INPUT): a
 * wrong checksum, a record cut short (the writer may still be at it, or was killed), or no Event; the
 * message has the byte offset. */
int event_reader_next(struct event_reader *r, struct event *out, struct error *err);
/* Safe on a zeroed or closed reader. */
void event_reader_close(struct event_reader *r);

#endif
