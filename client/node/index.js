// sandboxd-client: run shell commands in the sandbox of sandboxd.

export { Client, Session } from "./lib/client.js";
export * from "./lib/errors.js";
export { socketPath } from "./lib/location.js";
export { SandboxedProcess } from "./lib/process.js";
