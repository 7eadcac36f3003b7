"""A gateway with short patience, in front of a replica that computes nothing.

    python stub_server.py PORT MODEL [STEP_SECONDS [DRAIN_SECONDS]]   the gateway
    python stub_server.py --replica DOWN UP STEP_SECONDS              its replica

The replica gives every sample the token 28 at each step. The prompt's first token asks for more: see ``ODD``.
"""

import subprocess
import sys
import time

ODD = {
    "error": 100,  # the sample ends with an error, after one token
    "refused": 101,  # the same, before any token
    "silent": 102,  # a second passes before the first token
    "endless step": 103,
    "noise": 104,  # bytes that are no message
    "large": 105,  # log probabilities of 20 kB with each token
}


def replica(down, up, step_seconds):  # noqa: PLR0912 - one branch a message
    import msgspec
    import numpy as np
    import zmq

    from headrace.engine.messages import (
        Abort,
        Beat,
        DebugState,
        Down,
        Drain,
        EngineStats,
        Finish,
        Generate,
        Hello,
        Inspect,
        PositionLogprobs,
        ReplicaInfo,
        TokenDelta,
    )
    from headrace.engine.report import pack

    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.connect(down)
    push.connect(up)
    push.set_hwm(0)
    decoder, running, step, began, age = msgspec.msgpack.Decoder(Down), {}, 0, time.monotonic(), 0.0

    def send(message):
        push.send(msgspec.msgpack.encode(message))

    send(Hello(ReplicaInfo("stub", "stub", 1, 4096, 4096, 16, 256, 49152, 64, 576)))
    beat = 0.0
    while True:
        while pull.poll(0 if running else 50):
            match decoder.decode(pull.recv()):
                case Generate() as message:
                    first = int(np.frombuffer(message.prompt, "<i4")[0])
                    for i in range(message.params.n):
                        running[message.request, i] = [first, message.params.max_tokens, 0, time.monotonic()]
                    age = 1e6 if first == ODD["endless step"] else 0.0
                    if first == ODD["noise"]:
                        push.send(b"\xc1noise")
                case Abort() as message:
                    running = {key: value for key, value in running.items() if key[0] not in message.requests}
                    send(pack([], EngineStats(step=step, running=len(running))))
                case Inspect():
                    send(DebugState({"running": len(running), "waiting": 0}))
                case Drain():
                    return  # the gateway has ended or aborted all that ran
        deltas = []
        for (request, index), state in list(running.items()):
            first, limit, count, since = state
            if first == ODD["silent"] and time.monotonic() - since < 1:
                continue
            state[2] += 1
            finish = Finish("length") if state[2] == limit else None
            if first == ODD["refused"] or (first == ODD["error"] and count == 1):
                deltas.append(TokenDelta(request, index, finish=Finish("error", message="as asked")))
                del running[request, index]
                continue
            large = [PositionLogprobs(28, -1.0, 0, [(i, -1.0) for i in range(20)])] if first == ODD["large"] else None
            deltas.append(TokenDelta(request, index, [28], logprobs=large, finish=finish))
            if finish:
                del running[request, index]
        if deltas:
            step += 1
            send(pack(deltas, EngineStats(step=step, running=len(running))))
        if time.monotonic() - beat > 0.2:
            beat = time.monotonic()
            send(Beat(step, age))
        time.sleep(max(0.0, began + step * step_seconds - time.monotonic()) if deltas else 0)
        if not running:
            began = time.monotonic() - step * step_seconds


def gateway(port, model, step_seconds="0.01", drain_seconds="30"):
    from headrace.gateway import protocol, watch
    from headrace.gateway.app import build_services
    from headrace.gateway.config import GatewayConfig
    from headrace.gateway.server import serve
    from headrace.logs import set_up_logs
    from headrace.models.opening import open_checkpoint
    from headrace.text.model_text import model_text
    from headrace.text.tokenizer import load_tokenizer

    set_up_logs("json")
    protocol.HEAD_SECONDS = protocol.STALL_SECONDS = 1.0
    config = GatewayConfig(
        body_timeout=1.0,
        keep_alive=0.2,
        step_timeout=5.0,
        heartbeat_timeout=2.0,
        cors_origins=("*",),
        max_queue=100_000,
        drain_timeout=float(drain_seconds),
    )

    async def broken(self, _):
        raise RuntimeError("a bug")

    watch.Watch.home = broken

    def launch(down, up):
        return subprocess.Popen([sys.executable, __file__, "--replica", down, up, step_seconds])

    text = model_text(load_tokenizer(open_checkpoint(model).tokenizer))
    serve(build_services("smol", text, launch, config), "127.0.0.1", int(port), on_ready=lambda info, seconds: None)


if __name__ == "__main__":
    if sys.argv[1] == "--replica":
        replica(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        gateway(*sys.argv[1:])
