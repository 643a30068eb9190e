/* A main for a harness without libFuzzer: runs it on each file named, and on each file of each directory
 * named. So the harnesses are compiled by every compiler, and what was found once is looked at by every test
 * run. */
#include "fuzz/input.h"

#include "base/file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

static int replay_file(const char *path)
{
    struct error err;
    char *data, line[1200];
    size_t size;
    if (file_read(path, (size_t)64 << 20, &data, &size, &err) != 0) {
        error_format(&err, line, sizeof line);
        fprintf(stderr, "replay: %s\n", line);
        return -1;
    }
    printf("%s\n", path);
    fflush(stdout); /* so that it is known which one ended the process */
    /* In memory of its exact size, so that AddressSanitizer sees what reads beyond it. */
    LLVMFuzzerTestOneInput((const uint8_t *)data, size);
    free(data);
    return 0;
}

static int replay_directory(const char *path)
{
    DIR *directory = opendir(path);
    int count = 0;
    if (!directory)
        return -1;
    for (struct dirent *entry; count >= 0 && (entry = readdir(directory));) {
        if (entry->d_name[0] == '.')
            continue;
        char *file = file_join(path, entry->d_name);
        count = file && replay_file(file) == 0 ? count + 1 : -1;
        free(file);
    }
    closedir(directory);
    return count;
}

int main(int argc, char **argv)
{
    int seen = 0;
    for (int i = 1; i < argc; i++) {
        int count = file_is_directory(argv[i])  ? replay_directory(argv[i])
                    : replay_file(argv[i]) == 0 ? 1
                                                : -1;
        if (count < 0) {
            fprintf(stderr, "replay: cannot read %s\n", argv[i]);
            return 1;
        }
        seen += count;
    }
    if (seen == 0)
        fprintf(stderr, "replay: no input is given\n");
    return seen == 0;
}
