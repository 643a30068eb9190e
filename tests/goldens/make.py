#!/usr/bin/env python3
"""Writes the expected values of the parity tests: what PyTorch computes for three small Llama models.

    python tests/goldens/make.py            writes tests/goldens/<case>/, versions.json and report.txt
    python tests/goldens/make.py --check    writes nothing; fails if the files differ from what it would write

A maintainer's tool: tests read the files, never this program. It needs torch (the CPU build will do),
transformers, numpy and safetensors; versions.json names the versions that the committed files come from.
README.md beside it describes the files, and how the tests' bounds follow from the errors recorded in them.

The model is Transformers' own LlamaForCausalLM, run three ways from the same fp32 weights:

  float64   the truth. Transformers computes norms, rotary angles and softmax in fp32 whatever the model's
            type; exact_model() replaces these three by the same formulas in float64.
  float32   as Transformers runs it, once as it is and ORDERS - 1 more times with hidden channels, heads, MLP
            channels, vocabulary and documents shuffled: the same function, summed in other orders. The largest
            distance from the truth is what fp32 arithmetic costs, with no luck of one order in it.
  bfloat16  as Transformers runs it, also in all orders.
"""

import argparse
import copy
import json
import math
import os
import platform
import sys
import tempfile
import types

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import safetensors
import torch
import transformers
from safetensors.numpy import load_file, save_file
from torch.nn.functional import cross_entropy, softmax
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

HERE = os.path.dirname(os.path.abspath(__file__))
ORDERS = 48
ROW = 37
STEPS = 10
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}

# The tests allow MARGIN times the recorded error, and with these seeds that stays below LIMIT for every value,
# gradient and weight. Seeds matter for the ten steps only: see README.md, "An ill-conditioned place".
MARGIN = 4.0
LIMIT = 1e-5

# Each document piece of the two rows: row, length, whether its document goes on in the next piece, and how many
# leading positions have no target (as where only an answer is learnt). The fourth piece's document goes on in
# the next row; the last one's goes on beyond the batch, so its last position has a target that is no input.
PIECES = [(0, 5, False, 0), (0, 1, False, 0), (0, 20, False, 0), (0, 11, True, 0),
          (1, 7, False, 0), (1, 1, False, 0), (1, 23, False, 4), (1, 6, True, 0)]

CASES = {
    # Grouped queries with one key head, untied head, everything odd; head_dim left to be derived.
    "gqa": {
        "seed": 9,
        "vocab_size": 331, "hidden_size": 60, "intermediate_size": 100, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 1, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64, "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False,
        "rope": {"rope_type": "default", "rope_theta": 10000.0},
    },
    # Tied embeddings; head_dim is not hidden_size / heads; of the eight wavelengths 6.3 … 925, two are below
    # 64/4 and stay, two lie between 64/4 and 64/1 and are blended, four are longer and divided by the factor.
    "tied_llama3": {
        "seed": 9,
        "vocab_size": 193, "hidden_size": 48, "intermediate_size": 76, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "tie_word_embeddings": True,
        "attention_bias": False, "mlp_bias": False,
        "rope": {"rope_type": "llama3", "rope_theta": 300.0, "factor": 8.0, "low_freq_factor": 1.0,
                 "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    },
    # All seven biases, angles divided by four; num_key_value_heads left to default to the heads.
    "bias_linear": {
        "seed": 417,
        "vocab_size": 131, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 2,
        "num_attention_heads": 5, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256, "tie_word_embeddings": False,
        "attention_bias": True, "mlp_bias": True,
        "rope": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    },
}


# Inputs: configuration, weights, batch


def config_forms(case):
    """The three spellings of one configuration: both forms of the rotary keys, Transformers 4's, and 5's."""
    common = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
              "attention_dropout": 0.0, "initializer_range": 0.02, "pretraining_tp": 1, "use_cache": True,
              "bos_token_id": 1, "eos_token_id": 2}
    common.update((key, value) for key, value in case.items() if key not in ("rope", "seed"))
    rope = case["rope"]
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    v4 = {"rope_theta": rope["rope_theta"],
          "rope_scaling": None if rope["rope_type"] == "default" else scaling, "torch_dtype": "float32"}
    v5 = {"rope_parameters": rope, "dtype": "float32"}
    return {"config.json": common | v4 | v5, "config_v4.json": common | v4, "config_v5.json": common | v5}


def make_config(case):
    return LlamaConfig(**{key: copy.deepcopy(value) for key, value in config_forms(case)["config_v5.json"].items()
                          if key not in ("model_type", "dtype")})


def draw_weights(case, generator):
    """name -> fp32 array, in the model's order; a tied head is not among them."""
    weights = {}
    for name, parameter in LlamaForCausalLM(make_config(case)).named_parameters():
        noise = generator.standard_normal(tuple(parameter.shape))
        if "norm" in name:
            value = 1.0 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.2 * noise
        else:
            value = 0.08 * noise
        weights[name] = value.astype(np.float32)
    return weights


def draw_batch(vocab, generator):
    """Two rows of 37 tokens laid end to end. ids, targets (-1: none), positions [T]; pieces [P, 4]."""
    ids, targets, positions, pieces = [], [], [], []
    follow = generator.integers(0, vocab, len(PIECES))
    goes_on = None
    for (_, length, continues, masked), beyond in zip(PIECES, follow):
        tokens = generator.integers(0, vocab, length)
        if goes_on is not None:
            tokens[0] = goes_on
        goes_on = int(beyond) if continues else None
        wanted = list(tokens[1:]) + [-1 if goes_on is None else goes_on]
        wanted[:masked] = [-1] * masked
        pieces.append([len(ids), length, len(ids), length])
        ids.extend(tokens)
        targets.extend(wanted)
        positions.extend(range(length))
    # The first and last id of the vocabulary, and one id several times.
    ids[0], ids[8], ids[20], ids[50] = 0, vocab - 1, ids[30], ids[30]
    targets[7], targets[19], targets[49] = ids[8], ids[20], ids[50]
    batch = {"ids": ids, "targets": targets, "positions": positions, "pieces": pieces}
    return {name: np.array(value, np.int32) for name, value in batch.items()}


def check_batch(batch, vocab):
    """Every piece within its row; a target is the next token of its piece, except where the piece ends."""
    assert len(batch["ids"]) == 2 * ROW and batch["ids"].min() == 0 and batch["ids"].max() == vocab - 1
    for (row, length, continues, masked), (start, count, _, _) in zip(PIECES, batch["pieces"]):
        assert count == length and start // ROW == row == (start + length - 1) // ROW
        span = slice(start, start + length)
        assert (batch["positions"][span] == np.arange(length)).all()
        assert (batch["targets"][start + masked:start + length - 1] == batch["ids"][span][masked + 1:]).all()
        assert (batch["targets"][start:start + masked] == -1).all()
        assert (batch["targets"][start + length - 1] >= 0) == continues
    fourth = batch["pieces"][3]
    assert batch["targets"][fourth[0] + fourth[1] - 1] == batch["ids"][batch["pieces"][4][0]]


# The same model and batch in another order of summation


class Order:
    """Shuffles channels, heads, vocabulary and documents; number 0 leaves everything where it is."""

    def __init__(self, case, number):
        generator = np.random.default_rng([case["seed"], number])
        shuffled = generator.permutation if number else np.arange
        heads = case["num_attention_heads"]
        groups = case.get("num_key_value_heads", heads)
        head_dim = case.get("head_dim", case["hidden_size"] // heads)
        group_order = shuffled(groups)
        head_order = np.concatenate([g * (heads // groups) + shuffled(heads // groups) for g in group_order])
        self.hidden = shuffled(case["hidden_size"])
        self.mlp = shuffled(case["intermediate_size"])
        self.vocab = shuffled(case["vocab_size"])
        self.query = (head_order[:, None] * head_dim + np.arange(head_dim)).ravel()
        self.key = (group_order[:, None] * head_dim + np.arange(head_dim)).ravel()
        rows = [[p for p in range(len(PIECES)) if PIECES[p][0] == row] for row in shuffled(2)]
        self.pieces = [row[i] for row in rows for i in shuffled(len(row))]

    def axes(self, name):
        """The order of each axis of a parameter."""
        module, kind = name.split(".")[-2:]
        if module in ("embed_tokens", "lm_head"):
            return (self.vocab, self.hidden)
        if "norm" in module:
            return (self.hidden,)
        out, into = {"q_proj": (self.query, self.hidden), "k_proj": (self.key, self.hidden),
                     "v_proj": (self.key, self.hidden), "o_proj": (self.hidden, self.query),
                     "gate_proj": (self.mlp, self.hidden), "up_proj": (self.mlp, self.hidden),
                     "down_proj": (self.hidden, self.mlp)}[module]
        return (out,) if kind == "bias" else (out, into)

    def apply(self, name, array):
        return array[np.ix_(*self.axes(name))]

    def undo(self, name, array):
        return array[np.ix_(*(np.argsort(axis) for axis in self.axes(name)))]

    def apply_batch(self, batch):
        place = np.argsort(self.vocab)
        spans = [batch["pieces"][p][:2] for p in self.pieces]
        self.tokens = np.concatenate([np.arange(start, start + length) for start, length in spans])
        starts = np.cumsum([0] + [length for _, length in spans])[:-1]
        targets = batch["targets"][self.tokens]
        return {"ids": place[batch["ids"][self.tokens]], "targets": np.where(targets < 0, -1, place[targets]),
                "positions": batch["positions"][self.tokens],
                "pieces": np.array([[s, n, s, n] for s, (_, n) in zip(starts, spans)])}

    def undo_logits(self, logits):
        return logits[np.ix_(np.argsort(self.tokens), np.argsort(self.vocab))]


# The model, three ways


def exact_frequencies(config):
    """The rotary frequencies in float64, written from the formulas of the three kinds."""
    rope = config.rope_parameters
    frequency = 1.0 / rope["rope_theta"] ** (torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    if rope["rope_type"] == "linear":
        return frequency / rope["factor"]
    if rope["rope_type"] == "llama3":
        length, low, high = (rope[key] for key in ("original_max_position_embeddings", "low_freq_factor",
                                                   "high_freq_factor"))
        wavelength = 2 * math.pi / frequency
        blend = ((length / wavelength - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - blend) * frequency / rope["factor"] + blend * frequency
    return frequency


def exact_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def exact_attention(module, query, key, value, attention_mask, scaling, **_):
    key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
    weights = softmax(query @ key.transpose(2, 3) * scaling + attention_mask, dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("exact", exact_attention)


def exact_model(model):
    """Turns the model into float64 throughout."""
    model.double()
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.forward = types.MethodType(exact_norm, module)
    frequencies = exact_frequencies(model.config)
    fp32 = model.model.rotary_emb.original_inv_freq.double()
    assert ((frequencies - fp32).abs() <= 1e-6 * frequencies).all(), "not Transformers' frequencies"

    def rotary(self, x, position_ids):
        angles = position_ids[..., None].double() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    model.model.rotary_emb.forward = types.MethodType(rotary, model.model.rotary_emb)
    model.config._attn_implementation = "exact"
    return model


def build_model(case, weights, dtype):
    model = LlamaForCausalLM._from_config(make_config(case), attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights[name]))
    if dtype == torch.float64:
        return exact_model(model)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model.to(dtype)
    model.model.rotary_emb.inv_freq = frequencies  # as from_pretrained leaves it: fp32 in a bf16 model too
    return model


def model_inputs(batch, dtype):
    """[2, 37] ids and positions, and the mask [2, 1, 37, 37]: 0 within a piece up to the diagonal, else -inf."""
    mask = torch.full((2, 1, ROW, ROW), -math.inf, dtype=dtype)
    for start, length, _, _ in batch["pieces"]:
        row, first = divmod(int(start), ROW)
        span = slice(first, first + int(length))
        mask[row, 0, span, span] = torch.triu(torch.full((length, length), -math.inf, dtype=dtype), 1)
    ids, positions = (torch.from_numpy(batch[name].astype(np.int64)).view(2, ROW) for name in ("ids", "positions"))
    return {"input_ids": ids, "position_ids": positions, "attention_mask": mask, "use_cache": False}


def forward_loss(model, inputs, targets):
    """Logits [T, V] as the model gives them, and the sum of the losses, in fp32 at least."""
    logits = model(**inputs).logits.flatten(0, 1)
    loss_type = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits, cross_entropy(logits.to(loss_type), targets, ignore_index=-1, reduction="sum")


def as_numpy(tensor):
    return tensor.detach().double().numpy().copy()


def decays(name, parameter):
    return parameter.ndim == 2 and not name.endswith("embed_tokens.weight")


def train(model, inputs, targets, adamw=ADAMW, decays=decays):
    """Ten AdamW steps on one batch: loss and norm before each update, and the last weights."""
    settings = {key: value for key, value in adamw.items() if key not in ("weight_decay", "clip")}
    parameters = list(model.named_parameters())
    groups = [{"params": [p for n, p in parameters if decays(n, p)], "weight_decay": adamw["weight_decay"]},
              {"params": [p for n, p in parameters if not decays(n, p)], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, foreach=False, fused=False, **settings)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        _, loss_sum = forward_loss(model, inputs, targets)
        loss = loss_sum / (targets >= 0).sum()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), adamw["clip"], foreach=False).item())
        losses.append(loss.item())
        optimizer.step()
    return np.array(losses), np.array(norms), {name: as_numpy(p) for name, p in model.named_parameters()}


def compute(case, weights, batch, dtype, order):
    """name -> float64 array of every expected value, in the unshuffled order."""
    weights = {name: order.apply(name, array) for name, array in weights.items()}
    batch = order.apply_batch(batch)
    inputs, targets = model_inputs(batch, dtype), torch.from_numpy(batch["targets"].astype(np.int64))
    model = build_model(case, weights, dtype)
    logits, loss_sum = forward_loss(model, inputs, targets)
    (loss_sum / (targets >= 0).sum()).backward()
    values = {"logits": order.undo_logits(as_numpy(logits)), "loss_sum": as_numpy(loss_sum).reshape(1)}
    for name, parameter in model.named_parameters():
        values["grad." + name] = order.undo(name, as_numpy(parameter.grad))
    if dtype != torch.bfloat16:
        values["step_loss"], values["step_grad_norm"], last = train(model, inputs, targets)
        for name, array in last.items():
            values["step10." + name] = order.undo(name, array)
    return values


# Outputs


def distance(value, truth):
    return float(np.linalg.norm(value - truth) / np.linalg.norm(truth))


def measure(case, weights, batch, dtype, truth):
    """Values in the order as it stands, and each name's largest relative distance from the truth in all orders."""
    first, error = None, {}
    for number in range(ORDERS):
        values = compute(case, weights, batch, dtype, Order(case, number))
        first = first or values
        for name, value in values.items():
            error[name] = max(error.get(name, 0.0), distance(value, truth[name]))
            if name.startswith("step10."):
                name = name.removeprefix("step10.")
                start = weights[name].astype(np.float64)
                key = "update." + name
                error[key] = max(error.get(key, 0.0), distance(value - start, truth["step10." + name] - start))
    return first, error


def expected_values(case, weights, batch):
    """What expected.safetensors holds, and the errors for the report."""
    truth = compute(case, weights, batch, torch.float64, Order(case, 0))
    shuffled = compute(case, weights, batch, torch.float64, Order(case, 1))
    for name in truth:
        assert distance(shuffled[name], truth[name]) < 1e-11, f"{name}: shuffling changes the function"
        assert np.linalg.norm(truth[name]) > 1e-6, f"{name}: nothing to compare"
    assert truth["step_grad_norm"].max() > ADAMW["clip"], "clipping does not act"
    _, fp32_error = measure(case, weights, batch, torch.float32, truth)
    for name, error in fp32_error.items():
        assert MARGIN * error <= LIMIT or name.startswith("update."), f"{name}: ill-conditioned, {error}"
    bf16, bf16_error = measure(case, weights, batch, torch.bfloat16, truth)
    count = int((batch["targets"] >= 0).sum())
    expected = {name: value.astype(np.float32) for name, value in truth.items()}
    expected["target_count"] = np.array([count], np.int32)
    expected["bf16_logits"] = bf16["logits"].astype(np.float32)
    expected["bf16_loss"] = (bf16["loss_sum"] / count).astype(np.float32)
    errors = dict(fp32_error)
    errors["bf16_loss"] = bf16_error.pop("loss_sum")
    errors.update(("bf16_" + name, error) for name, error in bf16_error.items())
    expected.update(("err." + name, np.array([error], np.float32)) for name, error in errors.items())
    return expected, errors, truth


def sensitivity(case, weights, batch, truth):
    """How far the logits move if a reader of the model gets one thing wrong: name -> relative distance."""

    def logits(case=case, weights=weights, batch=batch, change=None):
        model = build_model(case, weights, torch.float64)
        inputs = model_inputs(batch, torch.float64)
        if change:
            change(inputs)
        return as_numpy(forward_loss(model, inputs, torch.from_numpy(batch["targets"].astype(np.int64)))[0])

    def all_documents(inputs):
        causal = torch.triu(torch.full((ROW, ROW), -math.inf, dtype=torch.float64), 1)
        inputs["attention_mask"] = causal.expand(2, 1, -1, -1)

    def running_positions(inputs):
        # Distances within a piece stay as they were, so the logits may not move at all: this one must be 0.
        inputs["position_ids"] = torch.arange(ROW).expand(2, -1)

    def no_positions(inputs):
        inputs["position_ids"] = torch.zeros(2, ROW, dtype=torch.int64)

    rope = case["rope"]
    moved = {
        "documents see each other": logits(change=all_documents),
        "no rotary positions": logits(change=no_positions),
        "rotary base 10% larger": logits(dict(case, rope=rope | {"rope_theta": 1.1 * rope["rope_theta"]})),
        "rms_norm_eps doubled": logits(dict(case, rms_norm_eps=2 * case["rms_norm_eps"])),
        "positions that run on (must be 0)": logits(change=running_positions),
    }
    if rope["rope_type"] != "default":
        plain = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
        moved["rope scaling ignored"] = logits(dict(case, rope=plain))
    if rope["rope_type"] == "llama3":
        divided = dict(plain, rope_type="linear", factor=rope["factor"])
        moved["all frequencies divided"] = logits(dict(case, rope=divided))
        narrow = rope | {"low_freq_factor": 2.4, "high_freq_factor": 2.40001}
        moved["nothing blended"] = logits(dict(case, rope=narrow))
    for name in weights:
        if name.endswith("bias") and ".0." in name:
            without = dict(weights, **{name: np.zeros_like(weights[name])})
            moved["without " + name.removeprefix("model.")] = logits(weights=without)
    return {name: distance(value, truth["logits"]) for name, value in moved.items()}


def training_sensitivity(case, weights, batch, truth):
    """The same for the weights after ten steps, if the optimizer gets one thing wrong: the tensor most moved."""
    inputs, targets = model_inputs(batch, torch.float64), torch.from_numpy(batch["targets"].astype(np.int64))

    def last_weights(targets=targets, **changes):
        return train(build_model(case, weights, torch.float64), inputs, targets, **changes)[2]

    # As if a document's last position were to predict the next document's first token.
    following = torch.from_numpy(np.roll(batch["ids"], -1).astype(np.int64))
    across = torch.where(targets < 0, following, targets)
    mistakes = {
        "no weight decay": last_weights(adamw=ADAMW | {"weight_decay": 0.0}),
        "decay of embeddings": last_weights(decays=lambda name, p: decays(name, p) or "embed" in name),
        "decay of norms and biases": last_weights(decays=lambda name, p: decays(name, p) or p.ndim == 1),
        "no clipping": last_weights(adamw=ADAMW | {"clip": 1e9}),
        "beta 0.89": last_weights(adamw=ADAMW | {"betas": (0.89, 0.95)}),
        "beta 0.951": last_weights(adamw=ADAMW | {"betas": (0.9, 0.951)}),
        "eps 1e-7": last_weights(adamw=ADAMW | {"eps": 1e-7}),
        "targets where there are none": last_weights(targets=across),
    }
    return {name: max(distance(value, truth["step10." + tensor]) for tensor, value in last.items())
            for name, last in mistakes.items()}


def check_sensitivity(moved):
    for name, change in moved.items():
        assert change < 1e-12 if "must be 0" in name else change > LIMIT, f"{name} would not be noticed: {change}"
    return moved


def save_tensors(path, tensors, metadata=None):
    save_file(tensors, path, metadata=metadata)
    os.chmod(path, 0o644)


def write_json(path, value):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def check_reading(directory, case, weights, batch):
    """Transformers itself, given the directory, reads every form of the configuration as one and the same model."""
    want = {dtype: build_model(case, weights, dtype)(**model_inputs(batch, dtype)).logits
            for dtype in (torch.float32, torch.bfloat16)}
    reference = make_config(case)
    for form in config_forms(case):
        with open(os.path.join(directory, form), encoding="utf-8") as file:
            config = LlamaConfig.from_dict(json.load(file))
        for key in ("rope_parameters", "head_dim", "num_key_value_heads", "attention_bias", "mlp_bias",
                    "tie_word_embeddings", "rms_norm_eps", "intermediate_size", "num_hidden_layers", "vocab_size"):
            assert getattr(config, key) == getattr(reference, key), f"{directory}/{form}: {key} is read otherwise"
    for dtype, logits in want.items():
        model, loading = LlamaForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager",
                                                          output_loading_info=True)
        assert not any(loading.values()), f"{directory}: {loading}"
        inputs = model_inputs(batch, dtype)
        assert torch.equal(model(**inputs).logits, logits), f"{directory}: from_pretrained differs in {dtype}"


def report_lines(name, errors, logits_moved, weights_moved):
    yield f"{name}: largest relative error of PyTorch against float64 in {ORDERS} orders of summation"
    yield f"  {'tensor':<54} {'fp32 value':>10} {'10 steps':>10} {'update':>10} {'bf16 value':>10}"

    def cell(key):
        return f"{errors[key]:>10.1e}" if key in errors else " " * 10

    for key in ("logits", "loss_sum", "step_loss", "step_grad_norm"):
        bf16 = "bf16_loss" if key == "loss_sum" else "bf16_" + key
        yield f"  {key:<54} {cell(key)} {'':>10} {'':>10} {cell(bf16)}".rstrip()
    for key in errors:
        if key.startswith("grad."):
            tensor = key.removeprefix("grad.")
            yield (f"  {key:<54} {cell(key)} {cell('step10.' + tensor)} {cell('update.' + tensor)} "
                   f"{cell('bf16_' + key)}")
    for what, moved in (("logits move if a reader of the model", logits_moved),
                        ("weights of ten steps move if the optimizer or the batch", weights_moved)):
        yield f"{name}: how far the {what} gets one thing wrong"
        for mistake, change in moved.items():
            yield f"  {mistake:<54} {change:>10.1e}"
    yield ""


def write_case(root, name):
    case = CASES[name]
    directory = os.path.join(root, name)
    os.makedirs(directory, exist_ok=True)
    generator = np.random.default_rng(case["seed"])
    weights = draw_weights(case, generator)
    batch = draw_batch(case["vocab_size"], generator)
    check_batch(batch, case["vocab_size"])
    for form, config in config_forms(case).items():
        write_json(os.path.join(directory, form), config)
    save_tensors(os.path.join(directory, "model.safetensors"), weights, metadata={"format": "pt"})
    save_tensors(os.path.join(directory, "batch.safetensors"), batch)
    check_reading(directory, case, weights, batch)
    expected, errors, truth = expected_values(case, weights, batch)
    save_tensors(os.path.join(directory, "expected.safetensors"), expected)
    logits_moved = check_sensitivity(sensitivity(case, weights, batch, truth))
    weights_moved = check_sensitivity(training_sensitivity(case, weights, batch, truth))
    return report_lines(name, errors, logits_moved, weights_moved)


def write_all(root):
    lines = []
    for name in CASES:
        print(f"{name} ...", file=sys.stderr)
        lines.extend(write_case(root, name))
    with open(os.path.join(root, "report.txt"), "w", encoding="utf-8", newline="\n") as file:
        file.write("\n".join(lines))
    write_json(os.path.join(root, "versions.json"), {
        "seeds": {name: case["seed"] for name, case in CASES.items()},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    })


def check_all(fresh):
    """Inputs must be the same bytes, truths the same to fp32 rounding. Errors and bf16 depend on the CPU: bf16
    must be near, and the asserts on the way have found the new errors below LIMIT."""
    wrong = []
    for name in CASES:
        for file in [*config_forms(CASES[name]), "model.safetensors", "batch.safetensors"]:
            with open(os.path.join(HERE, name, file), "rb") as old, open(os.path.join(fresh, name, file), "rb") as new:
                if old.read() != new.read():
                    wrong.append(f"{name}/{file} differs")
        old, new = (load_file(os.path.join(root, name, "expected.safetensors")) for root in (HERE, fresh))
        if old.keys() != new.keys():
            wrong.append(f"{name}/expected.safetensors holds other tensors")
        for key in old.keys() & new.keys():
            if key.startswith("err."):
                continue
            bound = 2.0 * float(old["err." + key][0]) if key.startswith("bf16_") else 1e-7
            if distance(old[key].astype(np.float64), new[key].astype(np.float64)) > bound:
                wrong.append(f"{name}/expected.safetensors: {key} differs")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description="Writes the expected values of the parity tests.")
    parser.add_argument("--check", action="store_true", help="compare with the files that are there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if not arguments.check:
        write_all(HERE)
        return 0
    with tempfile.TemporaryDirectory() as fresh:
        write_all(fresh)
        return check_all(fresh)


if __name__ == "__main__":
    sys.exit(main())
