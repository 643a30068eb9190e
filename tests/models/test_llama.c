/* Llama: what a config.json comes to (sizes, names, counts, frequencies), what is refused and how it is
 * said, what is written back, and that every graph builds and can be differentiated. */
#include "models/model.h"

#include "base/file.h"
#include "base/rng.h"
#include "models/rope.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SMOLLM                                                                                               \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"          \
    "\"bos_token_id\":0,\"eos_token_id\":0,\"hidden_act\":\"silu\",\"hidden_size\":576,"                     \
    "\"initializer_range\":0.041666666666666664,\"intermediate_size\":1536,\"is_llama_config\":true,"        \
    "\"max_position_embeddings\":8192,\"model_type\":\"llama\",\"num_attention_heads\":9,"                   \
    "\"num_hidden_layers\":30,\"num_key_value_heads\":3,\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,"        \
    "\"rope_scaling\":null,\"rope_theta\":100000,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\"," \
    "\"use_cache\":true,\"vocab_size\":49152}"

#define LLAMA32                                                                                              \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"bos_token_id\":128000,"                                     \
    "\"eos_token_id\":[128001,128008,128009],\"head_dim\":64,\"hidden_size\":2048,"                          \
    "\"intermediate_size\":8192,\"max_position_embeddings\":131072,\"model_type\":\"llama\","                \
    "\"num_attention_heads\":32,\"num_hidden_layers\":16,\"num_key_value_heads\":8,"                         \
    "\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,"                     \
    "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"           \
    "\"rope_theta\":500000.0,\"tie_word_embeddings\":true,\"vocab_size\":128256}"

/* Odd sizes, an explicit head_dim that is not hidden/heads, all biases. */
#define ODD                                                                                                  \
    "\"model_type\":\"llama\",\"vocab_size\":331,\"hidden_size\":60,\"intermediate_size\":77,"               \
    "\"num_hidden_layers\":3,\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":14,"           \
    "\"attention_bias\":true,\"mlp_bias\":true"

struct lines {
    int count;
    char text[16][256];
};

static void keep_line(void *context, enum log_level level, const char *text)
{
    struct lines *lines = context;
    assert_int_equal(level, LOG_WARNING);
    if (lines->count < 16)
        snprintf(lines->text[lines->count], sizeof lines->text[0], "%s", text);
    lines->count++;
}

static int create_logged(struct model **m, const char *text, struct lines *lines, struct error *err)
{
    struct log log = {.line = lines != NULL ? keep_line : NULL, .context = lines};
    json_t *object = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(object);
    int result = model_create(m, object, "config.json", &log, err);
    json_decref(object);
    return result;
}

static struct model *create(const char *text)
{
    struct model *m;
    struct error err = {0};
    if (create_logged(&m, text, NULL, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    return m;
}

static void counts(void **state)
{
    (void)state;
    struct model *m = create(SMOLLM);
    assert_int_equal(model_parameter_count(m), 134515008);
    assert_int_equal(m->config.head_dim, 64);
    assert_int_equal(m->unit_count, 32);
    assert_int_equal(m->kinds, 3);
    assert_int_equal(m->config.bos, 0);
    assert_int_equal(m->config.eos[0], 0);
    assert_int_equal(m->config.eos_count, 1);
    assert_int_equal(m->config.pad, -1);
    model_free(m);

    m = create(LLAMA32);
    assert_int_equal(model_parameter_count(m), 1235814400);
    assert_int_equal(m->config.eos_count, 3);
    assert_int_equal(m->config.eos[2], 128009);
    model_free(m);

    /* Llama-3-8B, untied: from its description. */
    m = create(
        "{\"model_type\":\"llama\",\"vocab_size\":128256,\"hidden_size\":4096,\"intermediate_size\":14336,"
        "\"num_key_value_heads\":8,\"rope_theta\":500000.0,\"max_position_embeddings\":8192}");
    assert_int_equal(model_parameter_count(m), 8030261248);
    model_free(m);
}

static void class_defaults(void **state)
{
    (void)state;
    struct model *m = create("{\"model_type\":\"llama\"}");
    const struct model_config *c = &m->config;
    assert_int_equal(c->vocab_size, 32000);
    assert_int_equal(c->hidden_size, 4096);
    assert_int_equal(c->intermediate_size, 11008);
    assert_int_equal(c->layers, 32);
    assert_int_equal(c->heads, 32);
    assert_int_equal(c->kv_heads, 32);
    assert_int_equal(c->head_dim, 128);
    assert_int_equal(c->max_positions, 2048);
    assert_true(c->rms_norm_eps == 1e-6 && c->initializer_range == 0.02 && c->rope_theta == 10000);
    assert_false(c->tied || c->attention_bias || c->mlp_bias);
    assert_int_equal(c->bos, 1);
    assert_int_equal(c->eos[0], 2);
    assert_int_equal(c->pad, -1);
    assert_int_equal(c->rope_type, ROPE_DEFAULT);
    assert_int_equal(model_parameter_count(m), 6738415616); /* Llama-7B */
    model_free(m);

    /* null means none for ids, and the usual for head_dim and num_key_value_heads. */
    m = create("{\"model_type\":\"llama\",\"bos_token_id\":null,\"eos_token_id\":null,\"pad_token_id\":null,"
               "\"num_key_value_heads\":null,\"head_dim\":null,\"rope_scaling\":null}");
    assert_int_equal(m->config.bos, -1);
    assert_int_equal(m->config.eos_count, 0);
    assert_int_equal(m->config.kv_heads, 32);
    assert_int_equal(m->config.head_dim, 128);
    model_free(m);
}

static void check_param(const struct model *m, int unit, int index, const char *name, int64_t dim0,
                        int64_t dim1, enum model_init init, bool decay)
{
    const struct model_param *p = &m->units[unit].params[index];
    assert_string_equal(p->name, name);
    assert_int_equal(p->ndim, dim1 > 0 ? 2 : 1);
    assert_int_equal(p->dim[0], dim0);
    assert_int_equal(p->dim[1], dim1);
    assert_int_equal(p->init, init);
    assert_int_equal(p->decay, decay);
    assert_int_equal(model_param_elements(p), dim0 * (dim1 > 0 ? dim1 : 1));
}

static void names_and_shapes(void **state)
{
    (void)state;
    struct model *m = create("{" ODD "}");
    assert_int_equal(m->unit_count, 5);
    assert_string_equal(m->units[0].name, "embedding");
    assert_string_equal(m->units[1].name, "block 0");
    assert_string_equal(m->units[3].name, "block 2");
    assert_string_equal(m->units[4].name, "head");
    for (int u = 0; u < 5; u++)
        assert_int_equal(m->units[u].kind, u == 0 ? 0 : u == 4 ? 2 : 1);
    assert_int_equal(m->units[0].param_count, 1);
    check_param(m, 0, 0, "model.embed_tokens.weight", 331, 60, MODEL_INIT_NORMAL, false);
    assert_int_equal(m->units[3].param_count, 16);
    const struct {
        const char *name;
        int64_t dim0, dim1;
    } block[] = {
        {"self_attn.q_proj.weight", 84, 60}, {"self_attn.q_proj.bias", 84, 0},
        {"self_attn.k_proj.weight", 28, 60}, {"self_attn.k_proj.bias", 28, 0},
        {"self_attn.v_proj.weight", 28, 60}, {"self_attn.v_proj.bias", 28, 0},
        {"self_attn.o_proj.weight", 60, 84}, {"self_attn.o_proj.bias", 60, 0},
        {"mlp.gate_proj.weight", 77, 60},    {"mlp.gate_proj.bias", 77, 0},
        {"mlp.up_proj.weight", 77, 60},      {"mlp.up_proj.bias", 77, 0},
        {"mlp.down_proj.weight", 60, 77},    {"mlp.down_proj.bias", 60, 0},
        {"input_layernorm.weight", 60, 0},   {"post_attention_layernorm.weight", 60, 0},
    };
    for (int i = 0; i < 16; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.2.%s", block[i].name);
        bool matrix = block[i].dim1 > 0;
        check_param(m, 3, i, name, block[i].dim0, block[i].dim1,
                    matrix    ? MODEL_INIT_NORMAL
                    : i >= 14 ? MODEL_INIT_ONES
                              : MODEL_INIT_ZEROS,
                    matrix);
        assert_int_equal(m->units[3].params[i].unit, 3);
        assert_int_equal(m->units[3].params[i].index, i);
    }
    assert_int_equal(m->units[4].param_count, 2);
    check_param(m, 4, 0, "model.norm.weight", 60, 0, MODEL_INIT_ONES, false);
    check_param(m, 4, 1, "lm_head.weight", 331, 60, MODEL_INIT_NORMAL, true);
    assert_int_equal(m->units[4].params[1].unit, 4);
    model_free(m);

    m = create("{" ODD ",\"tie_word_embeddings\":true}");
    assert_int_equal(m->units[4].param_count, 2);
    check_param(m, 4, 1, "model.embed_tokens.weight", 331, 60, MODEL_INIT_NORMAL, false);
    assert_int_equal(m->units[4].params[1].unit, 0);
    assert_int_equal(m->units[4].params[1].index, 0);
    model_free(m);
}

/* The formula of the Llama 3.1 paper's code, in long double. */
static long double llama3(long double theta, int dim, int i, long double factor, long double low,
                          long double high, long double original)
{
    long double inv = powl(theta, -2.0L * i / dim), wave = 2 * acosl(-1.0L) / inv;
    if (wave < original / high)
        return inv;
    if (wave > original / low)
        return inv / factor;
    long double s = (original / wave - low) / (high - low);
    return inv * ((1 - s) / factor + s);
}

/* Half a unit in the last place of the exponent, at most 1, times ln(theta) up to 14, and of seven more
 * roundings. */
#define FREQUENCY_BOUND (21 * 0x1p-24L)

static void frequencies(void **state)
{
    (void)state;
    struct model *m = create(LLAMA32);
    int kept = 0, blended = 0, divided = 0;
    for (int i = 0; i < 32; i++) {
        long double plain = powl(500000.0L, -2.0L * i / 64);
        long double want = llama3(500000, 64, i, 32, 1, 4, 8192);
        assert_true(fabsl((long double)m->inv_freq[i] - want) <= FREQUENCY_BOUND * want);
        kept += want == plain;
        divided += want == plain / 32;
        blended += want != plain && want != plain / 32;
    }
    assert_true(kept > 10 && divided > 10 && blended > 1);
    model_free(m);

    m = create("{" ODD ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}");
    assert_int_equal(m->config.rope_type, ROPE_LINEAR);
    for (int i = 0; i < 7; i++) {
        long double want = powl(10000.0L, -2.0L * i / 14) / 2.5L;
        assert_true(fabsl((long double)m->inv_freq[i] - want) <= FREQUENCY_BOUND * want);
    }
    model_free(m);
}

/* Bits that PyTorch 2.15 gives for transformers' formulas on an x86-64 CPU, in order of index. */
static void frequencies_as_pytorch(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        int64_t head_dim;
        uint32_t bits[32];
    } cases[] = {
        {"\"head_dim\":12,\"rope_theta\":10000.0",
         6,
         {0x3f800000, 0x3e5c9d35, 0x3d3e1e95, 0x3c23d70a, 0x3b0d3169, 0x39f35a5c}},
        {"\"head_dim\":12,\"max_position_embeddings\":512,\"rope_parameters\":{\"rope_type\":\"llama3\","
         "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
         "\"original_max_position_embeddings\":64,\"rope_theta\":10000.0}",
         6,
         {0x3f800000, 0x3dd0dfc9, 0x3bbe1e95, 0x3aa3d70a, 0x398d3169, 0x38735a5c}},
        {"\"head_dim\":64,\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,"
         "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}",
         32,
         {0x3f800000, 0x3f29e1c6, 0x3ee177bc, 0x3e959ee3, 0x3e4693b0, 0x3e03c6a0, 0x3daee4ad, 0x3d681e67,
          0x3d1a08c8, 0x3ccc6f49, 0x3c87a9c3, 0x3c340d6d, 0x3beef74f, 0x3b9e9402, 0x3b527720, 0x3aa9279b,
          0x39e13620, 0x38cb98f7, 0x37a3418d, 0x3758ac81, 0x370fc8f8, 0x36bed4f4, 0x367d45c3, 0x3628126b,
          0x35df10c4, 0x359406cb, 0x35447610, 0x35025f34, 0x34ad07a7, 0x3465a54d, 0x341864a7, 0x33ca41b0}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char text[512];
        int different = 0;
        snprintf(text, sizeof text, "{\"model_type\":\"llama\",\"num_hidden_layers\":1,%s}", cases[c].config);
        struct model *m = create(text);
        for (int64_t i = 0; i < cases[c].head_dim; i++) {
            uint32_t bits;
            memcpy(&bits, &m->inv_freq[i], sizeof bits);
            int64_t distance = (int64_t)bits - (int64_t)cases[c].bits[i];
            assert_in_range(distance + 1, 0, 2);
            different += distance != 0;
        }
        /* PyTorch's power is allowed its last bit in places, no more. */
        assert_in_range(different, 0, cases[c].head_dim / 8);
        model_free(m);
    }
}

static void refuse_as(const char *members, const char *what_part)
{
    char text[1024];
    struct model *m;
    struct error err = {0};
    snprintf(text, sizeof text, "{\"model_type\":\"llama\",%s}", members);
    if (create_logged(&m, text, NULL, &err) == 0)
        fail_msg("accepted: %s", members);
    assert_null(m);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_string_equal(err.where, "config.json");
    if (strstr(err.what, what_part) == NULL)
        fail_msg("%s gives \"%s\", not \"%s\"", members, err.what, what_part);
}

static void refusals(void **state)
{
    (void)state;
    refuse_as("\"num_attention_heads\":0", "num_attention_heads: 0 is impossible");
    refuse_as("\"num_key_value_heads\":0", "num_key_value_heads: 0 is impossible");
    refuse_as("\"num_attention_heads\":32,\"num_key_value_heads\":5", "5 key-value heads do not divide 32");
    refuse_as("\"num_attention_heads\":8,\"num_key_value_heads\":16", "16 key-value heads do not divide 8");
    refuse_as("\"head_dim\":13", "head_dim: heads of 13");
    refuse_as("\"hidden_size\":33,\"num_attention_heads\":11", "num_attention_heads: heads of 3");
    refuse_as("\"hidden_size\":60,\"num_attention_heads\":7", "7 heads do not divide the hidden_size 60");
    refuse_as("\"head_dim\":-2", "head_dim: -2 is impossible");
    refuse_as("\"head_dim\":0", "head_dim: 0 is impossible");
    refuse_as("\"hidden_size\":-4096", "hidden_size: -4096 is impossible");
    refuse_as("\"hidden_size\":4096.0", "hidden_size: expected an integer, found ");
    refuse_as("\"hidden_size\":\"4096\"", "hidden_size: expected an integer, found a string");
    refuse_as("\"hidden_size\":null", "hidden_size: it is null");
    refuse_as("\"vocab_size\":0", "vocab_size: 0");
    refuse_as("\"vocab_size\":2147483648", "vocab_size: 2147483648");
    refuse_as("\"num_hidden_layers\":0", "num_hidden_layers: 0");
    refuse_as("\"num_hidden_layers\":1000000", "num_hidden_layers: 1000000");
    refuse_as("\"intermediate_size\":9223372036854775807", "intermediate_size: 9223372036854775807");
    refuse_as("\"hidden_size\":16777216,\"head_dim\":65536,\"num_attention_heads\":65536,"
              "\"num_key_value_heads\":65536,\"num_hidden_layers\":10000",
              "more than 4503599627370496 parameters");
    refuse_as("\"rms_norm_eps\":-1e-6", "rms_norm_eps: -1e-06 is impossible");
    refuse_as("\"rms_norm_eps\":true", "rms_norm_eps: expected a number, found ");
    refuse_as("\"initializer_range\":-0.02", "initializer_range: -0.02 is impossible");
    refuse_as("\"tie_word_embeddings\":1", "tie_word_embeddings: expected true or false");
    refuse_as("\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\" is not supported");
    refuse_as("\"attention_dropout\":0.1", "attention_dropout: 0.1 is not supported");
    refuse_as("\"pretraining_tp\":2", "pretraining_tp: 2 is not supported");
    refuse_as("\"quantization_config\":{\"quant_method\":\"fp8\"}", "quantization_config: quantized weights");
    refuse_as("\"architectures\":[\"LlamaForSequenceClassification\"]",
              "architectures: \"LlamaForSequenceClassification\" is not supported");
    refuse_as("\"architectures\":\"LlamaForCausalLM\"", "architectures: expected an array");
    refuse_as("\"eos_token_id\":[2,\"x\"]",
              "eos_token_id: expected a token id or an array of them, found a string");
    refuse_as("\"eos_token_id\":[2,-1]", "eos_token_id: expected a token id");
    refuse_as("\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "eos_token_id: more than 16");
    refuse_as("\"bos_token_id\":-5", "bos_token_id: -5 is impossible");
}

static void refusals_of_rope(void **state)
{
    (void)state;
    refuse_as("\"rope_theta\":0", "rope_theta: 0 is impossible");
    refuse_as("\"rope_theta\":-1.0", "rope_theta: -1 is impossible");
    refuse_as("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}",
              "rope_scaling.rope_type: \"yarn\" is not supported");
    refuse_as("\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}",
              "rope_scaling.type: \"dynamic\" is not supported");
    refuse_as("\"rope_parameters\":{\"rope_type\":\"longrope\"}",
              "rope_parameters.rope_type: \"longrope\" is not supported");
    refuse_as("\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"llama3\",\"factor\":4.0}",
              "\"llama3\" contradicts type \"linear\"");
    refuse_as("\"rope_scaling\":{\"factor\":4.0}", "rope_scaling: it has no rope_type");
    refuse_as("\"rope_scaling\":{\"rope_type\":\"linear\"}", "rope_type \"linear\" needs factor");
    refuse_as("\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}",
              "rope_scaling.factor: 0 is impossible");
    refuse_as("\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":\"2\"}",
              "rope_scaling.factor: expected a number, found a string");
    refuse_as("\"rope_scaling\":\"linear\"", "rope_scaling: expected an object or null, found a string");
    refuse_as("\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
              "\"high_freq_factor\":4.0}",
              "rope_parameters: rope_type \"llama3\" needs original_max_position_embeddings");
    refuse_as("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":4.0,"
              "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}",
              "high_freq_factor 4 must be above low_freq_factor 4");
    refuse_as(
        "\"rope_theta\":10000.0,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0}",
        "rope_theta: 10000 contradicts the rope_theta 500000 of rope_parameters");
    refuse_as("\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0},"
              "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0}",
              "rope_parameters: its factor 4 contradicts the 2 of rope_scaling");
    refuse_as("\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0},"
              "\"rope_parameters\":{\"rope_type\":\"default\"}",
              "its rope_type \"default\" contradicts the \"linear\" of rope_scaling");
    refuse_as("\"partial_rotary_factor\":0.5", "partial_rotary_factor: 0.5 is not supported");
}

static void wrong_families(void **state)
{
    (void)state;
    struct model *m;
    struct error err = {0};
    assert_int_equal(create_logged(&m, "{\"model_type\":\"mamba\"}", NULL, &err), -1);
    assert_string_equal(err.what, "model_type: \"mamba\" is not supported");
    assert_int_equal(create_logged(&m, "{}", NULL, &err), -1);
    assert_string_equal(err.what, "model_type: it is missing");
    assert_int_equal(create_logged(&m, "[1]", NULL, &err), -1);
    assert_string_equal(err.what, "a model's configuration is an object, this is an array");
    assert_int_equal(create_logged(&m, "{\"model_type\":7}", NULL, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
}

static void unknown_keys(void **state)
{
    (void)state;
    struct lines lines = {0};
    struct error err = {0};
    struct model *m;
    assert_int_equal(create_logged(&m,
                                   "{" ODD ",\"sliding_window\":4096,\"use_cache\":true,\"rope_scaling\":"
                                   "{\"rope_type\":\"linear\",\"factor\":2.0,\"beta_fast\":32},"
                                   "\"eos_token_id\":[7,999]}",
                                   &lines, &err),
                     0);
    assert_int_equal(lines.count, 3);
    assert_string_equal(lines.text[0],
                        "config.json: rope_scaling.beta_fast is not understood: it has no effect, "
                        "and is kept in what is written");
    assert_string_equal(lines.text[1], "config.json: eos_token_id: 999 is beyond the vocabulary of 331");
    assert_string_equal(lines.text[2],
                        "config.json: sliding_window is not understood: it has no effect, and is "
                        "kept in what is written");
    json_t *written = model_config_json(m, DTYPE_BF16, -1, -1, -1);
    assert_int_equal(json_integer_value(json_object_get(written, "sliding_window")), 4096);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(written, "rope_scaling"), "beta_fast")), 32);
    json_decref(written);
    model_free(m);
}

static void same_config(const struct model_config *a, const struct model_config *b)
{
    struct model_config x = *a, y = *b;
    x.source = y.source = NULL;
    assert_memory_equal(&x, &y, sizeof x);
}

static void config_round_trip(void **state)
{
    (void)state;
    static const char *const configs[] = {
        SMOLLM,
        LLAMA32,
        "{\"model_type\":\"llama\"}",
        "{" ODD "}",
        "{" ODD ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}}",
        "{" ODD ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\",\"factor\":8.0,"
        "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}}",
        "{" ODD ",\"rope_parameters\":{\"rope_theta\":12345.5,\"rope_type\":\"default\"}}",
    };
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct model *a = create(configs[i]);
        json_t *written = model_config_json(a, DTYPE_F32, -1, -1, -1);
        assert_non_null(written);
        assert_string_equal(json_string_value(json_object_get(written, "torch_dtype")), "float32");
        assert_string_equal(json_string_value(json_object_get(written, "dtype")), "float32");
        assert_string_equal(json_string_value(json_array_get(json_object_get(written, "architectures"), 0)),
                            "LlamaForCausalLM");
        /* Rope in both forms, so that either reader gets theta and type. */
        json_t *rope = json_object_get(written, "rope_parameters");
        assert_true(json_number_value(json_object_get(rope, "rope_theta")) == a->config.rope_theta);
        assert_true(json_number_value(json_object_get(written, "rope_theta")) == a->config.rope_theta);
        assert_non_null(json_object_get(rope, "rope_type"));
        if (a->config.rope_type == ROPE_DEFAULT)
            assert_true(json_is_null(json_object_get(written, "rope_scaling")));
        else
            assert_string_equal(
                json_string_value(json_object_get(json_object_get(written, "rope_scaling"), "rope_type")),
                json_string_value(json_object_get(rope, "rope_type")));
        char *text = json_dumps(written, 0);
        struct lines lines = {0};
        struct error err = {0};
        struct model *b;
        assert_int_equal(create_logged(&b, text, &lines, &err), 0);
        assert_int_equal(lines.count, i == 0 ? 1 : 0); /* is_llama_config, kept */
        same_config(&a->config, &b->config);
        assert_memory_equal(a->inv_freq, b->inv_freq, (size_t)a->config.head_dim / 2 * sizeof(float));
        free(text);
        json_decref(written);
        model_free(a);
        model_free(b);
    }
}

static void token_ids_written(void **state)
{
    (void)state;
    struct model *m = create(LLAMA32);
    json_t *written = model_config_json(m, DTYPE_BF16, 5, 128009, 7);
    assert_int_equal(json_integer_value(json_object_get(written, "bos_token_id")), 5);
    assert_int_equal(json_integer_value(json_object_get(written, "pad_token_id")), 7);
    assert_int_equal(json_array_size(json_object_get(written, "eos_token_id")), 3);
    assert_string_equal(json_string_value(json_object_get(written, "torch_dtype")), "bfloat16");
    json_decref(written);
    written = model_config_json(m, DTYPE_F16, -1, 3, -1);
    assert_int_equal(json_integer_value(json_object_get(written, "eos_token_id")), 3);
    assert_int_equal(json_integer_value(json_object_get(written, "bos_token_id")), 128000);
    assert_null(json_object_get(written, "pad_token_id"));
    assert_string_equal(json_string_value(json_object_get(written, "dtype")), "float16");
    json_decref(written);
    model_free(m);
}

static void from_files(void **state)
{
    (void)state;
    char directory[] = "/tmp/tercet-models-XXXXXX", path[64];
    struct model *m;
    struct error err = {0};
    struct log log = {0};
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/config.json", directory);
    assert_int_equal(file_write_all(path, LLAMA32, strlen(LLAMA32), &err), 0);
    assert_int_equal(model_load_config(&m, directory, &log, &err), 0);
    assert_int_equal(m->config.layers, 16);
    model_free(m);
    assert_int_equal(model_load_config(&m, path, &log, &err), 0);
    model_free(m);

    const char *wrong = "{\n  \"model_type\": \"llama\",\n  \"head_dim\": 7\n}\n";
    char want[80];
    assert_int_equal(file_write_all(path, wrong, strlen(wrong), &err), 0);
    assert_int_equal(model_load_config(&m, directory, &log, &err), -1);
    assert_null(m);
    snprintf(want, sizeof want, "%s:3", path);
    assert_string_equal(err.where, want);

    assert_int_equal(unlink(path), 0);
    assert_int_equal(model_load_config(&m, directory, &log, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_int_equal(rmdir(directory), 0);
}

/* One model in the spelling of Transformers 4, of 5, and of both; no key of them is unknown. */
static void both_spellings(void **state)
{
    (void)state;
    static const char *const models[] = {"gqa", "bias_linear", "tied_llama3"};
    static const char *const files[] = {"config.json", "config_v4.json", "config_v5.json"};
    for (size_t i = 0; i < 3; i++) {
        struct model *m[3];
        for (size_t f = 0; f < 3; f++) {
            struct lines lines = {0};
            struct log log = {.line = keep_line, .context = &lines};
            struct error err = {0};
            char path[512];
            snprintf(path, sizeof path, "%s/%s/%s", TEST_GOLDENS, models[i], files[f]);
            if (model_load_config(&m[f], path, &log, &err) != 0)
                fail_msg("%s: %s", err.where, err.what);
            if (lines.count > 0)
                fail_msg("%s", lines.text[0]);
            same_config(&m[0]->config, &m[f]->config);
        }
        assert_int_equal(m[0]->config.rope_type, i);
        for (size_t f = 0; f < 3; f++) {
            assert_memory_equal(m[0]->inv_freq, m[f]->inv_freq,
                                (size_t)m[0]->config.head_dim / 2 * sizeof(float));
            if (f > 0)
                model_free(m[f]);
        }
        model_free(m[0]);
    }
}

static int count_ops(const struct graph *g, enum op op)
{
    int n = 0;
    for (int i = 0; i < g->node_count; i++)
        n += g->nodes[i].op == op;
    return n;
}

static void check_value(const struct graph *g, int value, enum dtype type, int64_t dim0, int64_t dim1)
{
    assert_int_not_equal(value, GRAPH_NONE);
    assert_int_equal(g->values[value].type, type);
    assert_int_equal(g->values[value].ndim, dim1 > 0 ? 2 : 1);
    assert_int_equal(g->values[value].dim[0], dim0);
    if (dim1 > 0)
        assert_int_equal(g->values[value].dim[1], dim1);
}

static void check_gradients(struct graph *g, const struct model_unit *unit)
{
    struct error err = {0};
    if (graph_differentiate(g, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    assert_int_equal(g->param_count, unit->param_count);
    for (int i = 0; i < unit->param_count; i++) {
        const struct model_param *p = &unit->params[i];
        check_value(g, g->param_grad[i], DTYPE_F32, p->dim[0], p->ndim == 2 ? p->dim[1] : 0);
    }
}

static void check_graphs(const char *config, enum model_mode mode, enum dtype type)
{
    struct model *m = create(config);
    const struct model_config *c = &m->config;
    struct error err = {0};
    for (int kind = 0; kind < m->kinds; kind++) {
        struct graph *g;
        if (model_graph(m, kind, mode, type, &g, &err) != 0)
            fail_msg("kind %d: %s: %s", kind, err.where, err.what);
        const struct model_unit *unit = &m->units[kind == 2 ? m->unit_count - 1 : kind];
        assert_int_equal(g->param_count, unit->param_count);
        for (int i = 0; i < g->param_count; i++)
            check_value(g, g->param_value[i], type, unit->params[i].dim[0], unit->params[i].dim[1]);
        if (kind == 2 && mode == MODEL_TRAIN)
            check_value(g, graph_find_output(g, "loss"), DTYPE_F32, GRAPH_TOKENS, 0);
        else if (kind == 2)
            check_value(g, graph_find_output(g, "logits"), DTYPE_F32, GRAPH_PICKED, c->vocab_size);
        else
            check_value(g, graph_find_output(g, "hidden"), type, GRAPH_TOKENS, c->hidden_size);
        if (kind == 0)
            check_value(g, graph_find_output(g, "rope"), DTYPE_F32, GRAPH_TOKENS, c->head_dim);
        if (kind == 1) {
            assert_int_equal(count_ops(g, OP_LINEAR), 7);
            assert_int_equal(count_ops(g, OP_RMSNORM), 2);
            assert_int_equal(count_ops(g, OP_ROPE), 2);
            assert_int_equal(count_ops(g, OP_ATTENTION), 1);
            assert_int_equal(count_ops(g, OP_ADD), 2);
            assert_int_equal(count_ops(g, OP_CACHE_WRITE), mode == MODEL_DECODE ? 2 : 0);
            for (int i = 0; i < g->node_count; i++)
                if (g->nodes[i].op == OP_ATTENTION)
                    assert_true(g->nodes[i].attr.scale == (float)pow((double)c->head_dim, -0.5));
        }
        if (mode == MODEL_TRAIN)
            check_gradients(g, unit);
        if (mode == MODEL_TRAIN && kind > 0)
            check_value(g, graph_find_output(g, "grad:hidden"), type, GRAPH_TOKENS, c->hidden_size);
        graph_free(g);
    }
    model_free(m);
}

static void graphs(void **state)
{
    (void)state;
    static const char *const configs[] = {SMOLLM, "{" ODD "}", "{" ODD ",\"tie_word_embeddings\":true}",
                                          "{\"model_type\":\"llama\",\"num_hidden_layers\":1}"};
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++)
        for (int mode = MODEL_TRAIN; mode <= MODEL_DECODE; mode++)
            for (int bf16 = 0; bf16 < 2; bf16++)
                check_graphs(configs[i], (enum model_mode)mode, bf16 ? DTYPE_BF16 : DTYPE_F32);
}

static void flops(void **state)
{
    (void)state;
    struct model *m = create("{" ODD "}");
    /* By hand: 3 blocks of (60*84*2 + 60*28*2 + 3*60*77) and a head of 60*331 weights, two operations each,
     * three times (forward, and both halves of backward); attention 2 products x 2 operations x 84 x half of
     * 10, three times, 3 blocks. */
    double want = 6.0 * (3 * (60 * 84 * 2 + 60 * 28 * 2 + 3 * 60 * 77) + 60 * 331) + 3.0 * 3 * 2 * 2 * 84 * 5;
    assert_true(model_flops_per_token(m, 10) == want);
    model_free(m);
}

static void initial_values(void **state)
{
    (void)state;
    struct model *m = create("{" ODD ",\"initializer_range\":0.5}");
    const struct model_param *q = &m->units[1].params[0], *k = &m->units[1].params[2];
    enum { N = 84 * 60 };
    float *all = malloc(N * sizeof *all), part[100], other[100];
    assert_non_null(all);
    model_init_values(m, q, 42, 0, N, all);
    model_init_values(m, q, 42, 1001, 100, part);
    assert_memory_equal(all + 1001, part, sizeof part); /* any piece alone gives the same values */
    double sum = 0, squares = 0;
    for (int i = 0; i < N; i++) {
        sum += (double)all[i];
        squares += (double)all[i] * (double)all[i];
    }
    assert_true(fabs(sum / N) < 5 * 0.5 / sqrt(N));
    assert_true(fabs(squares / N - 0.25) < 5 * 0.25 * sqrt(2.0 / N));
    model_init_values(m, k, 42, 1001, 100, other);
    assert_memory_not_equal(part, other, sizeof part); /* another tensor, another stream */
    model_init_values(m, q, 43, 1001, 100, other);
    assert_memory_not_equal(part, other, sizeof part);
    model_init_values(m, &m->units[1].params[1], 42, 0, 84, all);
    for (int i = 0; i < 84; i++)
        assert_true(all[i] == 0);
    model_init_values(m, &m->units[1].params[14], 42, 0, 60, all);
    for (int i = 0; i < 60; i++)
        assert_true(all[i] == 1);
    free(all);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(class_defaults),
        cmocka_unit_test(names_and_shapes),
        cmocka_unit_test(frequencies),
        cmocka_unit_test(frequencies_as_pytorch),
        cmocka_unit_test(refusals),
        cmocka_unit_test(refusals_of_rope),
        cmocka_unit_test(wrong_families),
        cmocka_unit_test(unknown_keys),
        cmocka_unit_test(config_round_trip),
        cmocka_unit_test(token_ids_written),
        cmocka_unit_test(from_files),
        cmocka_unit_test(both_spellings),
        cmocka_unit_test(graphs),
        cmocka_unit_test(flops),
        cmocka_unit_test(initial_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
