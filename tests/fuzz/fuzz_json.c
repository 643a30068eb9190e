/* JSON: reading, places of members, and writing what was read, which must read back as the same value. */
#include "fuzz/input.h"

#include "formats/json.h"

#include <math.h>
#include <string.h>

/* Asks for every member in every way; the depth is bounded by jansson. */
static void ask(const struct json_document *doc, json_t *value)
{
    const char *key, *text;
    json_t *member;
    size_t index;
    int64_t whole;
    double number;
    bool truth;
    struct error err;
    if (json_is_array(value)) {
        json_array_foreach(value, index, member)
        {
            json_error_at_index(doc, value, index, &err, NULL, "%s", json_kind_name(member));
            ask(doc, member);
        }
    }
    if (!json_is_object(value))
        return;
    json_object_foreach(value, key, member)
    {
        FUZZ_CHECK(json_line_of(doc, value, key) >= 1);
        if (json_get_int(doc, value, key, -9, INT64_MAX, &whole, &err) == 0)
            FUZZ_CHECK(whole >= -9);
        if (json_get_double(doc, value, key, &number, &err) == 0)
            FUZZ_CHECK(isfinite(number));
        if (json_get_string_or(doc, value, key, "", &text, &err) == 0 && json_is_string(member))
            FUZZ_CHECK(strlen(text) == json_string_length(member));
        (void)json_get_bool(doc, value, key, &truth, &err);
        ask(doc, member);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_document doc;
    struct error err;
    if (json_open_text(&doc, "input.json", data, size, &err) != 0) {
        FUZZ_CHECK(err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0');
        return 0;
    }
    /* Asking goes through the text again for every member: of large inputs, reading alone. */
    if (size <= 4096)
        ask(&doc, doc.root);
    struct strbuf text = {0};
    struct json_writer w;
    json_t *again;
    json_writer_start(&w, &text, size % 3 == 0 ? 2 : 0);
    json_write_value(&w, NULL, doc.root);
    FUZZ_CHECK(!text.failed);
    FUZZ_CHECK(json_parse("written.json", 1, text.data, text.length, &again, &err) == 0);
    FUZZ_CHECK(json_equal(doc.root, again));
    json_decref(again);
    strbuf_free(&text);
    json_close(&doc);
    return 0;
}
