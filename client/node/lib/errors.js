// Errors of the client, each with a stable `slug`, a message and a `hint`.

export class SandboxdError extends Error {
  constructor(slug, message, hint = "") {
    super(hint ? `${message} (${hint})` : message);
    this.name = new.target.name;
    this.slug = slug;
    this.hint = hint;
  }
}

/** No daemon answers at the socket, and none was to be started. */
export class DaemonNotRunning extends SandboxdError {
  constructor(path, message = `sandboxd is not running: nothing answers at ${path}`, hint = "start it with: sandboxd start") {
    super("daemon_not_running", message, hint);
    this.path = path;
  }
}

/** A started daemon did not come up; the message is its own. */
export class DaemonStartFailed extends DaemonNotRunning {}

/** An unsafe socket or directory, or a daemon that refuses this caller. */
export class PermissionDenied extends SandboxdError {}

/** Client and daemon do not understand each other. */
export class WrongVersion extends SandboxdError {
  constructor(message, hint = "restart the daemon with: sandboxd restart") {
    super("wrong_version", message, hint);
  }
}

/** The connection ended before the answer, or the daemon sent no valid one. */
export class ConnectionLost extends SandboxdError {
  constructor(message = "the connection to sandboxd ended before it answered", sent = true) {
    super("connection_lost", message, "check the daemon with: sandboxd status, sandboxd service status");
    this.sent = sent; // false: the daemon never got the request
  }
}

/** No answer in time. The daemon may still act on the request. */
export class DaemonTimeout extends SandboxdError {
  constructor(method, milliseconds) {
    super("daemon_timeout", `sandboxd did not answer ${method} within ${milliseconds / 1000} s`);
  }
}

/** An error reply of the daemon, with JSON-RPC `number` and further `data`. */
export class RpcError extends SandboxdError {
  constructor(slug, message, hint, number, data) {
    super(slug, message, hint);
    this.number = number;
    this.data = data;
  }
}

/** A command that cannot be sent. */
export class InvalidCommand extends SandboxdError {}

/** The sandbox could not be set up, and no command ran. */
export class SandboxSetupError extends SandboxdError {
  constructor(message, hint = "", slug = "sandbox_setup_failed") {
    super(slug, message, hint);
  }
}

/** No command ran: files or settings changed after the wrap. */
export class WrapOutdated extends SandboxSetupError {}

/** `decide`: the `decision` of `should_sandbox` was to run nothing. */
export class CommandRefused extends SandboxdError {
  constructor(slug, message, hint, decision) {
    super(slug, message, hint);
    this.decision = decision;
  }
}

/** A rule or a user denies the command. */
export class CommandDenied extends CommandRefused {}

/** The command needs an approval, and no client answers prompts. */
export class ApprovalRequired extends CommandRefused {}

const DENIED = -32001;
const METHOD_NOT_FOUND = -32601;

/** Return the error for the `error` member of a reply. */
export function errorOfReply(error) {
  if (error === null || typeof error !== "object") return new ConnectionLost("sandboxd sent a malformed error");
  const { slug = "", hint = "", ...rest } = error.data ?? {};
  const message = String(error.message ?? "");
  if (error.code === DENIED) return new PermissionDenied(slug || "not_permitted", message, hint);
  if (slug === "wrong_version") return new WrongVersion(message, hint);
  if (error.code === METHOD_NOT_FOUND) return new WrongVersion(`the running sandboxd is older than this client: ${message}`);
  return new RpcError(slug || "internal_error", message, hint, error.code, rest);
}
