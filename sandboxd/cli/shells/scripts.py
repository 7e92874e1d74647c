"""Completions of bash, zsh and fish. Pure: commands with their tables in, the text of a script out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sandboxd.cli.arguments import Help, Option

Command = tuple[str, str, Help]
"""Name, summary, and table of a command."""
_TOP = (("--help", "show this text"), ("--version", "print the version"))
_FILES = ("FILE", "PATH")
_NOTE = "# Made from the option tables of sandboxd by: sandboxd completion "


def bash(commands: Sequence[Command]) -> str:
    names = " ".join([name for name, _, _ in commands] + [option for option, _ in _TOP])
    cases = ""
    for name, _, help in commands:
        cases += f"    {name})\n      options={_quoted(' '.join(option.name for option in help.options))}\n"
        words = [word for word in help.words if word.islower()]
        if words or "PATH" in help.words:
            cases += f"      words={_quoted(' '.join(words))} paths={'yes' if 'PATH' in help.words else ''}\n"
        if valued := [option.name for option in help.options if option.value]:
            cases += f"      valued={_quoted(' '.join(valued))}\n"
        cases += "      ;;\n"
    values = {option.name: _bash_value(option) for _, _, help in commands for option in help.options if option.value}
    cases_of_values = "".join(f"    {name}) {value} ;;\n" for name, value in sorted(values.items()) if value)
    return f"""{_NOTE}bash
_sandboxd() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} options='' words='' valued='' paths='' at word
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W {_quoted(names)} -- "$cur"))
    return
  fi
  case $command in
{cases}    *) return ;;
  esac
  for ((at = 2; at < COMP_CWORD; at++)); do # the first word that is neither an option nor the value of one
    word=${{COMP_WORDS[at]}}
    [[ $word == -- ]] && {{ ((at++)); break; }}
    [[ $word == -* ]] || break
    [[ " $valued " == *" $word "* ]] && ((at++))
  done
  if ((at > COMP_CWORD)); then # the value of the option before it
    case ${{COMP_WORDS[COMP_CWORD - 1]}} in
{cases_of_values}    esac
  elif [[ $command == run && ($at -lt $COMP_CWORD || $cur != -*) ]]; then # the command that is to be run
    if declare -F _command_offset >/dev/null; then
      _command_offset "$at"
    elif ((at == COMP_CWORD)); then
      COMPREPLY=($(compgen -c -- "$cur"))
    else
      compopt -o default
    fi
  elif [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
  elif ((at == COMP_CWORD)) && [[ $words ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
  elif [[ $paths || $words ]]; then
    compopt -o default
  fi
}}
complete -F _sandboxd sandboxd
"""


def _bash_value(option: Option) -> str:
    if option.only:
        return f'COMPREPLY=($(compgen -W {_quoted(" ".join(option.only))} -- "$cur"))'
    if option.value == "DIR":
        return 'compopt -o filenames; COMPREPLY=($(compgen -d -- "$cur"))'
    return "compopt -o default" if option.value in _FILES else ""


def zsh(commands: Sequence[Command]) -> str:
    described = "".join(f"    {_quoted(f'{name}:{summary}')}\n" for name, summary, _ in commands)
    cases = ""
    for name, _, help in commands:
        lines = [_zsh_option(option) for option in help.options]
        if "COMMAND" in help.words:
            lines += ["'(-):command: _command_names -e'", "'*::arguments: _normal'"]
        elif "PATH" in help.words:
            lines.append("'*:path:_files'")
        elif help.words:
            lines += [_quoted(f"1:what:({' '.join(help.words)})"), "'*:target:_files'"]
        arguments = " \\\n            ".join(lines)
        cases += f"        {name})\n          _arguments -S {arguments}\n          ;;\n"
    top = " ".join(_quoted(f"(- *){name}[{text}]") for name, text in _TOP)
    return f"""#compdef sandboxd
{_NOTE}zsh
_sandboxd() {{
  local curcontext="$curcontext" state state_descr line
  typeset -A opt_args
  local -a sandboxd_commands
  sandboxd_commands=(
{described}  )
  _arguments -C {top} '1:command:->command' '*::argument:->arguments' && return
  case $state in
    command) _describe -t commands 'command of sandboxd' sandboxd_commands ;;
    arguments)
      case $words[1] in
{cases}      esac
      ;;
  esac
}}
if [ "$funcstack[1]" = _sandboxd ]; then _sandboxd "$@"; else compdef _sandboxd sandboxd; fi
"""


def _zsh_option(option: Option) -> str:
    text = "".join(f"\\{c}" if c in "[]:\\" else c for c in option.text)
    several = "*" if option.many else ""
    if not option.value:
        return _quoted(f"{several}{option.name}[{text}]")
    what = f"({' '.join(option.only)})" if option.only else {"DIR": "_files -/"}.get(option.value, " ")
    action = "_files" if option.value in _FILES else what
    equals = "=" if option.name.startswith("--") else ""
    return _quoted(f"{several}{option.name}{equals}[{text}]:{option.value}:{action}")


def fish(commands: Sequence[Command]) -> str:
    lines = [
        f"{_NOTE}fish",
        "function __sandboxd_is",
        "  set -l words (commandline -opc)",
        "  test (count $words) -ge 2; and test $words[2] = $argv[1]",
        "end",
        "function __sandboxd_is_alone",
        "  test (count (commandline -opc)) -eq 1",
        "end",
        "complete -c sandboxd -f",
    ]
    alone = "complete -c sandboxd -n __sandboxd_is_alone"
    lines += [f"{alone} -l {name[2:]} -d {_fish(text)}" for name, text in _TOP]
    for name, summary, help in commands:
        lines.append(f"{alone} -a {name} -d {_fish(summary)}")
        here = f"complete -c sandboxd -n '__sandboxd_is {name}'"
        for option in help.options:
            flag = f"-l {option.name[2:]}" if option.name.startswith("--") else f"-s {option.name[1:]}"
            lines.append(f"{here} {flag} -d {_fish(option.text)}{_fish_value(option)}")
        if words := " ".join(word for word in help.words if word.islower()):
            lines.append(f"{here} -a {_fish(words)}")
        if "COMMAND" in help.words:
            lines.append(f"{here} -x -a '(__fish_complete_subcommand --fcs-skip=2)'")
        elif help.words:
            lines.append(f"{here} -F")
    return "\n".join(lines) + "\n"


def _fish_value(option: Option) -> str:
    if not option.value:
        return ""
    if option.only:
        return f" -x -a {_fish(' '.join(option.only))}"
    if option.value == "DIR":
        return " -x -a '(__fish_complete_directories)'"
    return " -r -F" if option.value in _FILES else " -x"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
