#include "small_tokenizer.h"

#include "text/utf8.h"

static void lossy(const char *bytes, size_t n, const char *expected)
{
    struct strbuf out = {0};

    assert_int_equal(utf8_append_lossy(&out, (const uint8_t *)bytes, n, true), n);
    strbuf_puts(&out, "|");
    assert_int_equal(out.data[out.length - 1], '|');
    out.data[out.length - 1] = 0;
    assert_string_equal(out.data, expected);
    strbuf_free(&out);
}

#define R "\xef\xbf\xbd"

static void test_lossy(void **state)
{
    (void)state;
    lossy("a\xc3\xa9z", 4, "a\xc3\xa9z");
    lossy("\x80", 1, R);
    lossy("\xc0\x80", 2, R R);                           /* overlong: neither byte can be in a character */
    lossy("\xe2\x82", 2, R);                             /* cut off: one maximal part */
    lossy("\xe2\x82z", 3, R "z");                        /* broken off */
    lossy("\xed\xa0\x80", 3, R R R);                     /* a surrogate: ED allows no A0 behind it */
    lossy("\xf0\x9f\x98", 3, R);                         /* three of four */
    lossy("\xf0\x80\x80\x80", 4, R R R R);               /* overlong: F0 allows no 80 */
    lossy("\xf4\x90\x80\x80", 4, R R R R);               /* beyond U+10FFFF */
    lossy("\xf1\x80\x80\xe1\x80\xc2\x62", 7, R R R "b"); /* the example of the Unicode Standard, table 3-8 */
}

static void test_not_final(void **state)
{
    struct strbuf out = {0};

    (void)state;
    assert_int_equal(utf8_append_lossy(&out, (const uint8_t *)"ab\xf0\x9f\x98", 5, false), 2);
    assert_string_equal(out.data, "ab");
    assert_int_equal(utf8_append_lossy(&out, (const uint8_t *)"\xff\xe2", 2, false), 1);
    assert_string_equal(out.data, "ab" R);
    strbuf_free(&out);
}

static void test_invalid_at(void **state)
{
    (void)state;
    assert_int_equal(utf8_invalid_at((const uint8_t *)"", 0), 0);
    assert_int_equal(utf8_invalid_at((const uint8_t *)"0123456789abcdef\xff", 17), 16);
    assert_int_equal(utf8_invalid_at((const uint8_t *)"0123456789abcde\xc3", 16), 15);
    assert_int_equal(utf8_invalid_at((const uint8_t *)"\0\xf4\x8f\xbf\xbf", 5), 5);
    assert_int_equal(utf8_invalid_at((const uint8_t *)"ab\xed\xbf\xbf", 5), 2);
}

/* Every character survives writing, reading forwards, reading backwards and checking. */
static void test_all_characters(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        uint8_t s[5] = "x";
        size_t at = 1, start, n;
        if (c >= 0xd800 && c < 0xe000)
            continue;
        n = 1 + utf8_put(c, s + 1);
        if (utf8_invalid_at(s, n) != n || utf8_next(s, &at) != c || at != n ||
            utf8_previous(s, n, &start) != c || start != 1)
            fail_msg("U+%04X", c);
    }
}

static void test_byte_alphabet(void **state)
{
    char text[512];
    uint8_t bytes[256], back[512];
    size_t n;
    int seen[0x144] = {0};

    (void)state;
    assert_int_equal(byte_alphabet_character(' '), 0x120);
    assert_int_equal(byte_alphabet_character('\n'), 0x10a);
    assert_int_equal(byte_alphabet_character(0x7f), 0x121);
    assert_int_equal(byte_alphabet_character(0xa0), 0x142);
    assert_int_equal(byte_alphabet_character(0xad), 0x143);
    assert_int_equal(byte_alphabet_character('!'), '!');
    for (int b = 0; b < 256; b++) {
        uint32_t c = byte_alphabet_character((uint8_t)b);
        assert_in_range(c, 0x21, 0x143);
        assert_int_equal(seen[c]++, 0);
        assert_int_equal(byte_alphabet_byte(c), b);
        bytes[b] = (uint8_t)b;
    }
    assert_int_equal(byte_alphabet_byte(' '), -1);
    assert_int_equal(byte_alphabet_byte(0xad), -1);
    assert_int_equal(byte_alphabet_byte(0x144), -1);
    assert_int_equal(byte_alphabet_byte(0x4e2d), -1);
    n = byte_alphabet_encode(bytes, 256, text);
    assert_int_equal(byte_alphabet_decode(text, n, back), 256);
    assert_memory_equal(bytes, back, 256);
    assert_true(byte_alphabet_decode("a b", 3, back) == SIZE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lossy),         cmocka_unit_test(test_not_final),
        cmocka_unit_test(test_invalid_at),    cmocka_unit_test(test_all_characters),
        cmocka_unit_test(test_byte_alphabet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
