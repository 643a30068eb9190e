/* Llama, as Hugging Face's LlamaForCausalLM reads it: grouped-query attention, RoPE, RMSNorm before each
 * half of a block, SwiGLU, optional biases, an output matrix of its own or the embedding's. */
#include "models/family.h"
#include "models/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KIND_EMBEDDING, KIND_BLOCK, KIND_HEAD, KINDS };

/* Wider than any model; products of two of them fit int64_t. */
enum { MAX_LAYERS = 10000, MAX_WIDTH = 1 << 24, MAX_HEADS = 1 << 16, MAX_HEAD_DIM = 1 << 16 };

static int read_sizes(struct config_keys *keys, struct model_config *c, struct error *err)
{
    if (config_keys_int(keys, "vocab_size", 1, INT32_MAX, 32000, &c->vocab_size, err) != 0 ||
        config_keys_int(keys, "hidden_size", 1, MAX_WIDTH, 4096, &c->hidden_size, err) != 0 ||
        config_keys_int(keys, "intermediate_size", 1, MAX_WIDTH, 11008, &c->intermediate_size, err) != 0 ||
        config_keys_int(keys, "num_hidden_layers", 1, MAX_LAYERS, 32, &c->layers, err) != 0 ||
        config_keys_int(keys, "num_attention_heads", 1, MAX_HEADS, 32, &c->heads, err) != 0 ||
        config_keys_int_or_null(keys, "num_key_value_heads", 1, MAX_HEADS, c->heads, &c->kv_heads, err) !=
            0 ||
        config_keys_int_or_null(keys, "head_dim", 1, MAX_HEAD_DIM, 0, &c->head_dim, err) != 0 ||
        config_keys_int(keys, "max_position_embeddings", 1, INT32_MAX, 2048, &c->max_positions, err) != 0)
        return -1;
    if (c->heads % c->kv_heads != 0)
        return config_keys_error(keys, "num_key_value_heads", err, "take a divisor of num_attention_heads",
                                 "%d key-value heads do not divide %d attention heads", (int)c->kv_heads,
                                 (int)c->heads);
    bool explicit_dim = c->head_dim > 0;
    if (!explicit_dim) {
        if (c->hidden_size % c->heads != 0)
            return config_keys_error(keys, "num_attention_heads", err, "give head_dim, or change one of them",
                                     "%d heads do not divide the hidden_size %d", (int)c->heads,
                                     (int)c->hidden_size);
        c->head_dim = c->hidden_size / c->heads;
    }
    if (c->head_dim % 2 != 0)
        return config_keys_error(
            keys, explicit_dim ? "head_dim" : "num_attention_heads", err, "give an even head_dim",
            "heads of %d numbers cannot be rotated in pairs, the size must be even", (int)c->head_dim);
    return 0;
}

/* Keys with one value that is supported: the class default. */
static int refuse_variants(struct config_keys *keys, struct error *err)
{
    const char *act;
    double dropout;
    int64_t tp;
    if (config_keys_string(keys, "hidden_act", "silu", &act, err) != 0 ||
        config_keys_double(keys, "attention_dropout", true, 0, &dropout, err) != 0 ||
        config_keys_int(keys, "pretraining_tp", 1, INT32_MAX, 1, &tp, err) != 0)
        return -1;
    if (strcmp(act, "silu") != 0)
        return config_keys_error(keys, "hidden_act", err, "take a Llama model",
                                 "\"%.40s\" is not supported, only \"silu\"", act);
    if (dropout != 0)
        return config_keys_error(keys, "attention_dropout", err, "set it to 0.0",
                                 "%g is not supported, only 0", dropout);
    if (tp != 1)
        return config_keys_error(keys, "pretraining_tp", err, "set it to 1: the weights are the same",
                                 "%d is not supported, only 1", (int)tp);
    return 0;
}

static int llama_read(struct config_keys *keys, struct model_config *c, struct error *err)
{
    if (read_sizes(keys, c, err) != 0 || refuse_variants(keys, err) != 0 ||
        config_keys_double(keys, "rms_norm_eps", true, 1e-6, &c->rms_norm_eps, err) != 0 ||
        config_keys_double(keys, "initializer_range", true, 0.02, &c->initializer_range, err) != 0 ||
        config_keys_bool(keys, "tie_word_embeddings", false, &c->tied, err) != 0 ||
        config_keys_bool(keys, "attention_bias", false, &c->attention_bias, err) != 0 ||
        config_keys_bool(keys, "mlp_bias", false, &c->mlp_bias, err) != 0)
        return -1;
    return rope_read(keys, c, err);
}

static int llama_write(const struct model_config *c, json_t *object)
{
    const struct {
        const char *key;
        json_t *value;
    } members[] = {
        {"vocab_size", json_integer(c->vocab_size)},
        {"hidden_size", json_integer(c->hidden_size)},
        {"intermediate_size", json_integer(c->intermediate_size)},
        {"num_hidden_layers", json_integer(c->layers)},
        {"num_attention_heads", json_integer(c->heads)},
        {"num_key_value_heads", json_integer(c->kv_heads)},
        {"head_dim", json_integer(c->head_dim)},
        {"hidden_act", json_string("silu")},
        {"max_position_embeddings", json_integer(c->max_positions)},
        {"initializer_range", json_real(c->initializer_range)},
        {"rms_norm_eps", json_real(c->rms_norm_eps)},
        {"tie_word_embeddings", json_boolean(c->tied)},
        {"attention_bias", json_boolean(c->attention_bias)},
        {"mlp_bias", json_boolean(c->mlp_bias)},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const json_t *old = json_object_get(object, members[i].key);
        if (old == NULL || json_is_null(old))
            failed |= json_object_set(object, members[i].key, members[i].value);
        json_decref(members[i].value);
    }
    return failed != 0 || rope_write(c, object) != 0 ? -1 : 0;
}

static int describe_block(const struct model_config *c, int number, struct model_unit *unit)
{
    char prefix[48], name[32];
    int64_t d = c->hidden_size, f = c->intermediate_size;
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct {
        const char *name;
        int64_t out, in;
        bool bias;
    } linear[] = {
        {"self_attn.q_proj", q, d, c->attention_bias},  {"self_attn.k_proj", kv, d, c->attention_bias},
        {"self_attn.v_proj", kv, d, c->attention_bias}, {"self_attn.o_proj", d, q, c->attention_bias},
        {"mlp.gate_proj", f, d, c->mlp_bias},           {"mlp.up_proj", f, d, c->mlp_bias},
        {"mlp.down_proj", d, f, c->mlp_bias},
    };
    snprintf(prefix, sizeof prefix, "model.layers.%d.", number - 1);
    for (size_t i = 0; i < sizeof linear / sizeof linear[0]; i++) {
        snprintf(name, sizeof name, "%s.weight", linear[i].name);
        if (model_unit_add(unit, number, prefix, name, linear[i].out, linear[i].in, MODEL_INIT_NORMAL,
                           true) != 0)
            return -1;
        snprintf(name, sizeof name, "%s.bias", linear[i].name);
        if (linear[i].bias &&
            model_unit_add(unit, number, prefix, name, linear[i].out, 0, MODEL_INIT_ZEROS, false) != 0)
            return -1;
    }
    if (model_unit_add(unit, number, prefix, "input_layernorm.weight", d, 0, MODEL_INIT_ONES, false) != 0)
        return -1;
    return model_unit_add(unit, number, prefix, "post_attention_layernorm.weight", d, 0, MODEL_INIT_ONES,
                          false);
}

static int llama_describe(const struct model_config *c, int number, struct model_unit *unit)
{
    if (number == 0) {
        snprintf(unit->name, sizeof unit->name, "embedding");
        unit->kind = KIND_EMBEDDING;
        return model_unit_add(unit, number, "model.", "embed_tokens.weight", c->vocab_size, c->hidden_size,
                              MODEL_INIT_NORMAL, false);
    }
    if (number <= c->layers) {
        snprintf(unit->name, sizeof unit->name, "block %d", number - 1);
        unit->kind = KIND_BLOCK;
        return describe_block(c, number, unit);
    }
    snprintf(unit->name, sizeof unit->name, "head");
    unit->kind = KIND_HEAD;
    if (model_unit_add(unit, number, "model.", "norm.weight", c->hidden_size, 0, MODEL_INIT_ONES, false) != 0)
        return -1;
    /* A tied head uses the embedding, which model.c adds here. */
    return c->tied ? 0
                   : model_unit_add(unit, number, "", "lm_head.weight", c->vocab_size, c->hidden_size,
                                    MODEL_INIT_NORMAL, true);
}

/* What the parts of a graph share. Parameters are taken in the order in which describe lists them. */
struct builder {
    struct graph *g;
    const struct model_config *c;
    const struct model_unit *unit;
    enum model_mode mode;
    enum dtype type;
    int next;
};

static int parameter(struct builder *b)
{
    const struct model_param *p = &b->unit->params[b->next];
    return graph_param(b->g, b->next++, b->type, p->ndim, p->dim, b->mode == MODEL_TRAIN);
}

static int input(struct builder *b, const char *name, enum dtype type, int64_t rows, int64_t columns,
                 bool grad)
{
    return graph_input(b->g, name, type, columns > 0 ? 2 : 1, (int64_t[]){rows, columns}, grad);
}

static int hidden_input(struct builder *b)
{
    return input(b, "hidden", b->type, GRAPH_TOKENS, b->c->hidden_size, b->mode == MODEL_TRAIN);
}

static void build_embedding(struct builder *b, const struct model *m)
{
    int ids = input(b, "ids", DTYPE_I32, GRAPH_TOKENS, 0, false);
    int positions = input(b, "positions", DTYPE_I32, GRAPH_TOKENS, 0, false);
    int inv_freq = input(b, "inv_freq", DTYPE_F32, m->config.head_dim / 2, 0, false);
    graph_output(b->g, "hidden", graph_embed(b->g, ids, parameter(b)));
    graph_output(b->g, "rope", graph_rope_table(b->g, positions, inv_freq));
}

struct projection {
    int weight, bias;
};

static struct projection projection(struct builder *b, bool bias)
{
    struct projection p = {.weight = parameter(b), .bias = GRAPH_NONE};
    if (bias)
        p.bias = parameter(b);
    return p;
}

static int apply(struct builder *b, struct projection p, int x)
{
    return graph_linear(b->g, x, p.weight, p.bias);
}

static void build_block(struct builder *b)
{
    const struct model_config *c = b->c;
    struct graph *g = b->g;
    float eps = (float)c->rms_norm_eps;
    int x = hidden_input(b);
    int rope = input(b, "rope", DTYPE_F32, GRAPH_TOKENS, c->head_dim, false);
    int pieces = input(b, "pieces", DTYPE_I32, GRAPH_PIECES, 4, false);

    struct projection wq = projection(b, c->attention_bias), wk = projection(b, c->attention_bias);
    struct projection wv = projection(b, c->attention_bias), wo = projection(b, c->attention_bias);
    struct projection gate = projection(b, c->mlp_bias), up = projection(b, c->mlp_bias);
    struct projection down = projection(b, c->mlp_bias);
    int input_norm = parameter(b), attention_norm = parameter(b);

    int n = graph_rmsnorm(g, x, input_norm, eps);
    int q = graph_rope(g, apply(b, wq, n), rope, c->heads);
    int k = graph_rope(g, apply(b, wk, n), rope, c->kv_heads);
    int v = apply(b, wv, n);
    if (b->mode == MODEL_DECODE) {
        int64_t width = c->kv_heads * c->head_dim;
        int slots = input(b, "slots", DTYPE_I32, GRAPH_TOKENS, 0, false);
        k = graph_cache_write(g, k, slots, input(b, "cache_k", b->type, GRAPH_CACHE, width, false));
        v = graph_cache_write(g, v, slots, input(b, "cache_v", b->type, GRAPH_CACHE, width, false));
    }
    int o = graph_attention(g, q, k, v, pieces, c->heads, c->kv_heads, (float)pow((double)c->head_dim, -0.5));
    x = graph_add(g, x, apply(b, wo, o));

    n = graph_rmsnorm(g, x, attention_norm, eps);
    x = graph_add(g, x, apply(b, down, graph_swiglu(g, apply(b, gate, n), apply(b, up, n))));
    graph_output(g, "hidden", x);
}

static void build_head(struct builder *b)
{
    int x = hidden_input(b);
    int norm = parameter(b), matrix = parameter(b);
    float eps = (float)b->c->rms_norm_eps;
    if (b->mode == MODEL_TRAIN) {
        int targets = input(b, "targets", DTYPE_I32, GRAPH_TOKENS, 0, false);
        graph_output(b->g, "loss", graph_loss(b->g, graph_rmsnorm(b->g, x, norm, eps), matrix, targets));
        return;
    }
    int rows = graph_gather_rows(b->g, x, input(b, "picked", DTYPE_I32, GRAPH_PICKED, 0, false));
    graph_output(b->g, "logits", graph_linear_f32(b->g, graph_rmsnorm(b->g, rows, norm, eps), matrix));
}

static void llama_build(const struct model *m, int kind, enum model_mode mode, enum dtype type,
                        struct graph *g)
{
    /* Units of one kind have one graph: the first of the kind stands for all. */
    int number = kind == KIND_HEAD ? m->unit_count - 1 : kind;
    struct builder b = {.g = g, .c = &m->config, .unit = &m->units[number], .mode = mode, .type = type};
    if (kind == KIND_EMBEDDING)
        build_embedding(&b, m);
    else if (kind == KIND_BLOCK)
        build_block(&b);
    else
        build_head(&b);
}

static double llama_flops_per_token(const struct model_config *c, double context)
{
    double d = (double)c->hidden_size, f = (double)c->intermediate_size;
    double q = (double)(c->heads * c->head_dim), kv = (double)(c->kv_heads * c->head_dim);
    double layers = (double)c->layers;
    double weights = layers * (2 * d * q + 2 * d * kv + 3 * d * f) + d * (double)c->vocab_size;
    /* Forward, two products of q by half the context on average; backward twice that, as for weights. */
    return 6 * weights + 6 * layers * q * context;
}

const struct model_family model_family_llama = {
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .read = llama_read,
    .write = llama_write,
    .kinds = KINDS,
    .describe = llama_describe,
    .build = llama_build,
    .flops_per_token = llama_flops_per_token,
};
