// A sandboxed command, shaped like ChildProcess of node:child_process. It exists before the daemon has answered: its
// streams are there at once, its `pid` from the event "spawn" on.

import { spawn as spawnProcess } from "node:child_process";
import { EventEmitter } from "node:events";
import { constants } from "node:os";
import { PassThrough } from "node:stream";
import { SandboxSetupError, WrapOutdated } from "./errors.js";
import { signalCommand } from "./signals.js";
import { SUSPICIOUS } from "./tables.js";

const SIGNALS = Object.fromEntries(Object.entries(constants.signals).reverse().map(([name, number]) => [128 + number, name]));
const NAMES = ["stdin", "stdout", "stderr"];

export class SandboxedProcess extends EventEmitter {
  pid = undefined;
  exitCode = null;
  signalCode = null;
  killed = false;
  connected = false;
  stdin = null;
  stdout = null;
  stderr = null;
  /** The answer of the daemon; null before it, and for a command that may run bare. */
  wrap = null;
  /** The decision of `decide`. */
  decision = null;
  #child = null;
  #asks;
  #outcome = null;
  #grace;
  #group = false;
  #over = false;
  #ended = false;
  #timers = [];

  /** `prepare()` resolves to a launch, `askOutcome(wrap_id)` to the outcome of a wrap. */
  constructor(line, options, prepare, askOutcome) {
    super();
    this.spawnargs = Array.isArray(line) ? [...line] : [line];
    this.spawnfile = this.spawnargs[0];
    this.#asks = askOutcome;
    this.#grace = options.grace ?? 1000;
    const stdio = streamsOf(options.stdio);
    for (const [number, name] of NAMES.entries()) if (stdio[number] === "pipe") this[name] = new PassThrough();
    this.stdio = [this.stdin, this.stdout, this.stderr];
    prepare().then((launch) => this.#start(launch, stdio, options)).catch((error) => this.#fail(error));
    if (options.timeout > 0) {
      this.#timers.push(setTimeout(() => this.stop(options.killSignal), options.timeout));
    }
    this.#watch(options.signal, options.killSignal);
  }

  get sandboxed() {
    return this.wrap !== null;
  }

  /** Send a signal to the command itself; before its start, let it never start. Return whether it had not ended. */
  kill(signal = "SIGTERM") {
    if (this.#ended || this.#over) return false;
    const number = typeof signal === "number" ? signal : constants.signals[signal];
    if (number === undefined) throw new TypeError(`unknown signal: ${signal}`);
    if (number === 0) return true;
    this.killed = true;
    if (this.#child?.pid) signalCommand(this.#child.pid, number, this.#group);
    else if (!this.#child) this.#abandon(number);
    return true;
  }

  /** Send a signal, and SIGKILL to the whole tree after the grace. */
  stop(signal = "SIGTERM") {
    if (this.kill(signal)) this.#timers.push(setTimeout(() => this.kill("SIGKILL"), this.#grace));
  }

  /** Resolve to the outcome as the daemon knows it; null for a bare command or without a daemon. */
  async outcome() {
    if (!this.wrap) return null;
    this.#outcome ??= await this.#asks(this.wrap.wrap_id).catch(() => null);
    const found = this.#outcome;
    if (!this.#over) this.#outcome = null; // it still runs
    return found;
  }

  /** Resolve to the violations; complete once the process has ended. */
  async violations() {
    return (await this.outcome())?.violations ?? [];
  }

  ref() {
    this.#child?.ref();
  }

  unref() {
    this.#child?.unref();
  }

  [Symbol.dispose ?? Symbol.for("dispose")]() {
    this.kill("SIGKILL");
  }

  #start(launch, stdio, options) {
    if (this.#ended) return;
    this.wrap = launch.wrap;
    this.decision = launch.decision;
    // A process can signal its whole group, in which the caller should not be; but only there job control works.
    this.#group = options.detached ?? !(stdio[0] === "inherit" && process.stdin.isTTY);
    const [program, ...words] = launch.argv;
    const child = spawnProcess(program, words, {
      cwd: launch.cwd, env: launch.env, stdio, detached: this.#group, windowsHide: true,
    });
    this.#child = child;
    child.on("error", (error) => {
      if (child.pid) return; // of a signal
      this.#fail(launch.wrap ? spawnError(launch, error) : error);
    });
    child.on("spawn", () => {
      this.pid = child.pid;
      for (const name of ["stdout", "stderr"]) if (this[name]) child[name].pipe(this[name]);
      if (this.stdin) {
        child.stdin.on("error", () => this.stdin.resume()); // the command reads no more
        this.stdin.pipe(child.stdin);
      }
      this.emit("spawn");
    });
    child.on("exit", (code, signal) => this.#exited(code, signal).catch((error) => this.#fail(error)));
  }

  async #exited(code, signal) {
    this.#over = true;
    // Status of bubblewrap and the helper, or of the command; 128+N of a signal, or of a shell: only the daemon can tell.
    if (this.wrap && ((SUSPICIOUS.includes(code) && !this.killed) || SIGNALS[code])) {
      const outcome = await this.outcome();
      if (SIGNALS[code]) {
        if (outcome?.signal !== 0) [code, signal] = [null, SIGNALS[code]];
      } else if (outcome && !outcome.started) {
        this.exitCode = code;
        return this.#fail(setupError(outcome));
      }
    }
    this.exitCode = code;
    this.signalCode = signal;
    this.emit("exit", code, signal);
    this.#close(code, signal);
  }

  #close(code, signal) {
    this.#ended = true;
    this.#timers.forEach(clearTimeout);
    const open = [this.stdout, this.stderr].filter((stream) => stream && !stream.readableEnded && !stream.destroyed);
    let left = open.length;
    const one = () => --left || this.emit("close", code, signal);
    if (!left) process.nextTick(() => this.emit("close", code, signal));
    for (const stream of open) {
      stream.once("close", one);
      if (!stream.listenerCount("readable")) stream.resume(); // as child_process does: no reader may ever come
    }
  }

  #abandon(number) {
    const signal = SIGNALS[128 + number];
    this.#ended = true;
    this.signalCode = signal;
    for (const stream of [this.stdout, this.stderr]) stream?.end();
    process.nextTick(() => this.emit("exit", null, signal));
    process.nextTick(() => this.#close(null, signal));
  }

  #fail(error) {
    if (this.#ended) return;
    this.#ended = true;
    for (const stream of [this.stdout, this.stderr]) if (!this.#child?.pid) stream?.end();
    this.stdin?.resume();
    this.emit("error", error);
    this.#close(this.exitCode, this.signalCode);
  }

  #watch(signal, killSignal) {
    if (!signal) return;
    const abort = () => {
      if (!this.kill(killSignal)) return;
      this.#timers.push(setTimeout(() => this.kill("SIGKILL"), this.#grace));
      this.emit("error", Object.assign(new Error("The operation was aborted", { cause: signal.reason }), { name: "AbortError", code: "ABORT_ERR" }));
    };
    if (signal.aborted) process.nextTick(abort);
    else {
      signal.addEventListener("abort", abort, { once: true });
      this.once("close", () => signal.removeEventListener("abort", abort));
    }
  }
}

/** Return three entries for the standard streams. */
function streamsOf(stdio = "pipe") {
  const three = Array.isArray(stdio) ? [...stdio] : [stdio, stdio, stdio];
  if (three.length > 3) throw new TypeError("a sandboxed command has three standard streams: pass no further entries in stdio");
  for (const [number, one] of three.entries()) {
    if (one === "ipc") throw new TypeError("a sandboxed command has no IPC channel: use its standard streams");
    if (one === undefined || one === null || one === "overlapped") three[number] = "pipe";
  }
  while (three.length < 3) three.push("pipe");
  return three;
}

function setupError(outcome) {
  const reason = outcome.reason ?? "the sandbox ended before the command started";
  const message = `the sandbox could not be set up, nothing was run: ${reason}`;
  const hint = outcome.hint || "see: sandboxd check";
  if (!outcome.outdated) return new SandboxSetupError(message, hint);
  return new WrapOutdated(message, "run the command again", outcome.settings_changed ? "settings_changed" : "files_changed");
}

function spawnError(launch, error) {
  if (error.code === "E2BIG") {
    const message = "the command and its environment are longer than the system permits";
    return new SandboxSetupError(message, "put the command into a file and run that", "command_too_long");
  }
  return new SandboxSetupError(`the sandbox could not be started, nothing was run: ${launch.argv[0]}: ${error.code}`, "see: sandboxd check");
}
