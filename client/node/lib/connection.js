// One connection to the daemon: the checks before it is trusted, frames, answers by id, and the start of a daemon.

import { spawn } from "node:child_process";
import net from "node:net";
import { ConnectionLost, DaemonNotRunning, DaemonStartFailed, DaemonTimeout, InvalidCommand, PermissionDenied, errorOfReply } from "./errors.js";
import { checkPlace } from "./location.js";
import { find, withoutCode } from "./programs.js";
import { MAX_LINE } from "./tables.js";

// The process that listens must have no pid namespace of its own, as each sandbox has: its answers are executed, and
// commands may be allowed to listen where a caller's environment leads. Node cannot ask the kernel for the peer of a
// socket, so this runs in an interpreter that no command can write. See unix(7), pid_namespaces(7).
const IS_OUTSIDE = `
import _socket, errno, sys
peer = _socket.socket(fileno=3)
pid = int.from_bytes(peer.getsockopt(1, 17, 12)[:4], sys.byteorder)
if pid:
    try:
        described = "/proc/self/fdinfo/%d" % peer.getsockopt(1, 77)
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
            raise
        described = "/proc/%d/status" % pid
    numbers = open(described, "rb").read().partition(b"NSpid:")[2].partition(b"\\n")[0].split()
    sys.exit(len(numbers) != 1 or numbers[0] == b"-1")
`;
const START_TIMEOUT = 30_000;
const INSTALL = "start it with: sandboxd serve; or install it with: ./dev install, in a checkout of sandboxd";

/** Connect to the daemon, and start one if there is none. */
export async function connectOrStart(path, autostart) {
  try {
    return await openConnection(path);
  } catch (error) {
    if (!autostart || !(error instanceof DaemonNotRunning)) throw error;
  }
  await startDaemon(path);
  return openConnection(path);
}

async function openConnection(path) {
  if (!checkPlace(path)) throw new DaemonNotRunning(path);
  const socket = await new Promise((resolve, reject) => {
    const made = net.connect(path, () => resolve(made.off("error", reject)));
    made.once("error", reject);
  }).catch((error) => {
    if (error.code === "ECONNREFUSED" || error.code === "ENOENT") throw new DaemonNotRunning(path);
    throw new PermissionDenied("socket_unusable", `cannot connect to ${path}: ${error.code}`);
  });
  try {
    await checkPeer(socket, path);
  } catch (error) {
    socket.destroy();
    throw error;
  }
  return new Connection(socket);
}

async function checkPeer(socket, path) {
  if (process.platform !== "linux") return;
  const python = find("python3", process.env.PATH);
  if (!python.path) {
    throw new PermissionDenied(
      "peer_unknown",
      "cannot tell which process listens: there is no python3 in a place that no command can write",
      "install python3 with the package manager of the system",
    );
  }
  const { status, text } = await ended([python.path, "-I", "-S", "-c", IS_OUTSIDE], {}, socket);
  if (status === 1 && !text) {
    throw new PermissionDenied(
      "daemon_sandboxed",
      `a process in a sandbox, or one that has ended, listens at ${path}: its answers are not trusted`,
      "set XDG_RUNTIME_DIR or SANDBOXD_SOCKET to a place that commands cannot write",
    );
  }
  if (status !== 0) {
    throw new PermissionDenied("peer_unknown", `cannot tell which process listens at ${path}: ${lastLine(text)}`);
  }
}

/** Start the daemon by the command line: it knows service managers, and takes turns with other clients. */
async function startDaemon(path) {
  const found = find("sandboxd", process.env.PATH);
  if (!found.path) {
    const why = found.refused ? `; ${found.refused} is not used, since a command could have written it: ${found.why}` : "";
    throw new DaemonNotRunning(path, `sandboxd is not running (nothing answers at ${path}) and is not installed here${why}`, INSTALL);
  }
  const { status, text } = await ended([found.path, "start"], { SANDBOXD_SOCKET: path });
  if (status === 0) return;
  const lines = text.split("\n").map((line) => line.trim());
  const hint = lines.findLast((line) => line.startsWith("hint: "))?.slice("hint: ".length);
  const message = lines.findLast((line) => line.startsWith("sandboxd: "))?.slice("sandboxd: ".length);
  throw new DaemonStartFailed(path, message ?? `sandboxd could not be started: ${lastLine(text)}`, hint ?? "try: sandboxd start");
}

function ended([program, ...words], variables, socket) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, words, {
      cwd: "/",
      env: withoutCode({ ...process.env, ...variables }),
      stdio: ["ignore", "ignore", "pipe", ...(socket ? [socket] : [])],
      timeout: START_TIMEOUT,
      killSignal: "SIGKILL",
    });
    let text = "";
    child.stderr.setEncoding("utf8").on("data", (data) => (text = (text + data).slice(-16384)));
    child.on("error", (error) => reject(new PermissionDenied("peer_unknown", `cannot start ${program}: ${error.code}`)));
    child.on("close", (status) => resolve({ status, text }));
  });
}

function lastLine(text) {
  return text.trim().split("\n").at(-1) || "it ended without a message";
}

/** A connected socket. It keeps the program running only while an answer, or a subscriber, waits. */
export class Connection {
  #socket;
  #waiting = new Map();
  #lastId = 0;
  #parts = [];
  #size = 0;
  #broken = null;
  #holders = 0;
  #listeners = new Set();

  constructor(socket) {
    this.#socket = socket;
    socket.on("data", (data) => this.#feed(data));
    socket.on("error", () => {}); // "close" follows
    socket.on("close", () => this.#break(new ConnectionLost()));
    socket.unref();
    socket.resume();
  }

  get broken() {
    return this.#broken;
  }

  /** Return the result of a request; `timeout` in milliseconds, null for none. */
  call(method, params, timeout) {
    if (this.#broken) return Promise.reject(new ConnectionLost(this.#broken.message, false));
    const id = ++this.#lastId;
    const frame = encode({ jsonrpc: "2.0", id, method, params });
    return new Promise((resolve, reject) => {
      const timer =
        timeout === null ? null : setTimeout(() => this.#settle(id, null, new DaemonTimeout(method, timeout)), timeout);
      this.#waiting.set(id, { resolve, reject, timer });
      this.hold();
      this.#socket.write(frame);
    });
  }

  /** Give notifications to `hear(method, params)`; `lost(error)` gets the end. Return the function that ends it. */
  subscribe(hear, lost) {
    const listener = { hear, lost };
    this.#listeners.add(listener);
    this.hold();
    return () => {
      if (this.#listeners.delete(listener)) this.release();
    };
  }

  hold() {
    if (this.#holders++ === 0) this.#socket.ref();
  }

  release() {
    if (--this.#holders === 0) this.#socket.unref();
  }

  close() {
    this.#break(new ConnectionLost("the client was closed"));
  }

  #feed(data) {
    for (let start = 0; start < data.length; ) {
      const end = data.indexOf(10, start);
      const part = data.subarray(start, end < 0 ? data.length : end);
      start = end < 0 ? data.length : end + 1;
      this.#size += part.length;
      if (this.#size > MAX_LINE) return this.#break(new ConnectionLost("sandboxd sent a line that is too long"));
      this.#parts.push(part);
      if (end >= 0) {
        const line = Buffer.concat(this.#parts);
        this.#parts = [];
        this.#size = 0;
        this.#take(line);
      }
    }
  }

  #take(line) {
    let message;
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(line);
      if (!text.trim()) return;
      message = JSON.parse(text);
    } catch {
      return this.#break(new ConnectionLost("sandboxd sent an invalid message"));
    }
    if (message === null || typeof message !== "object" || Array.isArray(message)) {
      return this.#break(new ConnectionLost("sandboxd sent a message that is not an object"));
    }
    if ("method" in message) {
      if ("id" in message) {
        const error = { code: -32601, message: "this client serves no methods", data: { slug: "method_not_found" } };
        this.#socket.write(encode({ jsonrpc: "2.0", id: message.id, error }));
      } else {
        for (const { hear } of [...this.#listeners]) hear(message.method, message.params ?? {});
      }
    } else if (message.id == null && "error" in message) {
      this.#break(errorOfReply(message.error)); // about the connection as a whole
    } else if ("error" in message) {
      this.#settle(message.id, null, errorOfReply(message.error));
    } else {
      this.#settle(message.id, message.result, null);
    }
  }

  #settle(id, result, error) {
    const one = this.#waiting.get(id);
    if (!one) return; // its caller has stopped waiting
    this.#waiting.delete(id);
    clearTimeout(one.timer);
    this.release();
    if (error) one.reject(error);
    else one.resolve(result);
  }

  #break(reason) {
    if (this.#broken) return;
    this.#broken = reason;
    this.#socket.destroy();
    for (const id of [...this.#waiting.keys()]) this.#settle(id, null, reason);
    const listeners = [...this.#listeners];
    this.#listeners.clear();
    for (const { lost } of listeners) {
      this.release();
      lost(reason);
    }
  }
}

function encode(message) {
  const text = JSON.stringify(message);
  if (/\\ud[89a-f]/i.test(text) && hasLoneSurrogate(message)) {
    throw new InvalidCommand("not_utf8", "the command or its directory contains text that is not UTF-8", "put it into a file and run that");
  }
  if (Buffer.byteLength(text) > MAX_LINE) {
    throw new InvalidCommand("line_too_long", "the request is too long", "put the command into a file and run that");
  }
  return `${text}\n`;
}

function hasLoneSurrogate(value) {
  if (typeof value === "string") return /\p{Surrogate}/u.test(value);
  return value !== null && typeof value === "object" && Object.entries(value).some((entry) => entry.some(hasLoneSurrogate));
}
