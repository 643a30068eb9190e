"""Tercet beside PyTorch: training steps of the SmolLM2-135M shape (30 layers, 576 wide, 9 heads over 3, vocabulary of
49,152, tied), 4 rows of 512 a step and rank, AdamW with fp32 masters and states, clipping at 1.0, two threads in all.

    python3 bench/compare.py                                    Tercet alone
    cmake -S . -B build -DTERCET_BENCH=ON && cmake --build build --target bench_ceiling
                                                                once, for the share of the ceiling
    bench/peers/make-env ~/peers                                once
    python3 bench/compare.py --python ~/peers/bin/python        both, in turn

The sides run in turn, --rounds times each; of each run the first two steps are left out. A table in Markdown goes to
standard output: medians of all steps, the spread, the ratio to the fastest side of PyTorch with the same arithmetic,
and the share of the ceiling: the speed that the step's matrix products alone have in oneDNN, on whole matrices, measured
in each round. Nothing is installed and nothing left
behind: caches, too, are of this run. Only the standard library of Python is needed here.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536,
    "max_position_embeddings": 2048, "rope_theta": 100000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}
RUN = """output: out
model: {{config: {config}}}
tokenizer: tok
data: {{train: [{text}], seq_len: 512, cache: cache}}
train: {{steps: {steps}, global_batch: {rows}, micro_batch: 4, dtype: {dtype}}}
optimizer: {{lr: 1e-4, clip: 1.0}}
parallel: {{threads: {threads}}}
checkpoint: {{every: 0}}
"""
# name, arithmetic (sides of the same arithmetic are compared), ranks, arguments
SIDES = {
    "tercet-bf16": ("bf16", 1, None),
    "torch-compiled-amp": ("bf16", 1, ["--dtype", "amp", "--compile"]),
    "torch-eager-amp": ("bf16", 1, ["--dtype", "amp"]),
    "tercet-fp32": ("fp32", 1, None),
    "torch-compiled-fp32": ("fp32", 1, ["--dtype", "fp32", "--compile"]),
    "torch-eager-fp32": ("fp32", 1, ["--dtype", "fp32"]),
    "tercet-bf16-2": ("bf16, 2 ranks", 2, None),
    "torch-fsdp2-2": ("bf16, 2 ranks", 2, ["--dtype", "amp", "--strategy", "fsdp2"]),
    "torch-zero3-2": ("bf16, 2 ranks", 2, ["--dtype", "amp", "--strategy", "zero3"]),
    "torch-ddp-2": ("bf16, 2 ranks", 2, ["--dtype", "amp", "--strategy", "ddp"]),
}


def ceiling(args, dtype, directory):
    """Tokens a second of the products alone; None where the program is not built."""
    if not os.path.exists(args.ceiling):
        return None
    c = CONFIG
    sizes = [2048, c["hidden_size"], c["num_key_value_heads"] * c["head_dim"], c["intermediate_size"], c["vocab_size"],
             c["num_hidden_layers"]]
    out, _ = run([args.ceiling, dtype, *map(str, sizes)], directory, args.threads)
    return json.loads(out)["tokens_per_second"]


def run(command, directory, threads):
    """Standard output, and the peak of resident bytes of its largest process."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), XDG_CACHE_HOME=str(directory / "cached"),
                       TORCHINDUCTOR_CACHE_DIR=str(directory / "compiled"), DS_ACCELERATOR="cpu",
                       TORCH_EXTENSIONS_DIR=str(directory / "extensions"))
    with open(directory / "stdout", "w+", encoding="utf-8") as out, \
            open(directory / "stderr", "w+", encoding="utf-8") as err:
        p = subprocess.Popen(command, cwd=directory, stdout=out, stderr=err, env=environment)
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        if p.returncode != 0:
            err.seek(0)
            raise SystemExit(f"{' '.join(map(str, command))}\n{err.read()[-3000:]}")
        out.seek(0)
        return out.read(), usage.ru_maxrss * 1024


def tercet(args, side, directory):
    arithmetic, ranks, _ = SIDES[side]
    dtype = arithmetic.split(",")[0]
    text = HERE.parent / "examples" / "data" / "english_train.jsonl"
    (directory / "run.yaml").write_text(
        RUN.format(config=json.dumps(CONFIG), text=text, steps=args.steps, rows=4 * ranks, dtype=dtype,
                   threads=args.threads // ranks), encoding="utf-8")
    _, peak = run([args.tercet, "train", "run.yaml", "-n", str(ranks), "--overwrite"], directory, args.threads)
    lines = [json.loads(line) for line in (directory / "out" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    return {"seconds": [s["seconds"] for s in steps], "tokens": steps[-1]["tokens"], "peak": peak}


def torch(args, side, directory):
    _, ranks, extra = SIDES[side]
    command = [args.python]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [HERE / "peers" / "torch_train.py", "--config", directory / "config.json", "--steps", str(args.steps),
                "--threads", str(args.threads // ranks), *extra]
    if "zero3" in extra and not (directory / "extensions").exists():
        # It builds a library when it is first used, which two ranks at once would do to each other.
        run([args.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1",
             *command[command.index("--nproc-per-node") + 2:], "--rows", "1", "--seq", "8"], directory, args.threads)
    out, peak = run(command, directory, args.threads // ranks)
    return {**json.loads(out.strip().splitlines()[-1]), "peak": peak}


def table(args, results, ceilings, machine):
    print(f"{machine}; {args.threads} threads in all; {args.rounds} runs of {args.steps} steps each, in turn\n")
    for dtype, values in ceilings.items():
        print(f"ceiling, {dtype}: {', '.join(f'{v:.1f}' for v in values)} tokens/s\n")
    print("| side | tokens/s, median | from … to | beside the fastest PyTorch of its kind | share of the ceiling "
          "| peak memory, MB |")
    print("|---|---|---|---|---|---|")
    speed = {side: [r["tokens"] / s for r in runs for s in r["seconds"][2:]] for side, runs in results.items()}
    for side, speeds in speed.items():
        kind, ranks, _ = SIDES[side]
        peers = [statistics.median(v) for k, v in speed.items() if SIDES[k][0] == kind and k.startswith("torch")]
        middle = statistics.median(speeds)
        ratio = f"{middle / max(peers):.2f}" if peers else ""
        of = ceilings.get(kind.split(",")[0])
        share = f"{middle / statistics.median(of):.2f}" if of else ""
        # Of several ranks the system tells only the largest process.
        peak = f"{max(r['peak'] for r in results[side]) / 1e6:.0f}" if ranks == 1 else ""
        print(f"| {side} | {middle:.1f} | {min(speeds):.1f} … {max(speeds):.1f} | {ratio} | {share} | {peak} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tercet", default=str(HERE.parent / "build" / "tercet"))
    p.add_argument("--ceiling", default=str(HERE.parent / "build" / "bench_ceiling"))
    p.add_argument("--python", help="an environment with PyTorch and Transformers")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--sides", default=",".join(SIDES), help="names, with commas between them; all: %(default)s")
    args = p.parse_args()
    sides = [s for s in args.sides.split(",") if args.python or s.startswith("tercet")]
    if args.steps < 3 or args.rounds < 1 or not sides or any(s not in SIDES for s in sides):
        p.error("at least 3 steps and 1 round, of sides out of " + ", ".join(SIDES))
    args.tercet = os.path.abspath(args.tercet)
    results, ceilings = {side: [] for side in sides}, {}
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        (directory / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        run([args.tercet, "tokenizer", "train", HERE.parent / "examples" / "data" / "english_train.jsonl",
             "--vocab-size", "4000", "-o", "tok"], directory, args.threads)
        out, _ = run([args.tercet, "doctor"], directory, args.threads)
        machine = next((line for line in out.splitlines() if line.lower().startswith("cpu")), "")
        for round_ in range(args.rounds):
            for dtype in sorted({SIDES[s][0].split(",")[0] for s in sides}):
                measured = ceiling(args, dtype, directory)
                if measured:
                    ceilings.setdefault(dtype, []).append(measured)
            for side in sides:
                print(f"round {round_ + 1}: {side}", file=sys.stderr)
                measure = tercet if side.startswith("tercet") else torch
                results[side].append(measure(args, side, directory))
    table(args, results, ceilings, " ".join(machine.split()))


if __name__ == "__main__":
    main()
