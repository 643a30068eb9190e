/* Messages and progress, as a sink that the caller passes down: library code never prints.
 *
 * A sink with `line` NULL swallows everything. In a terminal progress redraws one line; in a pipe it
 * becomes a plain line at most every few seconds. */
#ifndef TERCET_BASE_LOG_H
#define TERCET_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* LOG_ERROR is for the rare place that must report an error itself, since no caller lives to do it. */
enum log_level { LOG_INFO, LOG_WARNING, LOG_ERROR };

struct log {
    void (*line)(void *context, enum log_level level, const char *text); /* text without newline */
    void (*progress)(void *context, const char *text, bool last);        /* may be NULL */
    void *context;
};

void log_info(const struct log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_warning(const struct log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_progress(const struct log *log, bool last, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A sink that writes to `stream` (standard error, as a rule). `state` belongs to the caller and must
 * outlive the sink. */
struct log_stream {
    FILE *stream;
    bool terminal, drawn;
    double last_progress;
};
void log_to_stream(struct log *log, struct log_stream *state, FILE *stream);

/* "1,234,567", "1.2 GB", "1 h 02 min": into out, returned. */
char *format_count(int64_t n, char out[32]);
char *format_bytes(int64_t n, char out[32]);
char *format_duration(double seconds, char out[32]);

#endif
