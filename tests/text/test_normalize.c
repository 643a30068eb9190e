#include "small_tokenizer.h"

#include "text/normalize.h"

static void check_nfc(const char *text, const char *expected)
{
    struct nfc_scratch scratch = {0};
    struct strbuf out = {0};

    assert_int_equal(nfc_append(&scratch, (const uint8_t *)text, strlen(text), &out), 0);
    assert_string_equal(out.data == NULL ? "" : out.data, expected);
    nfc_scratch_free(&scratch);
    strbuf_free(&out);
}

static void test_compose(void **state)
{
    (void)state;
    check_nfc("", "");
    check_nfc("plain", "plain");
    check_nfc("e\xcc\x81", "\xc3\xa9"); /* e + U+0301 */
    check_nfc("xe\xcc\x81z", "x\xc3\xa9z");
    check_nfc("\xe2\x84\xab", "\xc3\x85");                  /* Angstrom sign to U+00C5 */
    check_nfc("a\xcc\x81\xcc\xa3", "\xe1\xba\xa1\xcc\x81"); /* a acute, dot below: reordered, then composed */
    check_nfc("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"); /* Hangul jamo */
    check_nfc("\xea\xb0\x80\xe1\x86\xa8", "\xea\xb0\x81");
    check_nfc("\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"); /* U+0958 is excluded from composition */
    check_nfc("\xef\xac\x81", "\xef\xac\x81");             /* a compatibility character stays */
    check_nfc("\xe4\xb8\xad\xcc\x81\xcc\xa3", "\xe4\xb8\xad\xcc\xa3\xcc\x81"); /* behind an ideograph */
    check_nfc("\xcc\x81\xcc\xa3", "\xcc\xa3\xcc\x81");                         /* nothing in front */
}

/* Characters of after Unicode 9 are left where they are: U+0301 (230), U+10D24 (230, Unicode 11), U+0323
 * (220). */
static void test_newer_characters(void **state)
{
    (void)state;
    check_nfc("e\xf0\x90\xb4\xa4\xcc\x81", "e\xf0\x90\xb4\xa4\xcc\x81");
    check_nfc("e\xcc\x81\xf0\x90\xb4\xa4\xcc\xa3", "\xc3\xa9\xf0\x90\xb4\xa4\xcc\xa3");
    check_nfc("\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0",
              "\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0"); /* U+11938 came with 13 */
}

/* A long run of marks in alternating order becomes all of one class, then all of the other. */
static void test_long_run(void **state)
{
    enum { PAIRS = 100000 };
    struct strbuf text = {0}, expected = {0};

    (void)state;
    strbuf_puts(&text, "x");
    strbuf_puts(&expected, "x");
    for (int i = 0; i < PAIRS; i++)
        strbuf_puts(&text, "\xcc\x8d\xcc\xa4"); /* U+030D (230), U+0324 (220) */
    for (int i = 0; i < PAIRS; i++)
        strbuf_puts(&expected, "\xcc\xa4");
    for (int i = 0; i < PAIRS; i++)
        strbuf_puts(&expected, "\xcc\x8d");
    check_nfc(text.data, expected.data);
    strbuf_free(&text);
    strbuf_free(&expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compose),
        cmocka_unit_test(test_newer_characters),
        cmocka_unit_test(test_long_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
