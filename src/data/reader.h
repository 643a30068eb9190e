/* Text files in, documents out, one at a time: memory holds one line, never a file (a .txt file is
 * one document, so it is held whole).
 *
 *     struct text_files files;
 *     struct text_reader *reader;
 *     struct document document;
 *     struct data_summary summary = {0};
 *     if (text_files_find(patterns, count, &files, err) != 0 ||
 *         text_reader_open(&reader, &files, err) != 0) …
 *     while ((got = document_next(reader, "text", DATA_BAD_LINES_ERROR, &summary, &document, err)) == 1) {
 *         … document.text, document.size …
 *         document_free(&document);
 *     }
 *     text_reader_close(reader);
 *     text_files_free(&files);
 *
 * A file is JSON Lines (.jsonl, .ndjson, .json-lines, .jsonlines, .json: one object a line) or plain
 * text (.txt: the whole file is one document), as it is or compressed (.gz, .zst, .xz behind that
 * name). A byte order mark at the start of a file is dropped. JSON Lines: lines end in LF or CRLF, the
 * last one may lack it; blank lines are skipped and counted; U+2028 and its like inside strings are
 * no line ends; a NUL character written as \u0000 is text. Plain text is taken byte for byte, line
 * ends included. */
#ifndef TERCET_DATA_READER_H
#define TERCET_DATA_READER_H

#include "base/error.h"
#include "data/summary.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text_files {
    char **paths;
    int64_t count;
};

/* Expands files and globs: in the order given, each glob's matches sorted bytewise. A name that
 * exists as it stands is never taken for a glob. ERROR_INPUT for an empty list, a glob without
 * match, a missing or unreadable file, a directory, an unknown kind of name. Free with
 * text_files_free (safe on a zeroed or failed one). */
int text_files_find(const char *const *patterns, int64_t count, struct text_files *out, struct error *err);
void text_files_free(struct text_files *files);

/* What the reader cuts out of a file before anyone has looked into it. */
struct text_item {
    const char *data; /* a line without its end, or a whole .txt file; not terminated */
    size_t size;
    const char *path;
    int64_t file; /* index into the files */
    int64_t line; /* from 1; 0 for a .txt file */
};

struct text_reader;

/* `files` must outlive the reader. */
int text_reader_open(struct text_reader **out, const struct text_files *files, struct error *err);
void text_reader_close(struct text_reader *reader); /* NULL is allowed */

/* 1: *item is the next one, valid until the next call. 0: the end. -1: ERROR_INPUT for a file that
 * cannot be read, is truncated or damaged in its compression, or holds nothing. */
int text_reader_next(struct text_reader *reader, struct text_item *item, struct error *err);
int64_t text_reader_blank_lines(const struct text_reader *reader);
/* Bytes read from disk so far (compressed ones where compressed) and those of all files: for
 * progress. */
int64_t text_reader_bytes(const struct text_reader *reader);
int64_t text_reader_total_bytes(const struct text_reader *reader);

struct document {
    const char *text; /* valid UTF-8; may hold NUL characters; not terminated */
    size_t size;
    const char *path;
    int64_t file, line;
    void *owner; /* private */
};

/* The text of an item. For a .txt file it points into the item. Any thread. On failure err holds the
 * place and *reason says why: ERROR_INPUT for what `bad_lines: skip` may skip, ERROR_RUN when memory
 * ran out (*reason is DATA_REASONS then). */
int document_extract(const struct text_item *item, const char *field, struct document *out,
                     enum data_reason *reason, struct error *err);
void document_free(struct document *document); /* safe on a zeroed one */

enum data_bad_lines { DATA_BAD_LINES_ERROR, DATA_BAD_LINES_SKIP };

/* text_reader_next and document_extract, with what cannot be used refused or counted in *summary
 * (documents, text_bytes and blank_lines are kept up to date too, tokens are not). 1: *out is the
 * next document, freed by the caller before the next call; 0: the end; -1: an error. */
int document_next(struct text_reader *reader, const char *field, enum data_bad_lines bad_lines,
                  struct data_summary *summary, struct document *out, struct error *err);

#endif
