"""Steps of PyTorch on a Llama of a given shape, as one would write them with Transformers: what bench/compare.py
measures Tercet against. Random weights and tokens: neither changes the time. The last line of standard output is a
JSON object.

Under torchrun (--strategy ddp, fsdp2 or zero3) each rank takes --rows rows; zero3 is DeepSpeed's.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--config", required=True, help="config.json of the model")
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--rows", type=int, default=4)
    p.add_argument("--seq", type=int, default=512)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--dtype", choices=["fp32", "amp", "bf16"], default="amp",
                   help="amp: autocast to bf16 over fp32 masters; bf16: all of it bf16")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--strategy", choices=["single", "ddp", "fsdp2", "zero3"], default="single")
    return p.parse_args()


def build(args):
    with open(args.config, encoding="utf-8") as f:
        config = LlamaConfig(**json.load(f))
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    if args.dtype == "bf16":
        model = model.to(torch.bfloat16)
    if args.strategy == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif args.strategy == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy()
        if args.dtype == "amp":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return model, torch.compile(model) if args.compile else model, optimizer, config.vocab_size


def zero3(args, model):
    """DeepSpeed's engine, which clips and zeroes in its own step."""
    import deepspeed

    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True),
        config={"train_micro_batch_size_per_gpu": args.rows, "zero_optimization": {"stage": 3},
                "bf16": {"enabled": args.dtype != "fp32"}, "gradient_clipping": 1.0,
                "zero_allow_untested_optimizer": True, "steps_per_print": 1 << 30})
    return engine


def zero3_step(engine, ids):
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    return loss.item()


def torch_step(args, model, run, optimizer, ids):
    autocast = args.dtype == "amp" and args.strategy != "fsdp2"
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = run(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    if args.strategy != "single":
        dist.init_process_group("gloo")
    model, run, optimizer, vocab = build(args)
    engine = zero3(args, model) if args.strategy == "zero3" else None
    seconds = []
    for _ in range(args.steps):
        ids = torch.randint(0, vocab, (args.rows, args.seq))
        begin = time.monotonic()
        value = zero3_step(engine, ids) if engine else torch_step(args, model, run, optimizer, ids)
        seconds.append(time.monotonic() - begin)
        if value != value:
            raise SystemExit("the loss is not a number")
    if int(os.environ.get("RANK", "0")) == 0:
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        print(json.dumps({"seconds": seconds, "tokens": args.rows * args.seq * ranks}))
    if args.strategy != "single":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
