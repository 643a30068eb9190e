#include "base/log.h"

#include "base/clock.h"
#include "base/strbuf.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double progress_interval = 5.0; /* seconds between plain progress lines */

enum { MESSAGE_SIZE = 2048 };

/* Formats into `fixed`, or into *grown when that is too small (the caller frees it). */
static const char *format_message(char fixed[MESSAGE_SIZE], struct strbuf *grown, const char *format,
                                  va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    const char *text = fixed;
    int n = vsnprintf(fixed, MESSAGE_SIZE, format, arguments);
    if (n < 0)
        fixed[0] = '\0';
    else if (n >= MESSAGE_SIZE) {
        strbuf_vprintf(grown, format, again);
        if (!grown->failed)
            text = grown->data;
    }
    va_end(again);
    return text;
}

static void log_line(const struct log *log, enum log_level level, const char *format, va_list arguments)
{
    if (!log || !log->line)
        return;
    char fixed[MESSAGE_SIZE];
    struct strbuf grown = {0};
    log->line(log->context, level, format_message(fixed, &grown, format, arguments));
    strbuf_free(&grown);
}

void log_info(const struct log *log, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_line(log, LOG_INFO, format, arguments);
    va_end(arguments);
}

void log_warning(const struct log *log, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_line(log, LOG_WARNING, format, arguments);
    va_end(arguments);
}

void log_progress(const struct log *log, bool last, const char *format, ...)
{
    if (!log || !log->progress)
        return;
    char fixed[MESSAGE_SIZE];
    struct strbuf grown = {0};
    va_list arguments;
    va_start(arguments, format);
    log->progress(log->context, format_message(fixed, &grown, format, arguments), last);
    va_end(arguments);
    strbuf_free(&grown);
}

/* Writes at most `columns` characters of the text. Control characters, which a text taken from a file may
 * hold, become '?': they could rewrite the terminal. */
static void put_text(FILE *stream, const char *text, int columns)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if ((c & 0xc0u) != 0x80u && columns-- <= 0) /* a continuation byte takes no column */
            return;
        bool harmless = (c >= 0x20 && c != 0x7f) || c == '\t' || c == '\n';
        fputc(harmless ? c : '?', stream);
    }
}

static void erase_progress(struct log_stream *state)
{
    if (state->drawn)
        fputs("\r\033[K", state->stream);
    state->drawn = false;
}

static void stream_line(void *context, enum log_level level, const char *text)
{
    struct log_stream *state = context;
    flockfile(state->stream);
    erase_progress(state);
    if (level == LOG_WARNING)
        fputs("warning: ", state->stream);
    else if (level == LOG_ERROR)
        fputs("error: ", state->stream);
    put_text(state->stream, text, INT32_MAX);
    fputc('\n', state->stream);
    fflush(state->stream);
    funlockfile(state->stream);
}

static void stream_progress(void *context, const char *text, bool last)
{
    struct log_stream *state = context;
    flockfile(state->stream);
    if (state->terminal) {
        struct winsize window;
        int columns = 79;
        if (ioctl(fileno(state->stream), TIOCGWINSZ, &window) == 0 && window.ws_col > 1)
            columns = window.ws_col - 1;
        fputs("\r\033[K", state->stream);
        put_text(state->stream, text, last ? INT32_MAX : columns);
        if (last)
            fputc('\n', state->stream);
        state->drawn = !last;
        fflush(state->stream);
    } else {
        double now = clock_seconds();
        if (last || now - state->last_progress >= progress_interval) {
            put_text(state->stream, text, INT32_MAX);
            fputc('\n', state->stream);
            fflush(state->stream);
            state->last_progress = now;
        }
    }
    funlockfile(state->stream);
}

void log_to_stream(struct log *log, struct log_stream *state, FILE *stream)
{
    const char *term = getenv("TERM");
    memset(state, 0, sizeof *state);
    state->stream = stream;
    state->terminal = isatty(fileno(stream)) == 1 && !(term && strcmp(term, "dumb") == 0);
    state->last_progress = -INFINITY; /* the first one is shown at once */
    log->line = stream_line;
    log->progress = stream_progress;
    log->context = state;
}

char *format_count(int64_t n, char out[32])
{
    char digits[24];
    uint64_t magnitude = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)magnitude);
    char *p = out;
    if (n < 0)
        *p++ = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *p++ = ',';
        *p++ = digits[i];
    }
    *p = '\0';
    return out;
}

char *format_bytes(int64_t n, char out[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = fabs((double)n);
    int unit = 0;
    while (unit < 6 && value >= (unit == 0 ? 999.5 : 999.95)) {
        value /= 1000.0;
        unit++;
    }
    snprintf(out, 32, "%s%.*f %s", n < 0 ? "-" : "", unit == 0 ? 0 : 1, value, units[unit]);
    return out;
}

char *format_duration(double seconds, char out[32])
{
    if (!isfinite(seconds) || fabs(seconds) > 1e15) {
        snprintf(out, 32, "unknown");
        return out;
    }
    const char *sign = seconds < 0 ? "-" : "";
    seconds = fabs(seconds);
    long long whole = (long long)(seconds + 0.5);
    if (seconds < 59.95)
        snprintf(out, 32, "%s%.1f s", sign, seconds);
    else if (whole < 3600)
        snprintf(out, 32, "%s%lld min %02lld s", sign, whole / 60, whole % 60);
    else if (whole < 86400)
        snprintf(out, 32, "%s%lld h %02lld min", sign, whole / 3600, whole / 60 % 60);
    else
        snprintf(out, 32, "%s%lld d %02lld h", sign, whole / 86400, whole / 3600 % 24);
    return out;
}
