#include "small_tokenizer.h"

#include "text/characters.h"
#include "text/maps.h"
#include "text/pattern.h"

/* All matches of a pattern, as "[match]" with the text between them left out. */
static void check_matches(const char *regex, bool literal, const char *text, const char *expected)
{
    struct pattern *p;
    struct pattern_scratch *scratch;
    struct pattern_cursor cursor = {0};
    struct strbuf out = {0};
    struct error err;
    size_t start, end;
    int status;

    if (pattern_compile(regex, strlen(regex), literal, &p, &err) != 0)
        fail_msg("%s: %s", regex, err.what);
    assert_int_equal(pattern_scratch_create(&scratch, &err), 0);
    while ((status = pattern_next(p, scratch, (const uint8_t *)text, strlen(text), &cursor, &start, &end,
                                  &err)) > 0)
        strbuf_printf(&out, "[%.*s]", (int)(end - start), text + start);
    assert_int_equal(status, 0);
    strbuf_puts(&out, "");
    assert_string_equal(out.data == NULL ? "" : out.data, expected);
    strbuf_free(&out);
    pattern_scratch_free(scratch);
    pattern_free(p);
}

static void test_matches(void **state)
{
    (void)state;
    check_matches("\\p{N}{1,3}", false, "a12345b6", "[123][45][6]");
    check_matches("\\s+(?!\\S)|\\s+", false, "a   b  ", "[  ][ ][  ]");
    check_matches("(?i:'s|'ll)|x", false, "I'LL X x 's '\xc5\xbf",
                  "['LL][x]['s]['\xc5\xbf]");         /* U+017F is an s */
    check_matches("(?i:'s)|s", false, "S's", "['s]"); /* the flag ends with its group */
    check_matches("[^a-c\\s]+", false, "abcde f", "[de][f]");
    check_matches("[a\\-z]+", false, "a-zb", "[a-z]");
    check_matches("\\x41|\\x{42}|\\u0043", false, "ABCD", "[A][B][C]");
    check_matches("a+?|b++|c*?d", false, "aabbccd", "[a][a][bb][ccd]");
    check_matches(".", false, "a\n\r\xc2\x85", "[a][\r][\xc2\x85]"); /* all but the newline */
    check_matches("[\xe4\xb8\x80-\xe9\xbe\xa5]+", false, "a\xe4\xb8\xad\xe6\x96\x87z",
                  "[\xe4\xb8\xad\xe6\x96\x87]");
    check_matches("(?<=a)b|(?<!a)c|(?>d+)", false, "abacbcddd", "[b][c][ddd]");
    check_matches(".*", true, "a.*b.*", "[.*][.*]");
}

/* An empty match counts, but not right behind another match. */
static void test_empty_matches(void **state)
{
    (void)state;
    check_matches("b*", false, "abba", "[][bb][]");
    check_matches("b*", false, "", "[]");
    check_matches("b*", false, "\xc3\xa9\xc3\xa9", "[][][]");
}

static void test_white_space(void **state)
{
    (void)state;
    /* U+0085, U+00A0, U+2003, U+3000 are; U+200B and U+FEFF are not. */
    check_matches("\\s", false, "\xc2\x85\xc2\xa0\xe2\x80\x83\xe3\x80\x80\xe2\x80\x8b\xef\xbb\xbf",
                  "[\xc2\x85][\xc2\xa0][\xe2\x80\x83][\xe3\x80\x80]");
}

static void test_refused(void **state)
{
    static const char *const wrong[] = {
        "",          "\\w+",
        "\\b",       "^a",
        "a$",        "[[a]b]",
        "[a&&b]",    "\\p{Han}",
        "\\pL",      "\\p{L",
        "[]a]",      "[a",
        "(a",        "a)",
        "a**",       "a{2}+",
        "a{,3}",     "a{2}?",
        "(?i)a",     "(?<n>a)",
        "(?i:[a])",  "(?i:\xc3\xa9)",
        "(?i:ss)",   "\\h",
        "\\1",       "\\x{}",
        "\\x4",      "\\u004",
        "(*ACCEPT)", "[\\s-a]",
        "\\",        "*a",
        "a{99999}",  "\\p{^L}",
        "[a\\b]",    "\\v",
        "[z-a]",     "\xf0\x9e\x97\x90", /* U+1E5D0, of Unicode 16 */
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct pattern *p = NULL;
        struct error err = {0};
        if (pattern_compile(wrong[i], strlen(wrong[i]), false, &p, &err) == 0)
            fail_msg("%s was taken", wrong[i]);
        assert_null(p);
        assert_int_equal(err.kind, ERROR_INPUT);
        assert_true(err.what[0] != 0);
    }
}

/* (a+)+b on many a: the work is bounded, and the failure reported. */
static void test_too_much_work(void **state)
{
    struct pattern *p;
    struct pattern_scratch *scratch;
    struct pattern_cursor cursor = {0};
    struct error err = {0};
    size_t start, end;
    uint8_t text[4000];

    (void)state;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'c';
    assert_int_equal(pattern_compile("(?:a|aa)+[bd]", 13, false, &p, &err), 0);
    assert_int_equal(pattern_scratch_create(&scratch, &err), 0);
    assert_int_equal(pattern_next(p, scratch, text, sizeof text, &cursor, &start, &end, &err), -1);
    assert_non_null(strstr(err.what, "regular expression"));
    pattern_scratch_free(scratch);
    pattern_free(p);
}

static void test_characters(void **state)
{
    uint8_t shadow[8];

    (void)state;
    assert_int_equal(character_category('a'), UTF8PROC_CATEGORY_LL);
    assert_int_equal(character_category(0x1e5d0), UTF8PROC_CATEGORY_LO); /* Unicode 16 */
    assert_int_equal(character_category(0x31350), UTF8PROC_CATEGORY_LO); /* Unicode 15 */
    assert_int_equal(character_category(0x9ffd), UTF8PROC_CATEGORY_LO);  /* Unicode 14 */
    assert_int_equal(character_category(0x61d), UTF8PROC_CATEGORY_PO);   /* Unicode 14 */
    assert_int_equal(character_stand_in(0x4e2d), 0x4e2d);
    assert_int_not_equal(character_stand_in(0x180e), 0x180e);
    assert_false(characters_need_shadow((const uint8_t *)"a\xe4\xb8\xad", 4));
    assert_true(characters_need_shadow((const uint8_t *)"a\xe1\xa0\x8e", 4));
    for (uint32_t c = 0; c < 0x110000; c++) {
        uint32_t other = character_stand_in(c);
        if (other == c)
            continue;
        /* Same category, same length, old enough itself. */
        if (character_category(other) != character_category(c) || character_stand_in(other) != other ||
            (other < 0x800) != (c < 0x800) || (other < 0x10000) != (c < 0x10000))
            fail_msg("U+%04X", c);
    }
    characters_shadow((const uint8_t *)"a\xe1\xa0\x8ez", 5, shadow);
    assert_int_equal(shadow[0], 'a');
    assert_int_equal(shadow[4], 'z');
    assert_memory_not_equal(shadow + 1, "\xe1\xa0\x8e", 3);
    assert_true(character_is_space(0x3000) && !character_is_space(0x200b) && !character_is_space(0x180e));
    assert_true(character_is_word('_') && character_is_word(0x301) && character_is_word(0x24b6));
    assert_true(!character_is_word('-') && !character_is_word(0xb2) && character_is_word(0x200d));
}

static void test_maps(void **state)
{
    struct key_map keys = {0};
    struct byte_map bytes = {0};
    uint32_t index;
    size_t n;

    (void)state;
    assert_int_equal(key_map_find(&keys, 3), MAP_NONE);
    assert_int_equal(byte_map_find(&bytes, "x", 1), MAP_NONE);
    for (uint32_t i = 0; i < 5000; i++) {
        assert_int_equal(key_map_put(&keys, key_of_pair(i % 71, i), i), 0);
        assert_int_equal(byte_map_add(&bytes, &i, sizeof i, &index), 1);
        assert_int_equal(index, i);
    }
    for (uint32_t i = 0; i < 5000; i++) {
        assert_int_equal(key_map_find(&keys, key_of_pair(i % 71, i)), i);
        assert_int_equal(key_map_find(&keys, key_of_pair(i % 71 + 1, i)), MAP_NONE);
        assert_int_equal(byte_map_find(&bytes, &i, sizeof i), i);
        assert_int_equal(byte_map_add(&bytes, &i, sizeof i, &index), 0);
        assert_int_equal(index, i);
        assert_memory_equal(byte_map_key(&bytes, i, &n), &i, sizeof i);
        assert_int_equal(n, sizeof i);
    }
    assert_int_equal(key_map_put(&keys, key_of_pair(5, 5), 99), 0);
    assert_int_equal(key_map_find(&keys, key_of_pair(5, 5)), 99);
    assert_int_equal(keys.count, 5000);
    assert_int_equal(byte_map_add(&bytes, "", 0, &index), 1);
    assert_int_equal(byte_map_find(&bytes, "", 0), 5000);
    key_map_free(&keys);
    byte_map_free(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches),       cmocka_unit_test(test_empty_matches),
        cmocka_unit_test(test_white_space),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_too_much_work), cmocka_unit_test(test_characters),
        cmocka_unit_test(test_maps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
