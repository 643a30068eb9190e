/* For json.c alone: jansson's json_loadb, where memory may run out. */
#ifndef TERCET_FORMATS_JSON_LOAD_H
#define TERCET_FORMATS_JSON_LOAD_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* json_loadb with strict rules (see json_parse). NULL: with *no_memory, an allocation has failed; else
 * *problem says what is wrong with the text. Makes jansson allocate through functions of its own from then
 * on, which come to malloc and free. */
json_t *json_load(const char *text, size_t size, bool *no_memory, json_error_t *problem);

#endif
