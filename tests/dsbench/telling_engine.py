"""The fake engine, telling the secrets of its environment wherever it says something: log, files, answers, metrics."""

import json
import os
import sys
from pathlib import Path

import fake_engine
from starlette.responses import JSONResponse, PlainTextResponse

KEYS = {name: os.environ[name] for name in ("OPENAI_API_KEY", "HF_TOKEN", "DSBENCH_API_KEY", "MY_PASSWORD")}
"""A KeyError where one does not reach the engine."""
SAID = " ".join(f"{name}={value}" for name, value in KEYS.items())
told = fake_engine.metrics
completions, chat, write_files = fake_engine.completions, fake_engine.chat, fake_engine.write_files


async def tell_metrics(request):
    labels = ",".join(f"{name}={json.dumps(value)}" for name, value in KEYS.items())
    page = (await told(request)).body.decode()
    return PlainTextResponse(
        f"# HELP vllm:told {SAID}\n# TYPE vllm:told_total counter\nvllm:told_total{{{labels}}} 1\n{page}"
    )


async def tell_completions(request):
    body = await request.json()
    if len(body["prompt"]) > 200:
        filler = "x" * 140  # so that the part of the answer that is kept ends inside a key
        return JSONResponse({"error": {"message": filler + SAID}}, status_code=500)
    return await completions(request)


async def tell_chat(request):
    message = {"role": "assistant", "content": f"42, and {SAID}"}
    return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {}})


def tell_files(args):
    write_files(args)
    folder = Path(os.environ["DSBENCH_BOOT_DIR"])
    for name in ("conditions", "kv_profile"):
        path = folder / f"{name}.rank0.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "environment": KEYS, "argv": [SAID]}))
    (folder / "traces").mkdir()
    (folder / "traces" / "trace.json").write_text(json.dumps({"env": SAID}))


fake_engine.metrics, fake_engine.completions, fake_engine.chat = tell_metrics, tell_completions, tell_chat
fake_engine.write_files = tell_files
print(f"INFO 01-01 00:00:00 [config.py:1] environment: {SAID}", file=sys.stderr)
print(f"ERROR 01-01 00:00:00 [w.py:1] CUDA error: an illegal memory access was encountered, {SAID}", file=sys.stderr)
fake_engine.main()
