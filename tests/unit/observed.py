"""A stand-in for a server whose cache is looked at."""

import base64
import contextlib
import json
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KINDS = ("decode_end", "branch", "prompt_end", "chunk", "system_end", "ghost_fork")
COUNTERS = (
    *("requests", "prompt_tokens", "hit_tokens", "lost_tokens", "prompt_flops", "saved_flops"),
    *(f"{kind}_{what}" for kind in KINDS for what in ("checkpoints", "hits")),
    *("skipped_checkpoints", "declined_checkpoints", "evicted_states", "evicted_leaves"),
    *("evicted_state_leaves", "evicted_state_interiors", "evicted_unused"),
)
TUNING = {
    "mode": "auto",
    "arm": "utility:alpha=0.5+asked",
    "policy": "utility",
    "alpha": 0.5,
    "switches": {"better": 2},
    "scores": {"utility:alpha=0.5+asked": 3e14, "lru": 1.5e14},
    "windows": 7,
    "dropped_windows": 1,
    "backlog": 3,
    "process": "running",
    "failures": 0,
    "stalls": 0,
    "predicted_flops": 4e15,
    "realised_flops": 3e15,
    "agreement": 0.75,
}


def status(tuning=None, **counters):
    """What a server says of one cache; ``counters`` not given are 0."""
    return {
        "config": {"policy": "auto" if tuning else "utility"},
        "branch_checkpoint": "exact",
        "checkpoint_grid": 1,
        "decode_grid": 1,
        "counters": {**dict.fromkeys(COUNTERS, 0), **counters},
        "live": {**dict.fromkeys(KINDS, 0), "branch": 3},
        "state_bytes": 1 << 20,
        "short_hits": {
            "full": {"requests": 1, "tokens": 0},
            "no state": {"requests": counters.get("requests", 0), "tokens": 300},
        },
        "tuning": tuning,
        "parts": {"order": {"is_on": False, "failures": 2, "error": "KeyError: 7"}},
        "times": {},
    }


class Observed(ThreadingHTTPServer):
    """Shows the caches in ``looks``, the last one for ever; hands out ``records``.

    Attributes:
        records: text of every rank's record; None where none is kept.
        part_bytes: compressed bytes of a part.
        thefts: how many parts go to another client that asks `/server_info`.
        key, admin_key: what the bearer token must be, to look and to set something.
    """

    def __init__(self, looks, records=None, part_bytes=40, thefts=0, key=None, admin_key=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.looks, self.records, self.part_bytes = list(looks), records, part_bytes
        self.thefts, self.key, self.admin_key = thefts, key, admin_key or key
        self.asked = None
        self.exports = self.answers = 0
        self.requests = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def info(self):
        caches = self.looks[0] if len(self.looks) == 1 else self.looks.pop(0)
        states = [
            {"hybrid_marconi": {**each, "dp_rank": rank}} if each else {}
            for rank, each in enumerate(caches)
        ]
        if self.asked:
            asked, self.asked = self.asked, None
            if self.thefts:
                self.thefts -= 1
            else:
                for state, text in zip(states, self.records, strict=True):
                    state["hybrid_marconi"]["record_part"] = self.part(text, asked)
        self.answers += 1  # the ranks answer in any order
        return {"internal_states": states[::-1] if self.answers % 2 else states}

    def part(self, text, index):
        data, size = zlib.compress(text.encode()), self.part_bytes
        parts = -(-len(data) // size)
        if index > parts:
            return {"export": self.exports, "error": f"part {index} of {parts} was asked for"}
        return {
            "export": self.exports,
            "requests": text.count("\n"),
            "part": index,
            "parts": parts,
            "data": base64.b64encode(data[(index - 1) * size : index * size]).decode(),
        }

    def set_state(self, values):
        part = values["hybrid_marconi_record"]
        self.requests.append(part)
        if self.records is None:
            return [False]
        self.exports += part == 0
        self.asked = part
        return [True] * len(self.records)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self._answer(self.server.key, self.server.info)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(self.server.admin_key, lambda: self.server.set_state(body["server_args"]))

    def _answer(self, key, make):
        refused = key and self.headers.get("Authorization") != f"Bearer {key}"
        data = json.dumps({} if refused else make()).encode()
        self.send_response(401 if refused else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def observed(*args, **kwargs):
    server = Observed(*args, **kwargs)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
