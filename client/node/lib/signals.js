// Signals to a sandboxed command from outside. The spawned process is bubblewrap, which passes no signals on. The target
// is process 1 of the sandbox, its child, which passes them on to the command. Before that process exists or handles the
// signal no command runs, and the spawned process gets it. Node has no descriptors of processes: between the look and
// the signal process 1 cannot be reaped while its parent waits for nothing else.

import { readFileSync, readdirSync } from "node:fs";
import { constants } from "node:os";

const { SIGKILL, SIGSTOP, SIGCONT } = constants.signals;

/** Signal the command below the spawned process `pid`. `group`: it leads a process group. */
export function signalCommand(pid, number, group) {
  const init = findInit(pid, number);
  if (init === null) send(group ? -pid : pid, number);
  else if (number === SIGSTOP || number === SIGCONT) {
    for (const child of children(init)) sendToChild(child, init, number);
  } else sendToChild(init, pid, number);
}

function findInit(pid, number) {
  for (const child of children(pid)) {
    const status = statusOf(child);
    const names = status?.NSpid ?? [];
    if (names.length > 1 && names.at(-1) === "1") {
      const has = (mask) => (BigInt(`0x${status[mask][0]}`) >> BigInt(number - 1)) & 1n;
      return [SIGKILL, SIGSTOP, SIGCONT].includes(number) || has("SigCgt") || has("SigBlk") ? child : null;
    }
  }
  return null;
}

function sendToChild(pid, parent, number) {
  if (statusOf(pid)?.PPid?.[0] === String(parent)) send(pid, number);
}

function send(pid, number) {
  try {
    process.kill(pid, number);
  } catch (error) {
    if (error.code !== "ESRCH" && error.code !== "EPERM") throw error;
  }
}

function statusOf(pid) {
  const text = read(`/proc/${pid}/status`);
  return text === null ? null : Object.fromEntries(text.split("\n").map((line) => {
    const [name, rest = ""] = line.split(/:(.*)/s);
    return [name, rest.trim().split(/\s+/)];
  }));
}

function children(pid) {
  const text = read(`/proc/${pid}/task/${pid}/children`);
  if (text !== null) return text.split(" ").filter(Boolean).map(Number);
  try {
    return readdirSync("/proc").filter((name) => /^\d+$/.test(name) && statusOf(name)?.PPid?.[0] === String(pid)).map(Number);
  } catch {
    return [];
  }
}

function read(path) {
  try {
    return readFileSync(path, "latin1");
  } catch {
    return null;
  }
}
