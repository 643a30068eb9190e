/* What a data set held: documents kept, and those dropped, by reason, each with the place where the
 * reason was met first. Nothing is dropped without being counted here; the command line shows it.
 *
 * Zero-initialise a summary; the reader and the token cache fill it. */
#ifndef TERCET_DATA_SUMMARY_H
#define TERCET_DATA_SUMMARY_H

#include <stdint.h>

/* Why a document was dropped. The order is that of reports; the names go into cache manifests. */
enum data_reason {
    DATA_BAD_JSON,      /* a line that is not JSON */
    DATA_NOT_OBJECT,    /* JSON, but not an object */
    DATA_MISSING_FIELD, /* an object without the text field */
    DATA_NOT_STRING,    /* the field holds null, a number, a list … */
    DATA_INVALID_UTF8,  /* bytes that are not UTF-8, in a line or a .txt file */
    DATA_NO_TOKENS,     /* a text that has no token, and neither BOS nor EOS are added */
    DATA_REASONS
};

struct data_summary {
    int64_t files;
    int64_t documents;   /* kept */
    int64_t text_bytes;  /* of kept documents */
    int64_t tokens;      /* of kept documents, BOS and EOS included */
    int64_t blank_lines; /* of JSONL files: skipped, no documents */
    struct {
        int64_t count;
        char first[512]; /* "path:line" where it was met first; empty while count is 0 */
    } dropped[DATA_REASONS];
};

/* "bad_json", "missing_field": fixed names for programs. NULL outside the enum. */
const char *data_reason_name(enum data_reason reason);
/* "not JSON", "without the text field": the end of the sentence "3 documents dropped: …". */
const char *data_reason_text(enum data_reason reason);

/* Counts one dropped document at path:line (line 0: a whole file). */
void data_summary_drop(struct data_summary *s, enum data_reason reason, const char *path, int64_t line);
int64_t data_summary_dropped(const struct data_summary *s);

#endif
