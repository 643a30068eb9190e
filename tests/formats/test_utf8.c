#include "formats/utf8.h"
#include "support/cmocka.h"

#include <string.h>

/* The borders of every range of well-formed sequences, each with a neighbour outside. */
static void borders(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t length;
    } cases[] = {
        {"\x7f", 1},
        {"\x80", 0},
        {"\xc1\xbf", 0},
        {"\xc2\x80", 2},
        {"\xdf\xbf", 2},
        {"\xe0\x9f\xbf", 0},
        {"\xe0\xa0\x80", 3},
        {"\xed\x9f\xbf", 3},
        {"\xed\xa0\x80", 0},
        {"\xee\x80\x80", 3},
        {"\xef\xbf\xbf", 3},
        {"\xf0\x8f\xbf\xbf", 0},
        {"\xf0\x90\x80\x80", 4},
        {"\xf4\x8f\xbf\xbf", 4},
        {"\xf4\x90\x80\x80", 0},
        {"\xf5\x80\x80\x80", 0},
        {"\xff", 0},
        {"\xe2\x82", 0},
        {"\xf0\x9f\x98", 0},
        {"\xc3(", 0},
        {"\xe2\x82(", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(utf8_sequence(cases[i].text, strlen(cases[i].text)), cases[i].length);
    assert_int_equal(utf8_sequence("a", 0), 0);
    assert_int_equal(utf8_sequence("\0", 1), 1);
}

static void whole_texts(void **state)
{
    (void)state;
    assert_true(utf8_valid("", 0));
    assert_true(utf8_valid("床前明月光 é😀", strlen("床前明月光 é😀")));
    assert_false(utf8_valid("床前明月光", strlen("床前明月光") - 1));
    assert_false(utf8_valid("ab\xff", 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(borders), cmocka_unit_test(whole_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
