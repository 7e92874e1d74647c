import type { EventEmitter } from "node:events";
import type { Readable, Writable } from "node:stream";
import type {
  ChangeRecord, Methods, OverridesRecord, PermissionRequest, PermissionResponseParams, SessionOpenResult,
  SessionUpdateResult, SettingsChangedNotification, SettingsGetResult, SettingsUpdateResult, ShouldSandboxResult,
  ViolationRecord, WrapOutcomeResult, WrapResult,
} from "./lib/wire.js";

export type * from "./lib/wire.js";

/** A string is a shell line, an array a program with its arguments. */
export type Command = string | readonly string[];
export type Stream = "pipe" | "ignore" | "inherit" | number | Readable | Writable | null | undefined;
export type SettingsDocument = string | Record<string, unknown>;

export interface ClientOptions {
  /** The path of the daemon's socket. */
  socket?: string;
  /** Start a daemon when none answers (true). */
  autostart?: boolean;
  /** Limit of an answer in milliseconds, null for none. */
  timeout?: number | null;
  /** "agent" gives up what an agent does not need: settings, answers to prompts, sessions of others, wider rules. */
  role?: "full" | "agent";
}

export interface CommandOptions {
  cwd?: string;
  /** The whole environment, as in child_process. */
  env?: Record<string, string | undefined>;
  /** Without `env`: only variables that hold no secrets by their meaning, and those of `allowEnv`. */
  environment?: "clean";
  allowEnv?: readonly string[];
  /** The path of the shell; `true` for the default one. */
  shell?: string | boolean;
  /** The shell reads the start-up files of a login. */
  login?: boolean;
  /** Milliseconds until `killSignal`; after `grace` the whole tree gets SIGKILL. */
  timeout?: number;
  killSignal?: NodeJS.Signals | number;
  /** Milliseconds between `killSignal` and SIGKILL (1000). */
  grace?: number;
  signal?: AbortSignal;
  /** A process group of its own; true without the terminal. */
  detached?: boolean;
  windowsHide?: boolean;
  sessionId?: string;
  /** The name of the command in violations. */
  commandId?: string;
  commandText?: string;
  /** Additions to the policy for this command, within managed policy. */
  overrides?: OverridesRecord;
  /** Ports to publish, `[HOST:]PORT[:INNER]`. */
  publish?: readonly (string | number)[];
  /** Ask `should_sandbox` first, and follow it. */
  decide?: boolean;
  /** Called with a decision to ask; without it the subscribers are asked. */
  approve?: (decision: ShouldSandboxResult) => boolean | Promise<boolean>;
  /** With `decide`: ask for a run outside the sandbox. */
  dangerouslyDisableSandbox?: boolean;
}

export interface SpawnOptions extends CommandOptions {
  stdio?: "pipe" | "ignore" | "inherit" | readonly Stream[];
}

export interface ExecOptions extends SpawnOptions {
  encoding?: BufferEncoding | "buffer" | null;
  maxBuffer?: number;
}

export interface RunOptions extends CommandOptions {
  input?: string | Uint8Array;
  encoding?: BufferEncoding;
  maxBuffer?: number;
  /** End standard error with a block of the violations (true). */
  annotate?: boolean;
}

export interface Completed<T = string> {
  command: Command;
  /** The exit status; null where a signal ended the command. */
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: T;
  stderr: T;
  violations: ViolationRecord[];
  sandboxed: boolean;
  wrap: WrapResult | null;
  decision: ShouldSandboxResult | null;
}

export interface ExecError extends Error {
  code?: number | string | null;
  signal?: NodeJS.Signals | null;
  killed?: boolean;
  cmd?: string;
  stdout?: string | Buffer;
  stderr?: string | Buffer;
}

export type ExecCallback = (error: ExecError | null, stdout: string, stderr: string) => void;

/** A sandboxed command, shaped like ChildProcess: `pid` is there from the event "spawn" on. */
export class SandboxedProcess extends EventEmitter {
  readonly pid: number | undefined;
  readonly exitCode: number | null;
  readonly signalCode: NodeJS.Signals | null;
  readonly killed: boolean;
  readonly connected: false;
  readonly stdin: Writable | null;
  readonly stdout: Readable | null;
  readonly stderr: Readable | null;
  readonly stdio: [Writable | null, Readable | null, Readable | null];
  readonly spawnargs: string[];
  readonly spawnfile: string;
  readonly wrap: WrapResult | null;
  readonly decision: ShouldSandboxResult | null;
  readonly sandboxed: boolean;
  kill(signal?: NodeJS.Signals | number): boolean;
  /** Send a signal, and SIGKILL to the whole tree after the grace. */
  stop(signal?: NodeJS.Signals | number): void;
  outcome(): Promise<WrapOutcomeResult | null>;
  violations(): Promise<ViolationRecord[]>;
  ref(): void;
  unref(): void;
  on(event: "spawn", listener: () => void): this;
  on(event: "exit" | "close", listener: (code: number | null, signal: NodeJS.Signals | null) => void): this;
  on(event: "error", listener: (error: Error) => void): this;
}

interface Runner {
  spawn(command: string, options?: SpawnOptions): SandboxedProcess;
  spawn(command: string, args: readonly string[], options?: SpawnOptions): SandboxedProcess;
  exec(line: string, callback?: ExecCallback): SandboxedProcess;
  exec(line: string, options: ExecOptions, callback?: ExecCallback): SandboxedProcess;
  execFile(file: string, callback?: ExecCallback): SandboxedProcess;
  execFile(file: string, args: readonly string[], callback?: ExecCallback): SandboxedProcess;
  execFile(file: string, args: readonly string[], options: ExecOptions, callback?: ExecCallback): SandboxedProcess;
  run(command: Command, options: Omit<RunOptions, "encoding"> & { encoding: "buffer" }): Promise<Completed<Buffer>>;
  run(command: Command, options?: RunOptions): Promise<Completed>;
}

export interface Subscription {
  close(): void;
  /** Settles with the end of the subscription; rejects with the connection. */
  readonly closed: Promise<void>;
}

export type Answer = "allow" | "deny" | Omit<PermissionResponseParams, "request_id"> | undefined;

export interface Client extends Runner {}
export class Client {
  constructor(options?: ClientOptions);
  readonly socket: string;
  readonly connections: number;
  connect(): Promise<void>;
  close(): void;
  call<M extends keyof Methods>(method: M, params?: Methods[M]["params"]): Promise<Methods[M]["result"]>;
  session(options?: {
    cwd?: string;
    name?: string;
    settings?: SettingsDocument;
    permissionMode?: "prompt" | "open" | "plan" | "none";
    detach?: boolean;
  }): Promise<Session>;
  questions(answer: (question: PermissionRequest) => Answer | Promise<Answer>): Promise<Subscription>;
  violations(hear: (violation: ViolationRecord) => unknown, options?: { sessionId?: string }): Promise<Subscription>;
  settings(key?: string, options?: { sessionId?: string; cwd?: string }): Promise<SettingsGetResult>;
  updateSettings(
    changes: readonly ChangeRecord[],
    options?: { sessionId?: string; cwd?: string; confirm?: boolean; project?: boolean },
  ): Promise<SettingsUpdateResult>;
  settingsChanges(hear: (change: SettingsChangedNotification) => unknown): Promise<Subscription>;
}

export interface Session extends Runner {}
export class Session {
  private constructor();
  readonly id: string;
  readonly cwd: string;
  readonly opened: SessionOpenResult;
  close(): Promise<void>;
  update(options: { settings?: SettingsDocument; changes?: readonly ChangeRecord[]; confirm?: boolean }): Promise<SessionUpdateResult>;
  call<M extends keyof Methods>(method: M, params?: Omit<Methods[M]["params"], "session_id">): Promise<Methods[M]["result"]>;
  violations(hear: (violation: ViolationRecord) => unknown): Promise<Subscription>;
}

export function socketPath(environment?: Record<string, string | undefined>): string;

export class SandboxdError extends Error {
  /** Stable word of the error. */
  readonly slug: string;
  readonly hint: string;
}
export class DaemonNotRunning extends SandboxdError {}
export class DaemonStartFailed extends DaemonNotRunning {}
export class PermissionDenied extends SandboxdError {}
export class WrongVersion extends SandboxdError {}
export class ConnectionLost extends SandboxdError {}
export class DaemonTimeout extends SandboxdError {}
export class RpcError extends SandboxdError {
  readonly number: number;
  readonly data: Record<string, unknown>;
}
export class InvalidCommand extends SandboxdError {}
export class SandboxSetupError extends SandboxdError {}
export class WrapOutdated extends SandboxSetupError {}
export class CommandRefused extends SandboxdError {
  readonly decision: ShouldSandboxResult;
}
export class CommandDenied extends CommandRefused {}
export class ApprovalRequired extends CommandRefused {}
