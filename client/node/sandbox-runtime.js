// The names of @anthropic-ai/sandbox-runtime, on top of sandboxd: a program that uses them changes its import.
//
// A config is never loosened: what would restrict and cannot be kept is an error. Settings files of the user count
// beside it, as for every command of sandboxd.

import { EventEmitter } from "node:events";
import { existsSync } from "node:fs";
import { isAbsolute, resolve } from "node:path";
import { escapeTags, lineOf } from "./lib/annotation.js";
import { Client, quoted, variablesRead } from "./lib/client.js";
import { InvalidCommand, SandboxdError } from "./lib/errors.js";
import { socketPath } from "./lib/location.js";
import { find } from "./lib/programs.js";

const LONGEST_KEY = 100;
const MOST_KEPT = 100;
// Keys of the config by what becomes of them: kept under the same name, without a meaning here, or refused.
const KEPT = {
  network: ["allowedDomains", "deniedDomains", "deniedDomainReasons", "strictAllowlist", "deniedResolvedAddresses",
    "allowAllUnixSockets", "allowLocalBinding", "allowMachLookup"],
  filesystem: ["denyRead", "allowRead", "allowWrite", "denyWrite", "allowGitConfig"],
  "": ["ignoreViolations", "enableWeakerNestedSandbox", "enableWeakerNetworkIsolation", "allowAppleEvents", "allowPty",
    "mandatoryDenySearchDepth"],
};
const MEANINGLESS = {
  network: ["tlsTerminate"],
  filesystem: [],
  "": ["ripgrep", "seccomp", "bwrapPath", "socatPath", "javaAgentPath", "windows", "git"],
};
const REFUSED = {
  "network.filterRequest": "decides about requests",
  "network.mitmProxy": "looks at connections",
  "network.httpProxyPort": "decides about connections; set sandbox.network.httpProxyPort in your settings",
  "network.socksProxyPort": "decides about connections; set sandbox.network.socksProxyPort in your settings",
  "filesystem.disabled": "switches the enforcement off, which no caller of sandboxd can",
};

/** Return settings of sandboxd for a config. `asks`: a callback answers about hosts on no list. */
export function settingsOf(config, { asks = false, cwd = process.cwd() } = {}) {
  const sandbox = { enabled: true, failIfUnavailable: true, allowUnsandboxedCommands: false };
  for (const section of ["network", "filesystem", ""]) {
    const given = (section ? config[section] : config) ?? {};
    const into = section ? (sandbox[section] = {}) : sandbox;
    for (const [key, value] of Object.entries(given)) {
      const name = section ? `${section}.${key}` : key;
      if (value === undefined || ["network", "filesystem", "credentials"].includes(name)) continue;
      if (MEANINGLESS[section].includes(key) || ["network.allowUnixSockets", "network.parentProxy"].includes(name)) continue;
      if (REFUSED[name] && value !== false) {
        throw new SandboxdError("restriction_unknown", `${name} cannot be kept: it ${REFUSED[name]}`, `remove ${name} from the config`);
      }
      if (!REFUSED[name]) into[key] = value; // the daemon refuses unknown keys that restrict
    }
  }
  if (process.platform === "darwin") sandbox.network.allowUnixSockets = config.network?.allowUnixSockets ?? [];
  const proxy = config.network?.parentProxy;
  if (proxy) {
    if (proxy.http && proxy.https && proxy.http !== proxy.https) {
      throw new SandboxdError("proxy_invalid", "network.parentProxy names two proxies", "name one proxy for http and https");
    }
    sandbox.network.parentProxy = proxy.https ?? proxy.http;
  }
  if (!asks) sandbox.network.strictAllowlist = true;
  const writable = config.filesystem?.allowWrite ?? [];
  if (!writable.some((path) => covers(path, cwd))) {
    // sandboxd lets commands write their directory, this config does not.
    sandbox.filesystem.denyWrite = [...(config.filesystem?.denyWrite ?? []), "."];
  }
  const { files = [], envVars = [] } = config.credentials ?? {};
  sandbox.credentials = {
    files: files.map(({ path, mode }) => ({ path, mode })),
    envVars: envVars.map(({ name, mode }) => ({ name, mode })), // mask is enforced as deny
  };
  return { sandbox };
}

function covers(path, cwd) {
  const at = path.replace(/\/\*\*$/, "") || "/";
  if (/[*?[$]/.test(at)) return false;
  const place = at.startsWith("~") ? at.replace(/^~(?=\/|$)/, process.env.HOME ?? "~") : resolve(cwd, at);
  return cwd === place || cwd.startsWith(`${place.replace(/\/+$/, "")}/`);
}

/** The latest violations of this process's commands. */
export class SandboxViolationStore extends EventEmitter {
  #kept = new Map();
  #total = 0;

  addViolation(violation) {
    this.#total += 1;
    const key = violation.id ?? Symbol(violation.line);
    this.#kept.delete(key);
    this.#kept.set(key, violation);
    if (this.#kept.size > MOST_KEPT) this.#kept.delete(this.#kept.keys().next().value);
    this.emit("change", this.getViolations());
  }

  getViolations(limit) {
    const all = [...this.#kept.values()];
    return limit === undefined ? all : all.slice(-limit);
  }

  getCount() {
    return this.#kept.size;
  }

  getTotalCount() {
    return this.#total;
  }

  getViolationsForCommand(command) {
    return this.getViolations().filter(({ encodedCommand }) => encodedCommand === keyOf(command));
  }

  clear() {
    this.#kept.clear();
    this.emit("change", []);
  }

  subscribe(listener) {
    this.on("change", listener);
    listener(this.getViolations());
    return () => this.off("change", listener);
  }
}

function keyOf(command) {
  return Buffer.from(command.slice(0, LONGEST_KEY)).toString("base64url");
}

class Manager {
  #client = null;
  #config;
  #ask;
  #sessions = new Map();
  #subscriptions = [];
  #store = new SandboxViolationStore();

  async initialize(config, askCallback) {
    if (this.#config) return;
    settingsOf(config, { asks: Boolean(askCallback) }); // its errors, before anything is begun
    this.#client = new Client();
    this.#ask = askCallback;
    try {
      const here = (sessionId) => [...this.#sessions.values()].some(({ session }) => session?.id === sessionId);
      if (askCallback) {
        this.#subscriptions.push(await this.#client.questions(async ({ kind, session_id, host, port }) => {
          if (kind !== "network" || !here(session_id)) return undefined;
          return (await askCallback({ host, port })) === true ? "allow" : "deny";
        }));
      }
      this.#subscriptions.push(await this.#client.violations((found) => {
        if (here(found.session_id)) this.#store.addViolation(eventOf(found));
      }));
      this.#config = config;
      await this.#session(config);
    } catch (error) {
      await this.reset();
      throw error;
    }
  }

  isSupportedPlatform() {
    return ["linux", "darwin"].includes(process.platform);
  }

  isSandboxingEnabled() {
    return this.#config !== undefined;
  }

  checkDependencies() {
    const found = find("sandboxd", process.env.PATH);
    const missing = !existsSync(socketPath()) && !found.path;
    return { warnings: [], errors: missing ? [`sandboxd is not installed${found.why && `: ${found.why}`}`] : [] };
  }

  async checkDependenciesAsync() {
    const client = this.#client ?? new Client();
    try {
      const { ok, steps } = await client.call("check");
      const failed = steps.filter((step) => !step.ok).map(({ name, detail, remedy }) => `${name}: ${detail} (${remedy})`);
      return ok ? { warnings: failed, errors: [] } : { warnings: [], errors: failed };
    } catch (error) {
      return { warnings: [], errors: [error.message] };
    } finally {
      if (client !== this.#client) client.close();
    }
  }

  getFsReadConfig() {
    const { denyRead = [], allowRead } = this.#config?.filesystem ?? {};
    return { denyOnly: [...denyRead], ...(allowRead ? { allowWithinDeny: [...allowRead] } : {}) };
  }

  getFsWriteConfig() {
    const { allowWrite = [], denyWrite = [] } = this.#config?.filesystem ?? {};
    return { allowOnly: [...allowWrite], denyWithinAllow: [...denyWrite] };
  }

  getNetworkRestrictionConfig() {
    const { allowedDomains, deniedDomains } = this.#config?.network ?? {};
    return { ...(allowedDomains ? { allowedHosts: allowedDomains } : {}), ...(deniedDomains?.length ? { deniedHosts: deniedDomains } : {}) };
  }

  getAllowUnixSockets() {
    return this.#config?.network?.allowUnixSockets;
  }

  getAllowLocalBinding() {
    return this.#config?.network?.allowLocalBinding;
  }

  getAllowMachLookup() {
    return this.#config?.network?.allowMachLookup;
  }

  getIgnoreViolations() {
    return this.#config?.ignoreViolations;
  }

  getEnableWeakerNestedSandbox() {
    return this.#config?.enableWeakerNestedSandbox;
  }

  // The proxies are the daemon's.
  getProxyPort() {}
  getProxyAuthToken() {}
  getSocksProxyPort() {}
  getLinuxHttpSocketPath() {}
  getLinuxSocksSocketPath() {}
  getMitmCA() {}
  cleanupAfterCommand() {}

  async waitForNetworkInitialization() {
    return this.isSandboxingEnabled();
  }

  /** Resolve to a line for `sh -c`. It runs in the directory that this process has now. */
  async wrapWithSandbox(command, binShell, customConfig, abortSignal, options) {
    const { wrap } = await this.#wrap(command, binShell, customConfig, abortSignal, undefined, options);
    const set = Object.entries(wrap.env.set).map(([name, value]) => `${name}=${quoted(value)}`);
    const unset = wrap.env.unset.length ? ` unset ${wrap.env.unset.join(" ")};` : "";
    return `cd -- ${quoted(wrap.cwd)} || exit 125; export ${set.join(" ")};${unset} ${wrap.command}`;
  }

  async wrapWithSandboxArgv(command, binShell, customConfig, abortSignal, cwd, options) {
    const { wrap } = await this.#wrap(command, binShell, customConfig, abortSignal, cwd, options);
    const env = { ...process.env, ...wrap.env.set };
    for (const name of wrap.env.unset) delete env[name];
    return { argv: wrap.argv, env };
  }

  getSandboxViolationStore() {
    return this.#store;
  }

  annotateStderrWithSandboxFailures(command, stderr) {
    const found = this.#store.getViolationsForCommand(command);
    const text = escapeTags(stderr); // a block of the command's own
    return found.length ? [text, "<sandbox_violations>", ...found.map(({ line }) => line), "</sandbox_violations>"].join("\n") : text;
  }

  getLinuxGlobPatternWarnings() {
    return [];
  }

  getConfig() {
    return this.#config;
  }

  /** Use another config from the next command on, and for the network of running ones. */
  updateConfig(config) {
    settingsOf(config, { asks: Boolean(this.#ask) });
    const before = this.#sessions.get(this.#key(this.#config ?? {}));
    if (!this.#config || !before) throw new SandboxdError("session_unknown", "updateConfig before initialize");
    this.#sessions.delete(this.#key(this.#config));
    this.#config = config;
    const settings = this.#settings(config);
    before.ready = before.ready.then(async (session) => {
      await session.update({ settings });
      return session;
    });
    before.ready.catch(() => {}); // the next command throws it
    this.#sessions.set(this.#key(config), before);
  }

  async reset() {
    for (const { close } of this.#subscriptions) close();
    this.#subscriptions = [];
    this.#sessions.clear();
    this.#client?.close(); // its sessions and their commands end with it
    this.#client = null;
    this.#config = undefined;
    this.#store.clear();
  }

  async #wrap(command, binShell, customConfig, abortSignal, cwd, options = {}) {
    if (!this.#config) throw new SandboxdError("session_unknown", "the sandbox is not initialized", "call SandboxManager.initialize first");
    abortSignal?.throwIfAborted();
    const session = await this.#session(merged(this.#config, customConfig));
    const wrap = await session.call("wrap", {
      command, shell: shellPath(binShell), cwd: resolve(cwd ?? "."), env: variablesRead(process.env),
      command_id: keyOf(options.commandId || command), command_text: options.commandText ?? command,
    });
    abortSignal?.throwIfAborted();
    return { wrap };
  }

  /** Return the session of a config: a custom one has its own. */
  #session(config) {
    const key = this.#key(config);
    let one = this.#sessions.get(key);
    if (!one) {
      one = { session: null };
      one.ready = this.#client.session({ settings: this.#settings(config) }).then((session) => (one.session = session));
      one.ready.catch(() => this.#sessions.delete(key));
      this.#sessions.set(key, one);
    }
    return one.ready;
  }

  #settings(config) {
    return settingsOf(config, { asks: Boolean(this.#ask) });
  }

  #key(config) {
    return JSON.stringify([config, process.cwd()]);
  }
}

/** Return a config with the keys of a custom one in place of its own. */
function merged(config, custom) {
  if (!custom) return config;
  const within = (name) => ({ ...config[name], ...defined(custom[name]) });
  return { ...config, ...defined(custom), network: within("network"), filesystem: within("filesystem") };
}

function defined(record = {}) {
  return Object.fromEntries(Object.entries(record).filter(([, value]) => value !== undefined));
}

function shellPath(shell) {
  if (shell === undefined || isAbsolute(shell)) return shell;
  const { path } = find(shell, process.env.PATH);
  if (!path) throw new InvalidCommand("shell_unknown", `there is no shell ${shell}`, "name a shell by its absolute path");
  return path;
}

function eventOf(violation) {
  const { id, command, command_id, time } = violation;
  return { id, line: lineOf(violation), command, encodedCommand: command_id, timestamp: new Date(time * 1000) };
}

export const SandboxManager = new Manager();
