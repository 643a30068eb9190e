/* damage SEED FILE: damages a file as disks, transfers, editors and hostile people do, and prints how. One to
 * three times it flips bits, cuts, doubles, removes or swaps pieces, overwrites lengths, or, where there is
 * text, replaces numbers by extreme ones and words by others of the file. The same seed and file give the
 * same damage. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bytes {
    uint8_t *data;
    size_t size;
};

static _Noreturn void give_up(const char *doing, const char *path)
{
    fprintf(stderr, "damage: cannot %s %s: %s\n", doing, path, strerror(errno));
    exit(2);
}

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* 0 … limit-1; 0 for a limit of 0. */
static size_t below(uint64_t *state, size_t limit)
{
    return limit > 0 ? (size_t)(draw(state) % limit) : 0;
}

/* Half of the places are near the beginning, where headers are. */
static size_t place(uint64_t *state, size_t size)
{
    size_t near = size < 64 ? size : 64;
    return draw(state) % 2 ? below(state, size) : below(state, near);
}

/* Replaces `taken` bytes at `at` by `n` others, which may lie in the same file. */
static void splice(struct bytes *b, size_t at, size_t taken, const void *with, size_t n)
{
    size_t size = b->size - taken + n;
    uint8_t *made = malloc(size + 1);
    if (!made)
        give_up("allocate memory for", "the file");
    if (at > 0)
        memcpy(made, b->data, at);
    if (n > 0)
        memcpy(made + at, with, n);
    memcpy(made + at + n, b->data + at + taken, b->size - at - taken);
    free(b->data);
    *b = (struct bytes){made, size};
}

/* ---- bytes ---- */

static void flip_bits(struct bytes *b, uint64_t *state)
{
    size_t count = 1 + below(state, 8);
    printf(" flips %zu bits", count);
    for (; count > 0; count--)
        b->data[place(state, b->size)] ^= (uint8_t)(1u << below(state, 8));
}

static void cut(struct bytes *b, uint64_t *state)
{
    b->size = draw(state) % 4 ? below(state, b->size) : b->size - 1 - below(state, b->size < 8 ? b->size : 8);
    printf(" cuts to %zu", b->size);
}

static void double_piece(struct bytes *b, uint64_t *state)
{
    size_t at = place(state, b->size), n = 1 + below(state, b->size - at);
    printf(" doubles %zu+%zu", at, n);
    splice(b, at, 0, b->data + at, n);
}

static void remove_piece(struct bytes *b, uint64_t *state)
{
    size_t at = place(state, b->size), rest = b->size - at, n = 1 + below(state, rest < 64 ? rest : 64);
    printf(" removes %zu+%zu", at, n);
    splice(b, at, n, NULL, 0);
}

static void swap_pieces(struct bytes *b, uint64_t *state)
{
    size_t n = 1 + below(state, b->size / 2 < 32 ? b->size / 2 : 32);
    if (2 * n > b->size)
        return;
    size_t first = below(state, b->size - 2 * n + 1),
           second = first + n + below(state, b->size - first - 2 * n + 1);
    printf(" swaps %zu and %zu, %zu long", first, second, n);
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = b->data[first + i];
        b->data[first + i] = b->data[second + i];
        b->data[second + i] = byte;
    }
}

static void insert_noise(struct bytes *b, uint64_t *state)
{
    uint8_t noise[40];
    size_t at = place(state, b->size + 1), n = 1 + below(state, sizeof noise);
    for (size_t i = 0; i < n; i++)
        noise[i] = (uint8_t)draw(state);
    printf(" inserts %zu+%zu", at, n);
    splice(b, at, 0, noise, n);
}

/* A little-endian number of 4 or 8 bytes, as lengths in binary headers are. */
static void change_length(struct bytes *b, uint64_t *state)
{
    size_t width = draw(state) % 2 ? 8 : 4;
    if (b->size < width)
        return;
    const uint64_t extremes[] = {
        0,          1,         b->size,        b->size - width,   UINT32_MAX,       INT32_MAX,
        UINT64_MAX, INT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 32, (uint64_t)1 << 62};
    uint64_t value = extremes[below(state, sizeof extremes / sizeof extremes[0])];
    size_t at = place(state, b->size - width + 1) / width * width;
    printf(" writes %" PRIu64 " at %zu", value, at);
    for (size_t i = 0; i < width; i++)
        b->data[at + i] = (uint8_t)(value >> (8 * i));
}

/* ---- text ---- */

/* The word (letters, digits, and what stands in names and numbers) at or after a place; 0: there is none. */
static size_t word_at(const struct bytes *b, size_t from, int digits_only, size_t *start)
{
    size_t at = from, end;
    while (at < b->size && !(digits_only ? isdigit(b->data[at]) : isalnum(b->data[at])))
        at++;
    for (end = at; end < b->size; end++) {
        int c = b->data[end];
        if (digits_only ? !(isdigit(c) || c == '.') : !(isalnum(c) || c == '_' || c == '-' || c == '.'))
            break;
    }
    *start = at;
    return end - at;
}

static void change_number(struct bytes *b, uint64_t *state)
{
    static const char *const extremes[] = {"0",
                                           "-1",
                                           "1",
                                           "2147483648",
                                           "4294967296",
                                           "1e999",
                                           "-0.0",
                                           "1e-320",
                                           "9223372036854775807",
                                           "9223372036854775808",
                                           "-9223372036854775808",
                                           "18446744073709551615",
                                           "1e19",
                                           "NaN",
                                           "null",
                                           "\"7\"",
                                           "[]",
                                           "1000000000000000000000000000000",
                                           "0.5",
                                           "65536"};
    const char *value = extremes[below(state, sizeof extremes / sizeof extremes[0])];
    size_t start, n = word_at(b, place(state, b->size), 1, &start);
    printf(" number at %zu becomes %s", start, value);
    if (n > 0)
        splice(b, start, n, value, strlen(value));
}

static void change_word(struct bytes *b, uint64_t *state)
{
    size_t start, other, n = word_at(b, place(state, b->size), 0, &start);
    size_t m = word_at(b, below(state, b->size), 0, &other);
    printf(" word at %zu becomes that at %zu", start, other);
    if (n > 0 && m > 0)
        splice(b, start, n, b->data + other, m);
}

static void change_mark(struct bytes *b, uint64_t *state)
{
    static const char marks[] = "{}[]:,\"'\\\n #-|&*!%@`\t";
    size_t at = place(state, b->size);
    while (at < b->size && !ispunct(b->data[at]))
        at++;
    if (at < b->size)
        b->data[at] = (uint8_t)marks[below(state, sizeof marks - 1)];
    printf(" mark at %zu", at);
}

static void damage_once(struct bytes *b, uint64_t *state)
{
    static void (*const ways[])(struct bytes *, uint64_t *) = {
        flip_bits,     cut,           double_piece,  remove_piece, swap_pieces, insert_noise,
        change_length, change_number, change_number, change_word,  change_mark};
    if (b->size == 0)
        insert_noise(b, state);
    else
        ways[below(state, sizeof ways / sizeof ways[0])](b, state);
}

int main(int argc, char **argv)
{
    char *end = NULL;
    uint64_t state = argc == 3 ? strtoull(argv[1], &end, 10) : 0;
    if (argc != 3 || end == argv[1] || *end != '\0') {
        fprintf(stderr, "usage: damage SEED FILE\n");
        return 2;
    }
    FILE *file = fopen(argv[2], "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        give_up("open", argv[2]);
    long size = ftell(file);
    struct bytes b = {malloc(size > 0 ? (size_t)size : 1), size > 0 ? (size_t)size : 0};
    rewind(file);
    if (!b.data || fread(b.data, 1, b.size, file) != b.size || fclose(file) != 0)
        give_up("read", argv[2]);
    printf("%s:", argv[2]);
    for (size_t times = 1 + below(&state, 3); times > 0; times--)
        damage_once(&b, &state);
    printf("\n");
    file = fopen(argv[2], "wb");
    if (!file || fwrite(b.data, 1, b.size, file) != b.size || fclose(file) != 0)
        give_up("write", argv[2]);
    free(b.data);
    return 0;
}
