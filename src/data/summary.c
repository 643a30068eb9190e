#include "data/summary.h"

#include <stddef.h>
#include <stdio.h>

static const struct {
    const char *name, *text;
} reasons[DATA_REASONS] = {
    [DATA_BAD_JSON] = {"bad_json", "not JSON"},
    [DATA_NOT_OBJECT] = {"not_object", "no JSON object"},
    [DATA_MISSING_FIELD] = {"missing_field", "without the text field"},
    [DATA_NOT_STRING] = {"not_string", "with a text field that is no string"},
    [DATA_INVALID_UTF8] = {"invalid_utf8", "not UTF-8"},
    [DATA_NO_TOKENS] = {"no_tokens", "without any token"},
};

const char *data_reason_name(enum data_reason reason)
{
    return (unsigned)reason < DATA_REASONS ? reasons[reason].name : NULL;
}

const char *data_reason_text(enum data_reason reason)
{
    return (unsigned)reason < DATA_REASONS ? reasons[reason].text : NULL;
}

void data_summary_drop(struct data_summary *s, enum data_reason reason, const char *path, int64_t line)
{
    if (s->dropped[reason].count++ > 0)
        return;
    char *first = s->dropped[reason].first;
    size_t size = sizeof s->dropped[reason].first;
    /* A path too long to show whole keeps its end, with the line. */
    char number[32] = "";
    int digits = line > 0 ? snprintf(number, sizeof number, ":%lld", (long long)line) : 0;
    size_t room = size - 1 - (size_t)digits;
    size_t length = 0;
    while (path[length])
        length++;
    snprintf(first, size, "%s%s", length > room ? path + (length - room) : path, number);
}

int64_t data_summary_dropped(const struct data_summary *s)
{
    int64_t n = 0;
    for (int i = 0; i < DATA_REASONS; i++)
        n += s->dropped[i].count;
    return n;
}
