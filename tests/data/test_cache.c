#include "data/fixture.h"

#include "data/cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Sanitizers hold memory of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#endif

/* The tokenizer of these tests: a byte is a token; "<s>" is 300 where special tokens are. Counts the
 * documents it sees in memory that processes share. */
struct fake {
    atomic_int calls;
    atomic_int warnings;
    int sleep_us;   /* for each document */
    int fail_at;    /* the call that fails; 0: none */
    int stop_after; /* calls after which stopped() says so; 0: never */
};

static int fake_encode(void *context, int thread, const char *text, size_t size, bool special,
                       struct token_buffer *out, struct error *err)
{
    (void)thread;
    struct fake *fake = context;
    int call = atomic_fetch_add(&fake->calls, 1) + 1;
    if (fake->sleep_us)
        usleep((useconds_t)fake->sleep_us);
    if (fake->fail_at && call >= fake->fail_at)
        return error_set(err, ERROR_INPUT, NULL, NULL, "this text has no tokens");
    if (token_buffer_reserve(out, (int64_t)size, err) != 0)
        return -1;
    for (size_t i = 0; i < size; i++) {
        if (special && size - i >= 3 && memcmp(text + i, "<s>", 3) == 0) {
            out->ids[out->count++] = 300;
            i += 2;
        } else {
            out->ids[out->count++] = (unsigned char)text[i];
        }
    }
    return 0;
}

static bool fake_stopped(void *context)
{
    struct fake *fake = context;
    return fake->stop_after && atomic_load(&fake->calls) >= fake->stop_after;
}

static void fake_line(void *context, enum log_level level, const char *text)
{
    (void)text;
    struct fake *fake = context;
    if (level == LOG_WARNING)
        atomic_fetch_add(&fake->warnings, 1);
}

static struct fake *fake_create(void)
{
    struct fake *fake = mmap(NULL, sizeof *fake, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(fake != MAP_FAILED);
    return fake;
}

static void fake_free(struct fake *fake)
{
    munmap(fake, sizeof *fake);
}

static struct token_cache_options options_of(struct fake *fake, const char *const *files, int64_t count)
{
    return (struct token_cache_options){.files = files,
                                        .file_count = count,
                                        .root = "cache",
                                        .encode = fake_encode,
                                        .encode_context = fake,
                                        .tokenizer_hash = 1,
                                        .bos_id = -1,
                                        .eos_id = -1,
                                        .tokenizer_name = "fake-tokenizer",
                                        .model_name = "fake-model",
                                        .stopped = fake_stopped,
                                        .stopped_context = fake};
}

static int build_with(const struct token_cache_options *o, int threads, char **path, struct error *err)
{
    struct pool *pool;
    assert_int_equal(pool_create(&pool, threads, false, 0, NULL, err), 0);
    struct log log = {.line = fake_line, .context = o->encode_context};
    int result = token_cache_build(o, pool, &log, path, err);
    pool_free(pool);
    return result;
}

static void build_and_open(const struct token_cache_options *o, int threads, struct token_cache *cache)
{
    struct error err;
    char *path;
    if (build_with(o, threads, &path, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    assert_int_equal(token_cache_open(path, cache, &err), 0);
    free(path);
}

/* Entries of cache/ that begin with `prefix` and contain `part`. */
static int count_entries(const char *prefix, const char *part)
{
    DIR *d = opendir("cache");
    if (!d)
        return 0;
    int n = 0;
    struct dirent *e;
    while ((e = readdir(d)))
        n += strncmp(e->d_name, prefix, strlen(prefix)) == 0 && strstr(e->d_name, part) != NULL;
    closedir(d);
    return n;
}

static void expect_document(const struct token_cache *cache, int64_t i, const uint32_t *want, int64_t n)
{
    int64_t length;
    const uint32_t *ids = token_cache_document(cache, i, &length);
    assert_int_equal(length, n);
    assert_memory_equal(ids, want, (size_t)n * sizeof *want);
}

static void test_build_and_find(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    put_text("a.jsonl", "{\"text\": \"ab\"}\n\n{\"text\": \"<s>c\"}\n");
    put_text("b.txt", "whole\n");
    const char *files[] = {"b.txt", "a.*"};
    struct token_cache_options o = options_of(fake, files, 2);
    struct token_cache cache;
    build_and_open(&o, 2, &cache);
    assert_int_equal(cache.documents, 3);
    assert_int_equal(cache.tokens, 12);
    assert_int_equal(cache.max_id, 'w');
    expect_document(&cache, 0, (uint32_t[]){'w', 'h', 'o', 'l', 'e', '\n'}, 6);
    expect_document(&cache, 1, (uint32_t[]){'a', 'b'}, 2);
    expect_document(&cache, 2, (uint32_t[]){'<', 's', '>', 'c'}, 4);
    assert_int_equal(cache.summary.documents, 3);
    assert_int_equal(cache.summary.tokens, 12);
    assert_int_equal(cache.summary.files, 2);
    assert_int_equal(cache.summary.blank_lines, 1);
    assert_int_equal(cache.summary.text_bytes, 12);
    const char *path;
    int64_t line;
    token_cache_place(&cache, 0, &path, &line);
    assert_contains(path, "/b.txt");
    assert_int_equal(line, 0);
    token_cache_place(&cache, 2, &path, &line);
    assert_contains(path, "/a.jsonl");
    assert_int_equal(line, 3);
    token_cache_close(&cache);
    assert_int_equal(fake->calls, 3);
    build_and_open(&o, 1, &cache);
    token_cache_close(&cache);
    assert_int_equal(fake->calls, 3); /* found, not made again */
    assert_int_equal(fake->warnings, 0);
    assert_int_equal(count_entries("tokens-", ""), 1);
    fake_free(fake);
}

static void test_bos_eos_special(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    put_text("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"az\"}\n{\"text\": \"\"}\n{\"text\": \"z<s>\"}\n");
    const char *files[] = {"a.jsonl"};
    struct token_cache_options o = options_of(fake, files, 1);
    struct token_cache cache;

    build_and_open(&o, 1, &cache); /* no BOS, no EOS: the empty text has no token */
    assert_int_equal(cache.documents, 3);
    assert_int_equal(cache.summary.dropped[DATA_NO_TOKENS].count, 1);
    assert_string_equal(cache.summary.dropped[DATA_NO_TOKENS].first, "a.jsonl:3");
    const char *path;
    int64_t line;
    token_cache_place(&cache, 2, &path, &line);
    assert_int_equal(line, 4);
    token_cache_close(&cache);

    o.bos_id = 500;
    o.eos_id = 'z';
    o.special_in_text = true;
    build_and_open(&o, 1, &cache);
    assert_int_equal(cache.documents, 4);
    expect_document(&cache, 0, (uint32_t[]){500, 'a', 'b', 'z'}, 4);
    expect_document(&cache, 1, (uint32_t[]){500, 'a', 'z'}, 3); /* ends in EOS as it is */
    expect_document(&cache, 2, (uint32_t[]){500, 'z'}, 2);
    expect_document(&cache, 3, (uint32_t[]){500, 'z', 300, 'z'}, 4);
    assert_int_equal(cache.max_id, 500);
    assert_int_equal(data_summary_dropped(&cache.summary), 0);
    token_cache_close(&cache);

    o.eos_id = 300;
    o.bos_id = -1;
    build_and_open(&o, 1, &cache);
    expect_document(&cache, 3, (uint32_t[]){'z', 300}, 2);
    token_cache_close(&cache);
    fake_free(fake);
}

/* Text of several rounds, through any number of threads: the same cache. */
static void test_threads(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    const int64_t lines = 60000;
    char *text = malloc((size_t)lines * 320);
    assert_non_null(text);
    size_t n = 0;
    for (int64_t i = 0; i < lines; i++) {
        n += (size_t)sprintf(text + n, i % 1000 == 7 ? "broken %lld" : "{\"text\": \"%lld ", (long long)i);
        for (int64_t k = 0; k < i * 31 % 290 && i % 1000 != 7; k++)
            text[n++] = (char)('a' + (i + k) % 26);
        n += (size_t)sprintf(text + n, i % 1000 == 7 ? "\n" : "\"}\n");
    }
    assert_true(n > (size_t)8 << 20);
    put_packed("a.jsonl.zst", text, n);
    free(text);
    const char *files[] = {"a.jsonl.zst"};
    uint64_t content = 0;
    const int threads[] = {1, 2, 5};
    for (int t = 0; t < 3; t++) {
        struct token_cache_options o = options_of(fake, files, 1);
        o.bad_lines = DATA_BAD_LINES_SKIP;
        assert_int_equal(file_remove_tree("cache", NULL), 0);
        struct token_cache cache;
        build_and_open(&o, threads[t], &cache);
        assert_int_equal(cache.documents, lines - lines / 1000);
        assert_int_equal(cache.summary.dropped[DATA_BAD_JSON].count, lines / 1000);
        assert_string_equal(cache.summary.dropped[DATA_BAD_JSON].first, "a.jsonl.zst:8");
        if (t > 0)
            assert_true(cache.content_hash == content);
        content = cache.content_hash;
        int64_t document = 0;
        for (int64_t i = 0; i < lines; i++) {
            if (i % 1000 == 7)
                continue;
            char want[400];
            int length = sprintf(want, "%lld ", (long long)i);
            for (int64_t k = 0; k < i * 31 % 290; k++)
                want[length++] = (char)('a' + (i + k) % 26);
            int64_t have;
            const uint32_t *ids = token_cache_document(&cache, document, &have);
            assert_int_equal(have, length);
            for (int k = 0; k < length; k++)
                if (ids[k] != (unsigned char)want[k])
                    fail_msg("token %d of line %lld", k, (long long)i);
            const char *path;
            int64_t line;
            token_cache_place(&cache, document++, &path, &line);
            assert_int_equal(line, i + 1);
        }
        token_cache_close(&cache);
    }
    fake_free(fake);
}

/* The first error in the text is the one that is told, whichever thread meets one first; nothing is
 * left behind. */
static void test_first_error(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    FILE *f = fopen("a.jsonl", "w");
    assert_non_null(f);
    for (int i = 1; i <= 30000; i++)
        fprintf(f, i == 17003 || i == 22000 || i == 29999 ? "{\"text\": 5}\n" : "{\"text\": \"%0100d\"}\n",
                i);
    assert_int_equal(fclose(f), 0);
    const char *files[] = {"a.jsonl"};
    struct token_cache_options o = options_of(fake, files, 1);
    struct error err;
    char *path;
    for (int threads = 1; threads <= 3; threads++) {
        assert_int_equal(build_with(&o, threads, &path, &err), -1);
        assert_null(path);
        assert_int_equal(err.kind, ERROR_INPUT);
        assert_string_equal(err.where, "a.jsonl:17003");
        assert_contains(err.remedy, "data.bad_lines: skip");
        assert_int_equal(count_entries("tokens-", ""), 0);
    }
    /* An encoder's own error gets the place too. */
    put_text("b.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    files[0] = "b.jsonl";
    fake->calls = 0;
    fake->fail_at = 2;
    assert_int_equal(build_with(&o, 1, &path, &err), -1);
    assert_string_equal(err.where, "b.jsonl:2");
    assert_contains(err.what, "no tokens");
    assert_int_equal(count_entries("tokens-", ""), 0);
    /* As does a file that is cut, after the lines before the cut. */
    static const char line[] = "{\"text\": \"0123456789012345678901234567890123456789\"}\n";
    size_t size = put_packed("c.jsonl.gz", line, sizeof line - 1);
    assert_int_equal(truncate("c.jsonl.gz", (off_t)size - 4), 0);
    files[0] = "c.jsonl.gz";
    fake->fail_at = 0;
    assert_int_equal(build_with(&o, 2, &path, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_string_equal(err.where, "c.jsonl.gz");
    assert_int_equal(count_entries("tokens-", ""), 0);
    fake_free(fake);
}

static void test_refusals(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    struct error err;
    char *path;
    put_text("a.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"bcd\"}\n");
    const char *files[] = {"a.jsonl"};
    struct token_cache_options o = options_of(fake, files, 1);
    o.vocab_limit = 'd';
    assert_int_equal(build_with(&o, 1, &path, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_string_equal(err.where, "a.jsonl:2");
    assert_contains(err.what, "fake-tokenizer");
    assert_contains(err.what, "fake-model");
    assert_contains(err.what, " 100,");
    assert_int_equal(count_entries("tokens-", ""), 0);
    o.vocab_limit = 'd' + 1;
    struct token_cache cache;
    build_and_open(&o, 1, &cache);
    token_cache_close(&cache);
    /* A cache that another model could use is refused for this one, and stays. */
    o.vocab_limit = 'd';
    assert_int_equal(build_with(&o, 1, &path, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_contains(err.what, "fake-tokenizer");
    assert_int_equal(count_entries("tokens-", ""), 1);
    assert_int_equal(fake->warnings, 0);

    o = options_of(fake, files, 1);
    o.root = "a.jsonl/cache";
    assert_int_equal(build_with(&o, 1, &path, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_contains(err.remedy, "data.cache");

    put_text("none.jsonl", "{\"text\": null}\n");
    files[0] = "none.jsonl";
    o = options_of(fake, files, 1);
    o.bad_lines = DATA_BAD_LINES_SKIP;
    assert_int_equal(build_with(&o, 1, &path, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_contains(err.what, "no document");
    assert_int_equal(count_entries("tokens-", ""), 1);

    if (geteuid() != 0) {
        assert_int_equal(mkdir("closed", 0555), 0);
        files[0] = "a.jsonl";
        o = options_of(fake, files, 1);
        o.root = "closed";
        assert_int_equal(build_with(&o, 1, &path, &err), -1);
        assert_int_equal(err.kind, ERROR_INPUT);
        assert_contains(err.remedy, "data.cache");
    }
    fake_free(fake);
}

static void test_stopped(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    FILE *f = fopen("a.jsonl", "w");
    assert_non_null(f);
    for (int i = 0; i < 100000; i++)
        fprintf(f, "{\"text\": \"%0100d\"}\n", i);
    assert_int_equal(fclose(f), 0);
    const char *files[] = {"a.jsonl"};
    struct token_cache_options o = options_of(fake, files, 1);
    fake->stop_after = 100;
    struct error err;
    char *path;
    assert_int_equal(build_with(&o, 1, &path, &err), -1);
    assert_int_equal(err.kind, ERROR_RUN);
    assert_contains(err.what, "stopped");
    assert_true(fake->calls < 100000);
    assert_int_equal(count_entries("tokens-", ""), 0);
    fake_free(fake);
}

/* Everything that decides the tokens changes the key. */
static void test_key(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    put_text("a.jsonl", "{\"text\": \"ab\", \"body\": \"x\"}\n");
    put_text("b.jsonl", "{\"text\": \"cd\", \"body\": \"y\"}\n");
    const char *one[] = {"a.jsonl"}, *two[] = {"a.jsonl", "b.jsonl"}, *swapped[] = {"b.jsonl", "a.jsonl"};
    struct token_cache_options base = options_of(fake, one, 1), o[10];
    for (int i = 0; i < 10; i++)
        o[i] = base;
    o[1].tokenizer_hash = 2;
    o[2].bos_id = 0;
    o[3].eos_id = 0;
    o[4].special_in_text = true;
    o[5].bad_lines = DATA_BAD_LINES_SKIP;
    o[6].field = "body";
    o[7].files = two;
    o[7].file_count = 2;
    o[8].files = swapped;
    o[8].file_count = 2;
    o[9].field = "text"; /* the default, spelt out: no other key */
    o[9].vocab_limit = 1000;
    uint64_t keys[12];
    for (int i = 0; i < 10; i++) {
        struct token_cache cache;
        build_and_open(&o[i], 1, &cache);
        keys[i] = cache.key;
        token_cache_close(&cache);
    }
    assert_true(keys[9] == keys[0]);
    struct stat before;
    assert_int_equal(stat("a.jsonl", &before), 0);
    put_text("a.jsonl", "{\"text\": \"cd\", \"body\": \"x\"}\n"); /* same size */
    const struct timespec times[2] = {before.st_atim, before.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, "a.jsonl", times, 0), 0); /* same time */
    struct token_cache cache;
    build_and_open(&base, 1, &cache);
    expect_document(&cache, 0, (uint32_t[]){'c', 'd'}, 2);
    keys[9] = cache.key;
    token_cache_close(&cache);
    for (int i = 0; i < 10; i++)
        for (int k = 0; k < i; k++)
            assert_true(keys[i] != keys[k]);
    fake_free(fake);
}

static void damage(const char *path, int64_t at, bool cut)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    char byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    if (cut) {
        assert_int_equal(ftruncate(fd, at), 0);
    } else {
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

static void test_damaged(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    put_text("a.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"bcd\"}\n");
    const char *files[] = {"a.jsonl"};
    struct token_cache_options o = options_of(fake, files, 1);
    struct token_cache cache;
    build_and_open(&o, 1, &cache);
    uint64_t content = cache.content_hash;
    token_cache_close(&cache);
    static const struct {
        const char *part;
        int64_t at;
        bool cut, opens; /* `opens`: only the checksum tells */
    } cases[] = {
        {"tokens.u32", 20, true, false},     {"tokens.u32", 5, false, true},
        {"ends.u64", 8, true, false},        {"ends.u64", 9, false, false},
        {"ends.u64", 0, false, false},       {"ends.u64", 0, true, false},
        {"places.u64", 8, true, false},      {"places.u64", 0, false, true},
        {"manifest.json", 90, false, false}, {"manifest.json", 20, false, false},
        {"manifest.json", 0, true, false},   {"manifest.json", 100, true, false},
    };
    int rebuilt = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err;
        char *path, *part;
        assert_int_equal(build_with(&o, 1, &path, &err), 0);
        part = file_join(path, cases[i].part);
        assert_non_null(part);
        damage(part, cases[i].at, cases[i].cut);
        int opened = token_cache_open(path, &cache, &err);
        assert_int_equal(opened, cases[i].opens ? 0 : -1);
        if (opened != 0) {
            assert_int_equal(err.kind, ERROR_INPUT);
            assert_contains(err.where, path);
        }
        token_cache_close(&cache);
        free(part);
        free(path);
        build_and_open(&o, 1, &cache);
        assert_true(cache.content_hash == content);
        token_cache_close(&cache);
        assert_int_equal(fake->calls, 2 * ++rebuilt);
        assert_int_equal(fake->warnings, rebuilt - 1);
        assert_int_equal(count_entries("tokens-", ""), 1);
    }
    /* A part that is gone, and a file where the directory should be. */
    struct error err;
    char *path, *part;
    assert_int_equal(build_with(&o, 1, &path, &err), 0);
    part = file_join(path, "ends.u64");
    assert_int_equal(unlink(part), 0);
    assert_int_equal(token_cache_open(path, &cache, &err), -1);
    build_and_open(&o, 1, &cache);
    token_cache_close(&cache);
    assert_int_equal(file_remove_tree(path, NULL), 0);
    put_text(path, "something");
    build_and_open(&o, 1, &cache);
    assert_true(cache.content_hash == content);
    token_cache_close(&cache);
    free(part);
    free(path);
    fake_free(fake);
}

static pid_t start_build(const struct token_cache_options *o)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct error err;
        char *path = NULL;
        int result = build_with(o, 2, &path, &err);
        free(path);
        _exit(result == 0 ? 0 : 1);
    }
    return child;
}

static int status_of(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void make_lines(const char *path, int lines)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < lines; i++)
        fprintf(f, "{\"text\": \"line %d\"}\n", i);
    assert_int_equal(fclose(f), 0);
}

static void test_two_at_once(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    make_lines("a.jsonl", 300);
    const char *files[] = {"a.jsonl"};
    struct token_cache_options o = options_of(fake, files, 1);
    fake->sleep_us = 1000;
    pid_t children[4];
    for (int i = 0; i < 4; i++)
        children[i] = start_build(&o);
    for (int i = 0; i < 4; i++)
        assert_int_equal(status_of(children[i]), 0);
    assert_int_equal(fake->calls, 300); /* one of them did the work */
    assert_int_equal(fake->warnings, 0);
    assert_int_equal(count_entries("tokens-", ""), 1);
    struct token_cache cache;
    build_and_open(&o, 1, &cache);
    assert_int_equal(cache.documents, 300);
    token_cache_close(&cache);
    assert_int_equal(fake->calls, 300);
    fake_free(fake);
}

static void wait_for_calls(struct fake *fake, int calls)
{
    for (int i = 0; i < 20000 && atomic_load(&fake->calls) < calls; i++)
        usleep(1000);
    assert_true(atomic_load(&fake->calls) >= calls);
}

/* A maker that is killed leaves a directory and a lock; one that waits for it goes on, and the next
 * run clears away what was left, also where it belongs to another cache. */
static void test_killed(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    make_lines("a.jsonl", 400);
    make_lines("b.jsonl", 400);
    const char *a[] = {"a.jsonl"}, *b[] = {"b.jsonl"};
    struct token_cache_options of_a = options_of(fake, a, 1), of_b = options_of(fake, b, 1);
    fake->sleep_us = 2000;
    pid_t first = start_build(&of_b);
    wait_for_calls(fake, 10);
    assert_int_equal(kill(first, SIGKILL), 0);
    assert_true(WIFSIGNALED(status_of(first)));
    assert_int_equal(count_entries("tokens-", ".tmp-"), 1);

    fake->calls = 0;
    first = start_build(&of_a);
    wait_for_calls(fake, 10);
    /* What is being made stays, though another run clears away what is stale. */
    assert_int_equal(count_entries("tokens-", ".tmp-"), 1);
    pid_t second = start_build(&of_a);
    usleep(50000);
    assert_int_equal(kill(first, SIGKILL), 0);
    assert_true(WIFSIGNALED(status_of(first)));
    assert_int_equal(status_of(second), 0);
    assert_int_equal(count_entries("tokens-", ""), 1);
    struct token_cache cache;
    fake->sleep_us = 0;
    fake->calls = 0;
    build_and_open(&of_a, 1, &cache);
    assert_int_equal(cache.documents, 400);
    token_cache_close(&cache);
    assert_int_equal(fake->calls, 0);
    fake_free(fake);
}

static void test_two_caches_at_once(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    make_lines("a.jsonl", 200);
    make_lines("b.jsonl", 200);
    const char *a[] = {"a.jsonl"}, *b[] = {"b.jsonl"};
    struct token_cache_options of_a = options_of(fake, a, 1), of_b = options_of(fake, b, 1);
    fake->sleep_us = 2000;
    pid_t first = start_build(&of_a);
    wait_for_calls(fake, 5);
    pid_t second = start_build(&of_b);
    assert_int_equal(status_of(second), 0);
    assert_int_equal(status_of(first), 0);
    assert_int_equal(fake->calls, 400);
    assert_int_equal(count_entries("tokens-", ""), 2);
    assert_int_equal(count_entries("tokens-", "."), 0);
    fake_free(fake);
}

/* A text file that grows while it is tokenized makes no cache. */
static void test_changing_text(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    make_lines("a.jsonl", 200);
    const char *files[] = {"a.jsonl"};
    struct token_cache_options o = options_of(fake, files, 1);
    fake->sleep_us = 2000;
    pid_t child = start_build(&o);
    wait_for_calls(fake, 5);
    FILE *f = fopen("a.jsonl", "a");
    assert_non_null(f);
    fputs("{\"text\": \"more\"}\n", f);
    assert_int_equal(fclose(f), 0);
    int status = status_of(child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_int_equal(count_entries("tokens-", ""), 0);
    fake_free(fake);
}

#ifndef SANITIZED
/* Memory does not grow with the text: 96 MB of it in a process that grows by less than half of that,
 * though its tokens would take 384. */
static void test_memory(void **state)
{
    (void)state;
    struct fake *fake = fake_create();
    size_t n = (size_t)96 << 20;
    char *text = malloc(n);
    assert_non_null(text);
    char line[4097];
    assert_int_equal(snprintf(line, sizeof line, "{\"text\": \"%04083d\"}\n", 0), 4096);
    for (size_t i = 0; i < n; i += 4096)
        memcpy(text + i, line, 4096);
    put_packed("a.jsonl.zst", text, n);
    free(text);
    const char *files[] = {"a.jsonl.zst"};
    struct token_cache_options o = options_of(fake, files, 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rusage before, after;
        struct error err;
        char *path = NULL;
        FILE *clear = fopen("/proc/self/clear_refs", "w"); /* forgets the parent's peak */
        if (clear) {
            fputs("5", clear);
            fclose(clear);
        }
        getrusage(RUSAGE_SELF, &before);
        int result = build_with(&o, 2, &path, &err);
        getrusage(RUSAGE_SELF, &after);
        free(path);
        _exit(result != 0 ? 1 : after.ru_maxrss - before.ru_maxrss > 48 << 10 ? 2 : 0);
    }
    assert_int_equal(status_of(child), 0);
    fake_free(fake);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_build_and_find, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_bos_eos_special, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_threads, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_first_error, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_refusals, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_stopped, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_key, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_damaged, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_two_at_once, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_killed, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_two_caches_at_once, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_changing_text, enter_directory, leave_directory),
#ifndef SANITIZED
        cmocka_unit_test_setup_teardown(test_memory, enter_directory, leave_directory),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
