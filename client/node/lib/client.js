// The client: its connection, sessions and commands.

import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { promisify } from "node:util";
import { connectOrStart } from "./connection.js";
import { ApprovalRequired, CommandDenied, ConnectionLost, InvalidCommand, PermissionDenied, RpcError, WrapOutdated } from "./errors.js";
import { checkPath, socketPath } from "./location.js";
import { SandboxedProcess } from "./process.js";
import { CLEAN_NAMES, METHODS, PROTOCOL, VARIABLES_READ, WRAPS_TRIED } from "./tables.js";

const VERSION = "0.1.0";
const DEFAULT_TIMEOUT = 60_000;
const BARE_SHELLS = ["/bin/bash", "/bin/sh"];
const SESSION_GONE = ["session_unknown", "session_closed"];
const OF_COMMANDS = ["wrap", "should_sandbox", "permission.request"];
const SESSION = Symbol("the session of a command");
const OPTIONS = new Set([
  "cwd", "env", "stdio", "shell", "timeout", "killSignal", "signal", "detached", "encoding", "maxBuffer", "windowsHide",
  "environment", "allowEnv", "sessionId", "commandId", "commandText", "overrides", "publish", "grace", "decide", "approve",
  "dangerouslyDisableSandbox", "input", "annotate", "login",
]);

/**
 * Client of the daemon of this user. It connects at the first call, starts a daemon when none answers (unless
 * `autostart` is false), and connects again after a restart. It then repeats a request where that can do no harm.
 */
export class Client {
  #connection = null;
  #connecting = null;
  #path;
  #autostart;
  #timeout;
  #role;
  #session;
  /** The number of connections so far; sessions end with their connection. */
  connections = 0;

  constructor({ socket, autostart = true, timeout = DEFAULT_TIMEOUT, role = "full" } = {}) {
    if (role !== "full" && role !== "agent") throw new TypeError(`role is "full" or "agent", not ${JSON.stringify(role)}`);
    this.#path = socket;
    this.#autostart = autostart;
    this.#timeout = timeout;
    this.#role = role;
    const around = role === "agent" ? "" : process.env.SANDBOXD_SESSION;
    this.#session = around === "auto" ? "" : around;
  }

  get socket() {
    return (this.#path = this.#path === undefined ? socketPath() : checkPath(this.#path));
  }

  /** Connect now instead of at the first call. */
  async connect() {
    await this.#connected();
  }

  /** Close the connection, which ends its sessions; a later call connects anew. */
  close() {
    this.#connection?.close();
    this.#connection = null;
  }

  async [Symbol.asyncDispose ?? Symbol.for("asyncDispose")]() {
    this.close();
  }

  /** Send a request of the RPC interface, and resolve to its result. */
  async call(method, params = {}) {
    const row = METHODS[method];
    if (!row) throw new TypeError(`there is no method ${method}`);
    const given = Object.fromEntries(Object.entries(params).filter(([, value]) => value !== undefined && value !== null));
    if (this.#session && OF_COMMANDS.includes(method) && given.session_id === undefined) {
      given.session_id = await this.#joined(given.cwd);
    }
    for (;;) {
      const before = this.#connection;
      const connection = await this.#connected();
      try {
        return await connection.call(method, given, row.patient ? null : this.#timeout);
      } catch (error) {
        if (!(error instanceof ConnectionLost)) throw error;
        if (this.#connection === connection) this.#connection = null;
        if (before !== connection || (error.sent && !row.repeatable)) throw error;
      }
    }
  }

  async #joined(cwd) {
    if (!this.#session.startsWith("auto:")) return this.#session;
    const key = this.#session.slice("auto:".length);
    return (await this.call("session.join", { key, cwd: cwd ?? process.cwd() })).session_id;
  }

  async #connected() {
    if (this.#connection?.broken) this.#connection = null;
    if (this.#connection) return this.#connection;
    this.#connecting ??= this.#connect().finally(() => (this.#connecting = null));
    return this.#connecting;
  }

  async #connect() {
    const connection = await connectOrStart(this.socket, this.#autostart);
    try {
      const role = this.#role === "agent" ? { role: "agent" } : {};
      const hello = { client: "sandboxd-client (node)", version: VERSION, protocol: PROTOCOL, ...role };
      const answer = await connection.call("hello", hello, this.#timeout);
      if (this.#role === "agent" && answer.role !== "agent") {
        throw new PermissionDenied("role_unknown", "the daemon does not know the role agent", "update it with: sandboxd restart");
      }
    } catch (error) {
      connection.close();
      throw error;
    }
    this.connections += 1;
    return (this.#connection = connection);
  }

  /** Open a session: one agent in one project. It ends with this client's connection unless detached. */
  async session({ cwd = ".", name, settings, permissionMode, detach } = {}) {
    const opening = { cwd: resolve(cwd), name, settings: sendable(settings), permission_mode: permissionMode, detach };
    return new Session(this, opening).open();
  }

  /** Start a command, as child_process.spawn: a program with its arguments, or a shell line with `shell`. */
  spawn(command, args, options) {
    return this.#spawn(...forms(command, args, options));
  }

  /** Run a shell line, as child_process.exec. */
  exec(line, options, callback) {
    return collected(this, "exec", [line], options, callback);
  }

  /** Run a program with its arguments, as child_process.execFile. */
  execFile(file, args, options, callback) {
    if (!Array.isArray(args)) [args, options, callback] = [[], args, options];
    return collected(this, "execFile", [file, args], options, callback);
  }

  /**
   * Run a command to its end: a string is a shell line, an array a program with its arguments. Standard input is empty
   * without `input`. Resolves also for a status other than 0; rejects where no command ran, and after a time-out.
   */
  async run(command, options = {}) {
    check(options);
    const { input, timeout, annotate = options.encoding !== "buffer", stdio, ...rest } = options;
    if (stdio !== undefined) throw new TypeError("run collects the output: use spawn for stdio");
    for (let left = WRAPS_TRIED - 1; ; left--) {
      const child = this.#spawn(command, { ...rest, stdio: [input === undefined ? "ignore" : "pipe", "pipe", "pipe"] });
      child.stdin?.end(input);
      try {
        return await this.#completed(child, command, { ...options, annotate });
      } catch (error) {
        if (!(error instanceof WrapOutdated) || !left) throw error;
      }
    }
  }

  async #completed(child, command, options) {
    const { timeout, encoding = "utf8", maxBuffer = Infinity, annotate, commandId, killSignal } = options;
    const output = { stdout: [], stderr: [] };
    let failure = null;
    let late = null;
    let size = 0;
    const end = (error) => {
      failure ??= error;
      child.stop(killSignal);
    };
    for (const name of Object.keys(output)) {
      child[name].on("data", (data) => {
        size += data.length;
        if (size <= maxBuffer) output[name].push(data);
        else end(Object.assign(new RangeError(`the output is longer than ${maxBuffer} bytes`), { code: "ERR_CHILD_PROCESS_STDIO_MAXBUFFER" }));
      });
    }
    if (timeout > 0) {
      late = setTimeout(() => end(Object.assign(new Error(`the command did not end within ${timeout / 1000} s`), { code: "ETIMEDOUT" })), timeout);
    }
    child.on("error", (error) => (failure ??= error));
    const [code, signal] = await new Promise((done) => child.on("close", (...status) => done(status)));
    clearTimeout(late);
    const [stdout, stderr] = Object.values(output).map((parts) => {
      const bytes = Buffer.concat(parts);
      return encoding === "buffer" ? bytes : bytes.toString(encoding);
    });
    const result = {
      command, code, signal, stdout, stderr, sandboxed: child.sandboxed, wrap: child.wrap, decision: child.decision, violations: [],
    };
    if (!failure || failure.code) result.violations = await child.violations();
    if (annotate && child.wrap && result.violations.length) {
      const params = { command_id: commandId ?? child.wrap.wrap_id, stderr };
      result.stderr = (await this.#about(options, "violation.annotate", params).catch(() => ({ stderr }))).stderr;
    }
    if (failure) throw Object.assign(failure, failure.code ? result && { stdout, stderr, violations: result.violations } : {});
    return result;
  }

  #spawn(command, options = {}) {
    check(options);
    const outcome = (wrap_id) => this.call("wrap.outcome", { wrap_id });
    return new SandboxedProcess(command, options, () => this.#launch(command, options), outcome);
  }

  /** Return what to spawn: always a sandbox, unless a decision lets the command run bare. */
  async #launch(command, options) {
    const cwd = resolve(options.cwd ?? ".");
    const env = environmentOf(options);
    let decision = null;
    if (options.decide) {
      decision = await this.#decided(command, options, cwd, env);
      if (!decision.sandboxed) return bare(command, options, cwd, { ...env, ...decision.env }, decision);
    } else if (options.dangerouslyDisableSandbox) {
      throw new TypeError("dangerouslyDisableSandbox needs decide: only a decision lets a command run bare");
    }
    const words = Array.isArray(command) ? { argv: command.map(String) } : { command, shell: shellOf(options), login: options.login };
    const wrap = await this.#about(options, "wrap", {
      ...words, cwd, env: variablesRead(env), command_id: options.commandId, command_text: options.commandText,
      overrides: overridesOf(options),
    });
    return { argv: wrap.argv, cwd: wrap.cwd, env: changed(env, wrap), wrap, decision };
  }

  /** Send a request about a command, in its session. */
  #about(options, method, params) {
    const session = options[SESSION];
    return session ? session.call(method, params) : this.call(method, { ...params, session_id: options.sessionId });
  }

  async #decided(command, options, cwd, env) {
    const line = Array.isArray(command) ? command.map(quoted).join(" ") : command;
    const subject = { command: line, cwd, is_sandbox: Boolean(env.IS_SANDBOX) };
    const path = env.PATH ?? "";
    const decision = await this.#about(options, "should_sandbox", {
      ...subject, path, dangerously_disable_sandbox: Boolean(options.dangerouslyDisableSandbox),
    });
    if (decision.behavior === "allow") return decision;
    if (decision.behavior === "ask" && !options.approve) {
      const kind = decision.question ?? (decision.sandboxed ? "command" : "sandbox_override");
      const answer = await this.#about(options, "permission.request", { ...subject, kind, command_id: options.commandId, search_path: path });
      if (answer.behavior === "allow" && ((answer.by ?? "policy") !== "policy" || decision.question === "command")) {
        return { ...decision, env: { ...decision.env, ...answer.env } };
      }
      if (answer.by === null && ["", "no_subscriber"].includes(answer.outcome)) {
        const message = `the command needs approval, and no client answers prompts: ${decision.reason.text}`;
        throw new ApprovalRequired("approval_required", message, "answer in another terminal with: sandboxd prompts", decision);
      }
      throw new CommandDenied("command_denied", `the command is denied: ${answer.text}`, answer.hint, decision);
    }
    if (decision.behavior === "ask" && (await options.approve(decision)) === true) return decision;
    const why = decision.behavior === "ask" ? "the command was not approved" : "the command is denied";
    throw new CommandDenied("command_denied", `${why}: ${decision.reason.text}`, decision.hint, decision);
  }

  /**
   * Answer prompts: `answer(question)` returns "allow", "deny", or `{behavior, scope, …}`; undefined leaves it to
   * others. Resolves to `{close(), closed}`; `closed` settles with the end of the subscription.
   */
  async questions(answer) {
    const ask = async (question) => {
      const given = await answer(question);
      if (given === undefined || given === null) return;
      const response = typeof given === "string" ? { behavior: given } : given;
      await this.call("sandbox_permission_response", { request_id: question.request_id, ...response }).catch((error) => {
        if (error.slug !== "question_closed") throw error;
      });
    };
    const found = await this.#subscribe("permission.subscribe", {}, { sandbox_permission_request: ask });
    for (const question of found.result.open) found.settle(ask(question));
    return found.subscription;
  }

  /** Give violations to `hear(violation)` as they happen, those of before first. Resolves as `questions` does. */
  async violations(hear, { sessionId } = {}) {
    const rows = { sandbox_violation: ({ violation }) => (sessionId && violation.session_id !== sessionId ? null : hear(violation)) };
    const found = await this.#subscribe("violation.subscribe", { session_id: sessionId }, rows);
    for (const violation of found.result.violations) found.settle(hear(violation));
    return found.subscription;
  }

  /** Give changes of settings to `hear(notification)`. Resolves as `questions` does. */
  async settingsChanges(hear) {
    return (await this.#subscribe("settings.subscribe", {}, { settings_changed: hear })).subscription;
  }

  /** Resolve to settings with their origins; `key` limits them to one key and those below. */
  settings(key, { sessionId, cwd } = {}) {
    return this.call("settings.get", { key, session_id: sessionId, cwd: cwd && resolve(cwd) });
  }

  /** Change the user's settings: all `changes` (`{act, key, value}`) or none. */
  updateSettings(changes, { sessionId, cwd, confirm, project } = {}) {
    return this.call("settings.update", { changes, session_id: sessionId, cwd: cwd && resolve(cwd), confirm, project });
  }

  async #subscribe(method, params, rows) {
    const connection = await this.#connected();
    let finish;
    let fail;
    const closed = new Promise((yes, no) => ([finish, fail] = [yes, no]));
    closed.catch(() => {}); // the caller may not look
    const waiting = [];
    let ready = false;
    const settle = (done) => Promise.resolve(done).catch((error) => (unsubscribe(), fail(error)));
    const deliver = (method, given) => settle((async () => rows[method]?.(given))());
    const unsubscribe = connection.subscribe((...heard) => (ready ? deliver(...heard) : waiting.push(heard)), fail);
    try {
      const result = await connection.call(method, params, this.#timeout);
      process.nextTick(() => {
        ready = true;
        for (const heard of waiting) deliver(...heard);
      });
      return { result, settle, subscription: { closed, close: () => (unsubscribe(), finish()) } };
    } catch (error) {
      unsubscribe();
      throw error;
    }
  }
}

/** A session of a client. After a restart of the daemon the next call opens it again, without its grants. */
export class Session {
  #client;
  #opening;
  #connections = 0;
  opened = null;

  constructor(client, opening) {
    this.#client = client;
    this.#opening = opening;
    this.cwd = opening.cwd;
  }

  get id() {
    return this.opened.session_id;
  }

  async open() {
    this.opened = await this.#client.call("session.open", this.#opening);
    this.#connections = this.#client.connections;
    return this;
  }

  /** End the session with its commands. */
  async close() {
    await this.#client.call("session.close", { session_id: this.id }).catch((error) => {
      if (!SESSION_GONE.includes(error.slug) && !(error instanceof ConnectionLost)) throw error;
    });
  }

  async [Symbol.asyncDispose ?? Symbol.for("asyncDispose")]() {
    await this.close();
  }

  /** Give the session other settings, or change some of its own; they hold at once. */
  async update({ settings, changes, confirm } = {}) {
    const result = await this.call("session.update", { settings: sendable(settings), changes, confirm });
    this.#opening = { ...this.#opening, settings: result.settings };
    return result;
  }

  /** Send a request about this session. */
  async call(method, params = {}) {
    try {
      return await this.#client.call(method, { ...params, session_id: this.id });
    } catch (error) {
      if (!(error instanceof RpcError) || !SESSION_GONE.includes(error.slug) || this.#connections === this.#client.connections) throw error;
    }
    await this.open();
    return this.#client.call(method, { ...params, session_id: this.id });
  }

  spawn(command, args, options) {
    const [line, given] = forms(command, args, options);
    const within = this.#within(given);
    return Array.isArray(line) ? this.#client.spawn(line[0], line.slice(1), within) : this.#client.spawn(line, [], { ...within, shell: within.shell ?? true });
  }

  exec(line, options, callback) {
    return collected(this, "exec", [line], options, callback);
  }

  execFile(file, args, options, callback) {
    if (!Array.isArray(args)) [args, options, callback] = [[], args, options];
    return collected(this, "execFile", [file, args], options, callback);
  }

  run(command, options) {
    return this.#client.run(command, this.#within(options));
  }

  violations(hear) {
    return this.#client.violations(hear, { sessionId: this.id });
  }

  #within(options = {}) {
    return { ...options, cwd: resolve(this.cwd, options.cwd ?? "."), [SESSION]: this };
  }
}

/** Return the command and the options of a call like child_process.spawn. */
function forms(command, args, options) {
  if (!Array.isArray(args)) [args, options] = [[], args ?? options];
  if (!options?.shell) return [[command, ...args], options];
  return [[command, ...args].join(" "), options];
}

/** exec and execFile: a process, and a callback with all of its output. */
function collected(owner, kind, words, options, callback) {
  if (typeof options === "function") [options, callback] = [{}, options];
  const { encoding = "utf8", maxBuffer = 1024 * 1024, ...rest } = options ?? {};
  const child = kind === "exec" ? owner.spawn(words[0], [], { shell: true, ...rest }) : owner.spawn(words[0], words[1], rest);
  const parts = { stdout: [], stderr: [] };
  const size = { stdout: 0, stderr: 0 };
  let failure = null;
  for (const name of Object.keys(parts)) {
    child[name]?.on("data", (data) => {
      size[name] += data.length;
      if (size[name] <= maxBuffer) return parts[name].push(data);
      failure ??= Object.assign(new RangeError(`${name} maxBuffer length exceeded`), { code: "ERR_CHILD_PROCESS_STDIO_MAXBUFFER" });
      child.stop();
    });
  }
  child.on("error", (error) => (failure ??= error));
  child.on("close", (code, signal) => {
    const [stdout, stderr] = Object.values(parts).map((all) => {
      const bytes = Buffer.concat(all);
      return encoding === "buffer" || encoding === null ? bytes : bytes.toString(encoding);
    });
    if (!failure && (code !== 0 || signal)) {
      failure = Object.assign(new Error(`Command failed: ${words.flat().join(" ")}\n${stderr}`), { code, signal, killed: child.killed });
    }
    if (failure) Object.assign(failure, { cmd: words.flat().join(" "), stdout, stderr });
    callback?.(failure, stdout, stderr);
  });
  return child;
}

for (const owner of [Client, Session]) {
  for (const name of ["exec", "execFile"]) {
    Object.defineProperty(owner.prototype[name], promisify.custom, {
      value(...words) {
        return new Promise((yes, no) => this[name](...words, (error, stdout, stderr) => (error ? no(error) : yes({ stdout, stderr }))));
      },
    });
  }
}

/** Refuse unknown options: one that is misspelt might restrict. */
function check(options) {
  for (const name of Object.keys(options)) {
    if (!OPTIONS.has(name) && options[name] !== undefined) throw new TypeError(`${name} is no option of a sandboxed command`);
  }
}

function environmentOf({ env, environment, allowEnv = [] }) {
  if (environment === undefined) return defined(env ?? process.env);
  if (environment !== "clean" || env) throw new TypeError('environment is "clean", without env');
  const clean = new RegExp(`^(?:${CLEAN_NAMES})$`);
  return defined(Object.fromEntries(Object.entries(process.env).filter(([name]) => allowEnv.includes(name) || clean.test(name))));
}

function defined(env) {
  return Object.fromEntries(Object.entries(env).filter(([, value]) => value !== undefined).map(([name, value]) => [name, String(value)]));
}

export function variablesRead(env) {
  const found = VARIABLES_READ.filter((name) => env[name] !== undefined && !env[name].includes("\ufffd") && !/\p{Surrogate}/u.test(env[name]));
  return Object.fromEntries(found.map((name) => [name, env[name]]));
}

function changed(env, wrap) {
  const merged = { ...env, ...wrap.env.set };
  for (const name of wrap.env.unset) delete merged[name];
  return merged;
}

function overridesOf({ overrides, publish }) {
  if (!overrides && !publish) return undefined;
  const given = { ...overrides };
  if (typeof given.settings === "string") given.settings = resolve(given.settings);
  const ports = [...(given.publish ?? []), ...(publish ?? [])].map(String);
  return ports.length ? { ...given, publish: ports } : given;
}

function sendable(settings) {
  return typeof settings === "string" ? resolve(settings) : settings;
}

function shellOf({ shell }) {
  return typeof shell === "string" ? shell : undefined;
}

function bare(command, options, cwd, env, decision) {
  if (decision.sandboxed || decision.behavior === "deny") throw new Error("a bare launch without a decision for it");
  const argv = Array.isArray(command) ? command : [shellOf(options) ?? BARE_SHELLS.find((path) => existsSync(path)), "-c", command];
  if (!argv.length) throw new InvalidCommand("command_empty", "the command is empty");
  return { argv, cwd, env, wrap: null, decision };
}

/** Return a word as a POSIX shell reads it. */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", `'"'"'`)}'`;
}
