// Path of the daemon's socket, and the check of its directory. The owner of the directory decides which process answers
// there and so which argv the client runs: it must be no symbolic link, belong to this user and be closed to others.

import { lstatSync } from "node:fs";
import { dirname, isAbsolute } from "node:path";
import { PermissionDenied } from "./errors.js";
import { SOCKET_NAME } from "./tables.js";

const LONGEST_OF_MACOS = 103;
const LONGEST = process.platform === "darwin" ? LONGEST_OF_MACOS : 107;

/** Return the path of the socket, without I/O. */
export function socketPath(environment = process.env, platform = process.platform) {
  if (environment.SANDBOXD_SOCKET) return checkPath(environment.SANDBOXD_SOCKET, "$SANDBOXD_SOCKET");
  const runtime = environment.XDG_RUNTIME_DIR;
  if (runtime?.startsWith("/")) {
    return checkPath(`${runtime.replace(/\/+$/, "")}/sandboxd/${SOCKET_NAME}`, "$XDG_RUNTIME_DIR");
  }
  const home = environment.HOME ?? "";
  if (platform === "darwin" && home.startsWith("/")) {
    const path = `${home.replace(/\/+$/, "")}/Library/Application Support/sandboxd/${SOCKET_NAME}`;
    if (Buffer.byteLength(path) <= LONGEST_OF_MACOS) return path;
  }
  return checkPath(`/tmp/sandboxd-${process.geteuid()}/${SOCKET_NAME}`);
}

/** Return `path` if it can name a Unix socket. */
export function checkPath(path, source = "the socket path") {
  const hint = "give an absolute path, such as /run/user/1000/sandboxd/sandboxd.sock";
  if (path.includes("\0")) throw new PermissionDenied("socket_path_invalid", `${source} contains a NUL character`, hint);
  if (!isAbsolute(path)) throw new PermissionDenied("socket_path_invalid", `${source} is not absolute: ${path}`, hint);
  const length = Buffer.byteLength(path);
  if (length > LONGEST) {
    throw new PermissionDenied(
      "socket_path_invalid",
      `${source} gives a socket path of ${length} bytes, more than ${LONGEST}: ${path}`,
      "set SANDBOXD_SOCKET to a shorter path",
    );
  }
  return path;
}

/** Return whether a socket of this user is at `path`; throw where it or its directory is unsafe. */
export function checkPlace(path, uid = process.geteuid()) {
  const directory = dirname(path);
  const refuse = (slug, message, hint) => {
    throw new PermissionDenied(slug, message, hint);
  };
  const there = status(path);
  if (there && !there.isSocket()) {
    refuse("socket_path_occupied", `${path} is not a socket`, "move it away, or set SANDBOXD_SOCKET to another path");
  }
  const above = status(directory);
  if (!above) return false;
  if (!above.isDirectory()) {
    const kind = above.isSymbolicLink() ? "a symbolic link" : "not a directory";
    refuse("directory_unusable", `${directory} is ${kind}`, "remove it; sandboxd creates the directory itself");
  }
  if (above.uid !== uid) {
    refuse(
      "directory_foreign",
      `${directory} belongs to uid ${above.uid}, not to you (uid ${uid}): its socket cannot be trusted`,
      "set XDG_RUNTIME_DIR to your own runtime directory, or set SANDBOXD_SOCKET",
    );
  }
  if (above.mode & 0o077) {
    const mode = (above.mode & 0o7777).toString(8).padStart(4, "0");
    refuse(
      "directory_not_private",
      `${directory} can be used by other users (mode ${mode})`,
      "set SANDBOXD_SOCKET to a path in a private directory (chmod 700)",
    );
  }
  if (there && there.uid !== uid) {
    const hint = "remove it, or set SANDBOXD_SOCKET to another path";
    refuse("directory_foreign", `${path} belongs to uid ${there.uid}, not to you (uid ${uid})`, hint);
  }
  return there !== null;
}

function status(path) {
  try {
    return lstatSync(path);
  } catch (error) {
    if (error.code === "ENOENT" || error.code === "ENOTDIR") return null;
    throw new PermissionDenied(
      "directory_unusable",
      `cannot read the attributes of ${path}: ${error.code}`,
      "make the directories above it searchable, or set SANDBOXD_SOCKET to another path",
    );
  }
}
