#include "models/rope.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const char *const rope_names[] = {"default", "linear", "llama3"};

/* What one of the two objects says; `has` is false for what it leaves open. */
struct rope_part {
    bool has_type, has_theta, has_factor, has_low, has_high, has_original;
    int type;
    double theta, factor, low, high;
    int64_t original;
};

static int read_type(struct config_keys *keys, struct rope_part *part, struct error *err)
{
    const char *old, *name;
    if (config_keys_string(keys, "type", NULL, &old, err) != 0 ||
        config_keys_string(keys, "rope_type", old, &name, err) != 0)
        return -1;
    if (name == NULL)
        return 0;
    if (old != NULL && strcmp(old, name) != 0)
        return config_keys_error(keys, "rope_type", err, "keep one of the two keys",
                                 "\"%s\" contradicts type \"%s\"", name, old);
    for (int i = 0; i < (int)(sizeof rope_names / sizeof rope_names[0]); i++) {
        if (strcmp(name, rope_names[i]) == 0) {
            part->has_type = true;
            part->type = i;
            return 0;
        }
    }
    return config_keys_error(keys, json_object_get(keys->object, "rope_type") ? "rope_type" : "type", err,
                             "the types known here are default, linear and llama3", "\"%s\" is not supported",
                             name);
}

static int read_double(struct config_keys *keys, const char *key, bool *has, double *out, struct error *err)
{
    *has = config_keys_value(keys, key) != NULL;
    return *has ? config_keys_double(keys, key, false, 0, out, err) : 0;
}

static int refuse_partial(struct config_keys *keys, struct error *err)
{
    double partial;
    bool has;
    if (read_double(keys, "partial_rotary_factor", &has, &partial, err) != 0)
        return -1;
    if (has && partial != 1)
        return config_keys_error(keys, "partial_rotary_factor", err, NULL,
                                 "%g is not supported: a Llama turns whole heads", partial);
    return 0;
}

static int read_part(struct config_keys *outer, const char *name, struct rope_part *part, struct error *err)
{
    const json_t *object = config_keys_value(outer, name);
    *part = (struct rope_part){0};
    if (object == NULL)
        return 0;
    if (!json_is_object(object))
        return config_keys_error(outer, name, err, NULL, "expected an object or null, found %s",
                                 json_kind_name(object));
    struct config_keys keys;
    config_keys_start_inner(&keys, outer, object, name);
    if (read_type(&keys, part, err) != 0 ||
        read_double(&keys, "rope_theta", &part->has_theta, &part->theta, err) != 0 ||
        read_double(&keys, "factor", &part->has_factor, &part->factor, err) != 0 ||
        read_double(&keys, "low_freq_factor", &part->has_low, &part->low, err) != 0 ||
        read_double(&keys, "high_freq_factor", &part->has_high, &part->high, err) != 0 ||
        refuse_partial(&keys, err) != 0)
        return -1;
    part->has_original = config_keys_value(&keys, "original_max_position_embeddings") != NULL;
    if (part->has_original && config_keys_int(&keys, "original_max_position_embeddings", 1, INT32_MAX, 0,
                                              &part->original, err) != 0)
        return -1;
    /* Without a type the other numbers would have no meaning; theta alone needs none. */
    if (!part->has_type && (part->has_factor || part->has_low || part->has_high || part->has_original))
        return config_keys_error(outer, name, err, "add \"rope_type\"", "it has no rope_type");
    config_keys_report(&keys);
    return 0;
}

/* Joins what both objects say: `a` is rope_scaling, `b` is rope_parameters. */
static int merge_double(struct config_keys *keys, const char *key, bool has_a, double a, bool has_b, double b,
                        bool *has, double *out, struct error *err)
{
    if (has_a && has_b && a != b)
        return config_keys_error(keys, "rope_parameters", err, "make the two agree, or remove one",
                                 "its %s %g contradicts the %g of rope_scaling", key, b, a);
    *has = has_a || has_b;
    *out = has_b ? b : a;
    return 0;
}

static int merge(struct config_keys *keys, const struct rope_part *a, const struct rope_part *b,
                 struct rope_part *out, struct error *err)
{
    double original = 0;
    if (a->has_type && b->has_type && a->type != b->type)
        return config_keys_error(keys, "rope_parameters", err, "make the two agree, or remove one",
                                 "its rope_type \"%s\" contradicts the \"%s\" of rope_scaling",
                                 rope_names[b->type], rope_names[a->type]);
    out->has_type = a->has_type || b->has_type;
    out->type = b->has_type ? b->type : a->type;
    if (merge_double(keys, "rope_theta", a->has_theta, a->theta, b->has_theta, b->theta, &out->has_theta,
                     &out->theta, err) != 0 ||
        merge_double(keys, "factor", a->has_factor, a->factor, b->has_factor, b->factor, &out->has_factor,
                     &out->factor, err) != 0 ||
        merge_double(keys, "low_freq_factor", a->has_low, a->low, b->has_low, b->low, &out->has_low,
                     &out->low, err) != 0 ||
        merge_double(keys, "high_freq_factor", a->has_high, a->high, b->has_high, b->high, &out->has_high,
                     &out->high, err) != 0 ||
        merge_double(keys, "original_max_position_embeddings", a->has_original, (double)a->original,
                     b->has_original, (double)b->original, &out->has_original, &original, err) != 0)
        return -1;
    out->original = (int64_t)original;
    return 0;
}

/* That the numbers a type needs are there, and that they make sense together. */
static int check(struct config_keys *keys, const struct rope_part *rope, struct error *err)
{
    const char *object = config_keys_value(keys, "rope_scaling") != NULL ? "rope_scaling" : "rope_parameters";
    const char *missing = NULL;
    if (rope->type != ROPE_DEFAULT && !rope->has_factor)
        missing = "factor";
    else if (rope->type == ROPE_LLAMA3 && !rope->has_low)
        missing = "low_freq_factor";
    else if (rope->type == ROPE_LLAMA3 && !rope->has_high)
        missing = "high_freq_factor";
    else if (rope->type == ROPE_LLAMA3 && !rope->has_original)
        missing = "original_max_position_embeddings";
    if (missing != NULL)
        return config_keys_error(keys, object, err, "add it", "rope_type \"%s\" needs %s",
                                 rope_names[rope->type], missing);
    if (rope->type == ROPE_LLAMA3 && rope->high <= rope->low)
        return config_keys_error(keys, object, err, NULL,
                                 "high_freq_factor %g must be above low_freq_factor %g", rope->high,
                                 rope->low);
    return 0;
}

int rope_read(struct config_keys *keys, struct model_config *config, struct error *err)
{
    struct rope_part scaling, parameters, rope = {0};
    bool has_theta;
    double theta = 0;
    if (read_double(keys, "rope_theta", &has_theta, &theta, err) != 0 || refuse_partial(keys, err) != 0 ||
        read_part(keys, "rope_scaling", &scaling, err) != 0 ||
        read_part(keys, "rope_parameters", &parameters, err) != 0 ||
        merge(keys, &scaling, &parameters, &rope, err) != 0 || check(keys, &rope, err) != 0)
        return -1;
    if (has_theta && rope.has_theta && theta != rope.theta)
        return config_keys_error(keys, "rope_theta", err, "make the two agree, or remove one",
                                 "%g contradicts the rope_theta %g of %s", theta, rope.theta,
                                 parameters.has_theta ? "rope_parameters" : "rope_scaling");
    config->rope_theta = has_theta ? theta : rope.has_theta ? rope.theta : 10000;
    switch (rope.type) {
    case 1:
        config->rope_type = ROPE_LINEAR;
        break;
    case 2:
        config->rope_type = ROPE_LLAMA3;
        break;
    default:
        config->rope_type = ROPE_DEFAULT;
    }
    config->rope_factor = rope.type != ROPE_DEFAULT ? rope.factor : 1;
    config->rope_low_freq = rope.low;
    config->rope_high_freq = rope.high;
    config->rope_original_positions = rope.original;
    return 0;
}

/* Sets a member unless the object has it already: what was read stays as it was written. */
static int set_missing(json_t *object, const char *key, json_t *value)
{
    const json_t *old = json_object_get(object, key);
    if (old != NULL && !json_is_null(old)) {
        json_decref(value);
        return 0;
    }
    return json_object_set_new(object, key, value);
}

static int write_part(const struct model_config *config, json_t *object)
{
    int failed = set_missing(object, "rope_type", json_string(rope_names[config->rope_type]));
    if (config->rope_type != ROPE_DEFAULT)
        failed |= set_missing(object, "factor", json_real(config->rope_factor));
    if (config->rope_type == ROPE_LLAMA3) {
        failed |= set_missing(object, "low_freq_factor", json_real(config->rope_low_freq));
        failed |= set_missing(object, "high_freq_factor", json_real(config->rope_high_freq));
        failed |= set_missing(object, "original_max_position_embeddings",
                              json_integer(config->rope_original_positions));
    }
    return failed;
}

/* The object of that name, made when it is absent or null. */
static json_t *object_of(json_t *outer, const char *key)
{
    json_t *object = json_object_get(outer, key);
    if (json_is_object(object))
        return object;
    object = json_object();
    return object != NULL && json_object_set_new(outer, key, object) == 0 ? object : NULL;
}

int rope_write(const struct model_config *config, json_t *object)
{
    if (set_missing(object, "rope_theta", json_real(config->rope_theta)) != 0)
        return -1;
    if (config->rope_type == ROPE_DEFAULT && !json_is_object(json_object_get(object, "rope_scaling"))) {
        if (json_object_set_new(object, "rope_scaling", json_null()) != 0)
            return -1;
    } else {
        json_t *scaling = object_of(object, "rope_scaling");
        if (scaling == NULL || write_part(config, scaling) != 0)
            return -1;
    }
    json_t *parameters = object_of(object, "rope_parameters");
    if (parameters == NULL || write_part(config, parameters) != 0)
        return -1;
    return set_missing(parameters, "rope_theta", json_real(config->rope_theta));
}

/* transformers' _compute_llama3_parameters, operation by operation. PyTorch computes number / tensor as
 * number * (1 / tensor), and compares with a number rounded to fp32. */
static float llama3_frequency(const struct model_config *c, float inv)
{
    double original = (double)c->rope_original_positions;
    float factor = (float)c->rope_factor;
    float low_wavelength = (float)(original / c->rope_low_freq);
    float high_wavelength = (float)(original / c->rope_high_freq);
    float wavelength = (1.0f / inv) * (float)(2 * M_PI);
    if (wavelength < high_wavelength)
        return inv;
    if (wavelength > low_wavelength)
        return inv / factor;
    float smooth = (1.0f / wavelength) * (float)original - (float)c->rope_low_freq;
    smooth /= (float)(c->rope_high_freq - c->rope_low_freq);
    float scaled = (1.0f - smooth) * inv / factor;
    return scaled + smooth * inv;
}

void rope_frequencies(const struct model_config *config, float *inv_freq)
{
    float theta = (float)config->rope_theta, dim = (float)config->head_dim;
    assert(config->head_dim % 2 == 0);
    for (int64_t i = 0; i < config->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / dim;
        /* pow in double, rounded once, is powf rounded correctly, whatever the C library. */
        float inv = 1.0f / (float)pow((double)theta, (double)exponent);
        if (config->rope_type == ROPE_LINEAR)
            inv /= (float)config->rope_factor;
        else if (config->rope_type == ROPE_LLAMA3)
            inv = llama3_frequency(config, inv);
        inv_freq[i] = inv;
    }
}
