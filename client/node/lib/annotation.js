// The text of a command beside a block of violations: no tag of the block's name stays readable as one, in whatever
// look-alike letters and with whatever unseen characters in it. As `sandboxd.policy.explain.annotation`.

import { ALIKE, BLOCK_NAME, BRACKETS, PAIRS } from "./tables.js";

const MARK = new RegExp(`[${BRACKETS}]`, "gu");
const NAME = new RegExp(`^(?:${BLOCK_NAME})`, "u");
const SEQUENCE = /(?:\x1b\[|\x9b)[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)/g;
const UNSEEN = /[\s\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Mn}\p{Me}\p{Z}]/u;
const PLAIN = /^[\w@%+=:,./~*-]+$/;
const LONGEST = 200;
const folds = new Map();

/** Escape the beginning of each tag of the block's name. */
export function escapeTags(text) {
  const whole = [...text.replace(SEQUENCE, (found) => " ".repeat([...found].length))].map(folded).join("");
  let at = 0; // in characters, as in `whole`: each folds into one
  let last = 0;
  return text.replace(MARK, (bracket, offset) => {
    at += [...text.slice(last, offset)].length;
    last = offset;
    if (!NAME.test(whole.slice(at + 1))) return bracket;
    return bracket === "<" ? "&lt;" : `&#x${codeOf(bracket)};`;
  });
}

/** Return a violation as one line, in which nothing is read as a tag. */
export function lineOf({ operation, target, rule, hint }) {
  const cut = target.length > LONGEST ? `${target.slice(0, LONGEST)}…` : target;
  const shown = PLAIN.test(cut) ? cut : `"${cut.replaceAll('"', '\\"')}"`;
  const line = `${operation} ${shown}${rule ? `: ${rule}` : ""}${hint ? ` (${hint})` : ""}`.replace(/\s+/g, " ");
  return line.replace(MARK, (bracket) => (bracket === "<" ? "\\x3c" : `\\u${codeOf(bracket)}`));
}

function codeOf(character) {
  return character.codePointAt(0).toString(16).padStart(4, "0");
}

/** Return the small letter that a character reads as, "." for one of no meaning here. */
function folded(character) {
  let found = folds.get(character);
  if (found === undefined) {
    found = fold(character);
    if (folds.size < 10_000) folds.set(character, found);
  }
  return found;
}

function fold(character) {
  if (UNSEEN.test(character)) return " ";
  const plain = character.normalize("NFKD").toLowerCase().normalize("NFKD");
  let seen = [...plain].filter((one) => !UNSEEN.test(one)).join("");
  if (PAIRS[seen]) return PAIRS[seen];
  seen = ALIKE[seen] ?? seen;
  if (/[\p{Pc}\p{Pd}]/u.test(character)) return "_";
  return seen.length === 1 && "sandboxvit/_ ".includes(seen) ? seen : ".";
}
