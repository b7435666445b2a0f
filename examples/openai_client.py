"""Serve a model to programs that speak to OpenAI, and ask the server for vectors as such a program does.

    python examples/openai_client.py
    python examples/openai_client.py sentence-transformers/all-MiniLM-L6-v2

The program starts `mlxbert serve` on a free port, asks it with the package `openai` if that is installed (`pip install
openai`) and over plain HTTP otherwise, and stops it. In practice the server runs on its own, and a client needs only
`OpenAI(base_url=…, api_key=…)`: the address ends with `/v1`, and any key will do, since a server that only this machine
can reach asks for none.
"""

import json
import re
import subprocess
import sys
import urllib.request

import numpy as np

TEXTS = ["How do I get my money back?", "Refunds are paid within five days.", "The museum opens at ten."]


def start(model):
    """Starts a server on a port that the system chooses, and returns the process and its address once it is ready."""
    command = [sys.executable, "-m", "mlxbert", "serve", f"mine={model}", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if ready := re.search(r"ready after .*(http://[\d.]+:\d+)", line):  # until then every request gets a 503
            return server, ready[1]
    sys.exit(f"the server ended with status {server.wait()}")


def embed(address, texts):
    """Returns the vectors of texts, asked for with `openai` or over HTTP."""
    try:
        from openai import OpenAI
    except ImportError:
        print("the package openai is not installed: plain HTTP")
        body = json.dumps({"model": "mine", "input": texts}).encode()
        request = urllib.request.Request(f"{address}/v1/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return np.array([item["embedding"] for item in json.load(answer)["data"]])
    client = OpenAI(base_url=f"{address}/v1", api_key="none")
    return np.array([item.embedding for item in client.embeddings.create(model="mine", input=texts).data])


def main():
    """Starts the server, compares the texts by its vectors, and stops it whatever happens."""
    server, address = start(sys.argv[1] if len(sys.argv) > 1 else "builtin")
    try:
        vectors = embed(address, TEXTS)
        print(f"{len(vectors)} vectors of {vectors.shape[1]} numbers from {address}/v1")
        for text, score in zip(TEXTS[1:], vectors[1:] @ vectors[0], strict=True):
            print(f"{score:.2f}  {TEXTS[0]}  {text}")
    finally:
        server.terminate()  # the server answers what it has accepted, and ends
        server.wait()


if __name__ == "__main__":
    main()
