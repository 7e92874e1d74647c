// Programs of the host that no command of this user can write. An activated virtual environment or `npm run` puts
// directories of a project at the head of PATH, and the project's commands write there. Safe are places that belong to
// root with every directory and link on the way, and the trees of the home directory that every sandbox protects. For
// root itself they must be below a tree of the system.

import { accessSync, constants, lstatSync, readlinkSync, realpathSync, statSync } from "node:fs";
import { userInfo } from "node:os";
import { dirname, isAbsolute, join } from "node:path";
import {
  BUS_NAMES, CODE_NAMES, CODE_PREFIXES, HOME_TREES, SYSTEM_DIRECTORIES, SYSTEM_TREES,
} from "./tables.js";

const OVERFLOW_UID = 65534;
const MOST_LINKS = 40;

/** Return `{path}` of the first program of this name that commands cannot write, else `{refused, why}`. */
export function find(name, searchPath = "") {
  const found = { path: null, refused: "", why: "" };
  const entries = searchPath.split(":").filter(isAbsolute);
  for (const directory of new Set([...SYSTEM_DIRECTORIES, ...entries])) {
    const path = join(directory, name);
    if (!statSync(path, { throwIfNoEntry: false })?.isFile()) continue;
    const why = whyWritable(path) || (can(path, constants.X_OK) ? "" : `${path} is not executable`);
    if (!why) return { path, refused: "", why: "" };
    if (!found.refused) Object.assign(found, { refused: path, why });
  }
  return found;
}

/** Return why commands could have written an absolute path, or "". */
export function whyWritable(path) {
  const trees = homeTrees();
  try {
    for (const [place, state] of placesOn(path)) {
      if (trees.some((tree) => isIn(place, tree) || isIn(tree, place))) continue;
      if (![0, OVERFLOW_UID].includes(state.uid) || (state.uid === OVERFLOW_UID && process.geteuid() === OVERFLOW_UID)) {
        return `${place} does not belong to root`;
      }
      if (state.isSymbolicLink() || state.mode & 0o1000) continue; // their directory or entries decide
      if (state.mode & 0o002 || (process.geteuid() !== 0 && can(place, constants.W_OK))) {
        return `${place} can be written by you`;
      }
    }
  } catch (error) {
    return `${error.path ?? path}: ${error.code ?? error.message}`;
  }
  const allowed = [...SYSTEM_TREES, ...SYSTEM_DIRECTORIES, ...trees];
  const isOfTheSystem = [path, realpathSync(path)].every((one) => allowed.some((tree) => isIn(one, tree)));
  if (process.geteuid() === 0 && !isOfTheSystem) {
    return `${path} is outside the directories of the system, and root's projects may have written it`;
  }
  return "";
}

/** Yield each physical place on an absolute path. */
function* placesOn(path) {
  const parts = (text) => text.split("/").filter((part) => part && part !== ".").reverse();
  const waiting = parts(path);
  let at = "/";
  let links = 0;
  yield [at, lstatSync(at)];
  while (waiting.length) {
    const part = waiting.pop();
    if (part === "..") {
      at = dirname(at);
      continue;
    }
    const place = join(at, part);
    const state = lstatSync(place);
    yield [place, state];
    if (!state.isSymbolicLink()) {
      at = place;
      continue;
    }
    if (++links > MOST_LINKS) throw Object.assign(new Error("too many links"), { code: "ELOOP", path });
    const target = readlinkSync(place);
    if (target.startsWith("/")) at = "/";
    waiting.push(...parts(target));
  }
}

/** Return the protected trees of the home that the user database names: a project can set $HOME. */
function homeTrees() {
  try {
    const home = realpathSync(userInfo().homedir);
    const named = process.env.HOME || home;
    return home === "/" || realpathSync(named) !== home ? [] : HOME_TREES.map((tree) => join(home, tree));
  } catch {
    return [];
  }
}

function isIn(path, directory) {
  return path === directory || path.startsWith(`${directory.replace(/\/+$/, "")}/`);
}

function can(path, mode) {
  try {
    accessSync(path, mode);
    return true;
  } catch {
    return false;
  }
}

/** Return the environment without variables that load code, or lead a program to a file that does. */
export function withoutCode(environment) {
  const loads = ([name, value]) =>
    CODE_NAMES.includes(name) ||
    CODE_PREFIXES.some((prefix) => name.startsWith(prefix)) ||
    (name === "TZ" && (value.replace(/^:+/, "").startsWith("/") || value.split("/").includes(".."))) ||
    (BUS_NAMES.includes(name) && value.includes("unixexec:"));
  return Object.fromEntries(Object.entries(environment).filter((entry) => !loads(entry)));
}
