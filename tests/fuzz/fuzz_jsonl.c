/* Text files: the first byte says of which kind the rest is (JSON Lines, plain text, compressed or not). */
#include "fuzz/input.h"

#include "data/reader.h"
#include "formats/utf8.h"

#include <stdio.h>
#include <string.h>

static void read_all(const char *path, enum data_bad_lines bad_lines)
{
    struct text_files files;
    struct text_reader *reader;
    struct document document;
    struct data_summary summary = {0};
    struct error err = {0};
    int64_t documents = 0;
    int got;
    FUZZ_CHECK(text_files_find(&path, 1, &files, &err) == 0);
    FUZZ_CHECK(text_reader_open(&reader, &files, &err) == 0);
    while ((got = document_next(reader, "text", bad_lines, &summary, &document, &err)) == 1) {
        documents++;
        FUZZ_CHECK(utf8_valid(document.text, document.size));
        document_free(&document);
    }
    FUZZ_CHECK(got == 0 || (err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0'));
    FUZZ_CHECK(summary.documents == documents);
    text_reader_close(reader);
    text_files_free(&files);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"a.jsonl",     "a.txt",      "a.jsonl.gz",
                                        "a.jsonl.zst", "a.jsonl.xz", "a.txt.gz"};
    struct fuzz_directory d;
    char path[300];
    if (size == 0)
        return 0;
    const char *name = names[data[0] % (sizeof names / sizeof names[0])];
    fuzz_directory_make(&d);
    fuzz_directory_put(&d, name, data + 1, size - 1);
    snprintf(path, sizeof path, "%s/%s", d.path, name);
    read_all(path, DATA_BAD_LINES_ERROR);
    read_all(path, DATA_BAD_LINES_SKIP);
    fuzz_directory_remove(&d);
    return 0;
}
