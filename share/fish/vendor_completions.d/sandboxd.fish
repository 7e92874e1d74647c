# Made from the option tables of sandboxd by: sandboxd completion fish
function __sandboxd_is
  set -l words (commandline -opc)
  test (count $words) -ge 2; and test $words[2] = $argv[1]
end
function __sandboxd_is_alone
  test (count (commandline -opc)) -eq 1
end
complete -c sandboxd -f
complete -c sandboxd -n __sandboxd_is_alone -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -l version -d 'print the version'
complete -c sandboxd -n __sandboxd_is_alone -a run -d 'run one command in the sandbox'
complete -c sandboxd -n '__sandboxd_is run' -s c -d 'run this line in your shell ($SHELL: bash, zsh, fish or dash)' -x
complete -c sandboxd -n '__sandboxd_is run' -l shell -d 'run the line of -c in this shell: a path, or a name in PATH' -x
complete -c sandboxd -n '__sandboxd_is run' -l login -d 'let the shell of -c read the start-up files of a login'
complete -c sandboxd -n '__sandboxd_is run' -l cwd -d 'run in this directory' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is run' -l allow-domain -d 'let the command connect to this host, besides those of the settings' -x
complete -c sandboxd -n '__sandboxd_is run' -l allow-write -d 'let the command write this path, besides those of the settings' -r -F
complete -c sandboxd -n '__sandboxd_is run' -l allow-read -d 'let the command read this path although the settings deny it' -r -F
complete -c sandboxd -n '__sandboxd_is run' -l publish -d 'let this machine reach a server in the sandbox: [HOST:]PORT[:INNER], or SOCKET:INNER for you alone' -x
complete -c sandboxd -n '__sandboxd_is run' -l settings -d 'add settings for this command: the path of a file, a NAME of --learn, or an object as JSON' -r -F
complete -c sandboxd -n '__sandboxd_is run' -l profile -d 'add what this agent needs: hosts, directories, variables (see profile list)' -x
complete -c sandboxd -n '__sandboxd_is run' -l memory -d 'limit the memory of the command: 512M, 2G' -x
complete -c sandboxd -n '__sandboxd_is run' -l cpus -d 'limit the processors of the command: 1.5' -x
complete -c sandboxd -n '__sandboxd_is run' -l timeout -d 'end the command after this time: 90s, 10m, 1h30m' -x
complete -c sandboxd -n '__sandboxd_is run' -l ignore-unknown-restrictions -d 'run the command although a restriction in the settings is unknown and not enforced'
complete -c sandboxd -n '__sandboxd_is run' -l session -d 'run in this session: its ID or NAME, auto for that of the agent that starts this, or auto:KEY (default: $SANDBOXD_SESSION)' -x
complete -c sandboxd -n '__sandboxd_is run' -l command-id -d 'list what is blocked under this name of the command' -x
complete -c sandboxd -n '__sandboxd_is run' -l decide -d 'decide first whether the command may run, and whether in the sandbox, as for an agent\'s tool'
complete -c sandboxd -n '__sandboxd_is run' -l disable-sandbox -d 'request to run the command without a sandbox; a user must confirm it'
complete -c sandboxd -n '__sandboxd_is run' -l annotate -d 'hold standard error back until the end, and put a block of what was blocked below it'
complete -c sandboxd -n '__sandboxd_is run' -l relay-stdio -d 'pass pipes in place of network sockets as standard streams, and copy the bytes'
complete -c sandboxd -n '__sandboxd_is run' -l show-violations -d 'list afterwards each access that was blocked'
complete -c sandboxd -n '__sandboxd_is run' -l quiet -d 'do not tell what was blocked, as is done after a failed command and on a terminal'
complete -c sandboxd -n '__sandboxd_is run' -l ask -d 'ask in this terminal about hosts that no rule allows, as prompts does in another one'
complete -c sandboxd -n '__sandboxd_is run' -l learn -d 'write the settings that the command needed: to this path, or under a NAME for --settings NAME' -r -F
complete -c sandboxd -n '__sandboxd_is run' -l grace -d 'seconds between the first signal to end and SIGKILL (5)' -x
complete -c sandboxd -n '__sandboxd_is run' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is run' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is run' -x -a '(__fish_complete_subcommand --fcs-skip=2)'
complete -c sandboxd -n __sandboxd_is_alone -a session -d 'start, list and end sessions, whose commands share /tmp, localhost and grants'
complete -c sandboxd -n '__sandboxd_is session' -l name -d 'start, shell: the name of the new session' -x
complete -c sandboxd -n '__sandboxd_is session' -l cwd -d 'start, shell: the directory of its project' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is session' -l settings -d 'start, shell: settings of the new session: a path, or an object as JSON' -r -F
complete -c sandboxd -n '__sandboxd_is session' -l permission-mode -d 'start, shell: prompt (the default), open, plan (write temporary files only) or none' -x -a 'prompt open plan none'
complete -c sandboxd -n '__sandboxd_is session' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is session' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is session' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is session' -a 'start list end shell'
complete -c sandboxd -n '__sandboxd_is session' -F
complete -c sandboxd -n __sandboxd_is_alone -a ui -d 'show all of it in this terminal, and decide'
complete -c sandboxd -n '__sandboxd_is ui' -l cwd -d 'show the policy of this directory (default: the current one)' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is ui' -l remote -d 'those of this machine, over ssh: HOST, USER@HOST or a name of ssh\'s' -x
complete -c sandboxd -n '__sandboxd_is ui' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is ui' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a ps -d 'list the commands that run, with ports, processor time and memory'
complete -c sandboxd -n '__sandboxd_is ps' -l session -d 'list those of this session only' -x
complete -c sandboxd -n '__sandboxd_is ps' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is ps' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is ps' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a kill -d 'end running commands'
complete -c sandboxd -n '__sandboxd_is kill' -l grace -d 'seconds between SIGTERM and SIGKILL (5)' -x
complete -c sandboxd -n '__sandboxd_is kill' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is kill' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a status -d 'show the running daemon, its settings, sessions and layers'
complete -c sandboxd -n '__sandboxd_is status' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is status' -l line -d 'print one short line: what was blocked in the last seconds, and open questions'
complete -c sandboxd -n '__sandboxd_is status' -l watch -d '--line: keep running, and print the line at each change'
complete -c sandboxd -n '__sandboxd_is status' -l last -d '--line: the seconds for which what was blocked is counted (5)' -x
complete -c sandboxd -n '__sandboxd_is status' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a start -d 'start the daemon, unless it runs'
complete -c sandboxd -n '__sandboxd_is start' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a stop -d 'end the daemon and everything it runs'
complete -c sandboxd -n '__sandboxd_is stop' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a restart -d 'replace the daemon; running commands go on'
complete -c sandboxd -n '__sandboxd_is restart' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a check -d 'check what this host can enforce, with a remedy for each failing step'
complete -c sandboxd -n '__sandboxd_is check' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is check' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is check' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a explain -d 'show a decision on a path, host, command or socket, with its rule and file'
complete -c sandboxd -n '__sandboxd_is explain' -l write -d 'ask about writing the path, not reading'
complete -c sandboxd -n '__sandboxd_is explain' -l cwd -d 'use the settings that apply in this directory' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is explain' -l session -d 'use the settings of this session' -x
complete -c sandboxd -n '__sandboxd_is explain' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is explain' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is explain' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is explain' -a 'path host command socket'
complete -c sandboxd -n '__sandboxd_is explain' -F
complete -c sandboxd -n __sandboxd_is_alone -a describe -d 'print the restrictions in words, for the prompt of a model'
complete -c sandboxd -n '__sandboxd_is describe' -l exception -d 'name a command that cannot work inside, and why' -x
complete -c sandboxd -n '__sandboxd_is describe' -l flag-name -d 'the name of the flag by which the model\'s tool runs a command outside' -x
complete -c sandboxd -n '__sandboxd_is describe' -l style -d 'strict: the tool has no such flag' -x -a 'open strict'
complete -c sandboxd -n '__sandboxd_is describe' -l no-examples -d 'leave the examples of calls out'
complete -c sandboxd -n '__sandboxd_is describe' -l cwd -d 'use the settings that apply in this directory' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is describe' -l session -d 'use the settings of this session' -x
complete -c sandboxd -n '__sandboxd_is describe' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is describe' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is describe' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a settings -d 'show, check and change settings'
complete -c sandboxd -n '__sandboxd_is settings' -l changed -d 'show: only what some source sets, not the defaults'
complete -c sandboxd -n '__sandboxd_is settings' -l as -d 'lint: check FILE as this source' -x -a 'managed flag local user project'
complete -c sandboxd -n '__sandboxd_is settings' -l cwd -d 'use the settings that apply in this directory' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is settings' -l session -d 'use the settings of this session' -x
complete -c sandboxd -n '__sandboxd_is settings' -l yes -d 'confirm a wide rule without a question'
complete -c sandboxd -n '__sandboxd_is settings' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is settings' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is settings' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is settings' -a 'show lint set unset add remove schema'
complete -c sandboxd -n '__sandboxd_is settings' -F
complete -c sandboxd -n __sandboxd_is_alone -a exclude -d 'choose commands that run outside the sandbox'
complete -c sandboxd -n '__sandboxd_is exclude' -l cwd -d 'use the settings that apply in this directory' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is exclude' -l project -d 'change the settings of the project in this directory (--cwd), not your own'
complete -c sandboxd -n '__sandboxd_is exclude' -l session -d 'change one session only, until it ends: its ID or NAME' -x
complete -c sandboxd -n '__sandboxd_is exclude' -l yes -d 'confirm a wide rule without a question'
complete -c sandboxd -n '__sandboxd_is exclude' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is exclude' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is exclude' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is exclude' -a 'add remove list'
complete -c sandboxd -n '__sandboxd_is exclude' -F
complete -c sandboxd -n __sandboxd_is_alone -a allow -d 'let commands write a path, or reach a host'
complete -c sandboxd -n '__sandboxd_is allow' -l read -d 'allow reading inside a denied directory, not writing'
complete -c sandboxd -n '__sandboxd_is allow' -l remove -d 'remove the rule'
complete -c sandboxd -n '__sandboxd_is allow' -l project -d 'change the settings of the project in this directory (--cwd), not your own'
complete -c sandboxd -n '__sandboxd_is allow' -l session -d 'change one session only, until it ends: its ID or NAME' -x
complete -c sandboxd -n '__sandboxd_is allow' -l cwd -d 'resolve a relative path in this directory' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is allow' -l yes -d 'confirm a wide rule without a question'
complete -c sandboxd -n '__sandboxd_is allow' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is allow' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is allow' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is allow' -a 'path domain socket preset tool'
complete -c sandboxd -n '__sandboxd_is allow' -F
complete -c sandboxd -n __sandboxd_is_alone -a deny -d 'close a path, or a host'
complete -c sandboxd -n '__sandboxd_is deny' -l remove -d 'remove the rule'
complete -c sandboxd -n '__sandboxd_is deny' -l project -d 'change the settings of the project in this directory (--cwd), not your own'
complete -c sandboxd -n '__sandboxd_is deny' -l session -d 'change one session only, until it ends: its ID or NAME' -x
complete -c sandboxd -n '__sandboxd_is deny' -l cwd -d 'resolve a relative path in this directory' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is deny' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is deny' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is deny' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is deny' -a 'path domain preset'
complete -c sandboxd -n '__sandboxd_is deny' -F
complete -c sandboxd -n __sandboxd_is_alone -a profile -d 'show what whole agents need, for run --profile'
complete -c sandboxd -n '__sandboxd_is profile' -l cwd -d 'use the settings that apply in this directory' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is profile' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is profile' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is profile' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is profile' -a 'list show lint'
complete -c sandboxd -n '__sandboxd_is profile' -F
complete -c sandboxd -n __sandboxd_is_alone -a import -d 'convert settings of srt, Codex, fence or Claude Code'
complete -c sandboxd -n '__sandboxd_is import' -l from -d 'the program of the settings (default: by name and keys)' -x -a 'srt codex fence claude'
complete -c sandboxd -n '__sandboxd_is import' -l to -d 'write this new file instead of printing, or a NAME for run --settings NAME' -r -F
complete -c sandboxd -n '__sandboxd_is import' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is import' -F
complete -c sandboxd -n __sandboxd_is_alone -a export -d 'print the policy as settings of srt'
complete -c sandboxd -n '__sandboxd_is export' -l srt -d 'the form of sandbox-runtime'
complete -c sandboxd -n '__sandboxd_is export' -l cwd -d 'use the settings that apply in this directory' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is export' -l session -d 'use the settings of this session' -x
complete -c sandboxd -n '__sandboxd_is export' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is export' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a credential -d 'give the daemon the values of credentials'
complete -c sandboxd -n '__sandboxd_is credential' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is credential' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is credential' -a 'set remove list'
complete -c sandboxd -n '__sandboxd_is credential' -F
complete -c sandboxd -n __sandboxd_is_alone -a trust -d 'let the settings of a project widen, after a review'
complete -c sandboxd -n '__sandboxd_is trust' -l yes -d 'trust without a question, for scripts'
complete -c sandboxd -n '__sandboxd_is trust' -l list -d 'list what is trusted'
complete -c sandboxd -n '__sandboxd_is trust' -l remove -d 'revoke the trust'
complete -c sandboxd -n '__sandboxd_is trust' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is trust' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is trust' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is trust' -F
complete -c sandboxd -n __sandboxd_is_alone -a enable -d 'switch the sandbox on'
complete -c sandboxd -n '__sandboxd_is enable' -l cwd -d 'use the settings that apply in this directory' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is enable' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is enable' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is enable' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a disable -d 'switch the sandbox off'
complete -c sandboxd -n '__sandboxd_is disable' -l yes -d 'confirm a wide rule without a question'
complete -c sandboxd -n '__sandboxd_is disable' -l cwd -d 'use the settings that apply in this directory' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is disable' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is disable' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is disable' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a violations -d 'list what was blocked, also as it happens'
complete -c sandboxd -n '__sandboxd_is violations' -l follow -d 'keep running, and print violations as they happen (in a pipe: one JSON text a line)'
complete -c sandboxd -n '__sandboxd_is violations' -l session -d 'list those of this session only' -x
complete -c sandboxd -n '__sandboxd_is violations' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is violations' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is violations' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a prompts -d 'answer permission questions in this terminal'
complete -c sandboxd -n '__sandboxd_is prompts' -l remote -d 'those of this machine, over ssh: HOST, USER@HOST or a name of ssh\'s' -x
complete -c sandboxd -n '__sandboxd_is prompts' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is prompts' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a web -d 'serve a page that shows what happens and takes answers'
complete -c sandboxd -n '__sandboxd_is web' -l open -d 'open the link in a browser'
complete -c sandboxd -n '__sandboxd_is web' -l port -d 'the port (default: one that is free)' -x
complete -c sandboxd -n '__sandboxd_is web' -l listen -d 'an address of this machine for other devices, with TLS (127.0.0.1)' -x
complete -c sandboxd -n '__sandboxd_is web' -l certificate -d 'the certificate for TLS, as PEM (default: one is made)' -r -F
complete -c sandboxd -n '__sandboxd_is web' -l key -d 'the key of the certificate, as PEM' -r -F
complete -c sandboxd -n '__sandboxd_is web' -l host -d 'another name of the page, as a forwarded port has it: NAME:PORT' -x
complete -c sandboxd -n '__sandboxd_is web' -l role -d 'what the link, device or program may do (administer; pair, token: watch)' -x -a 'watch answer administer'
complete -c sandboxd -n '__sandboxd_is web' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is web' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is web' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is web' -a 'sessions revoke pair token'
complete -c sandboxd -n '__sandboxd_is web' -F
complete -c sandboxd -n __sandboxd_is_alone -a audit -d 'show and verify the audit log'
complete -c sandboxd -n '__sandboxd_is audit' -l otlp -d 'send: the collector, such as http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_HEADERS adds headers' -x
complete -c sandboxd -n '__sandboxd_is audit' -l once -d 'send: end when everything has been sent'
complete -c sandboxd -n '__sandboxd_is audit' -l since -d 'show lines from this time on: 2026-01-31, 2026-01-31T08:00, or 30m, 12h, 7d ago' -x
complete -c sandboxd -n '__sandboxd_is audit' -l command-id -d 'show lines of this command only' -x
complete -c sandboxd -n '__sandboxd_is audit' -l kind -d 'show lines of this kind: run, ended, violation, connection, answer, settings, …' -x
complete -c sandboxd -n '__sandboxd_is audit' -l file -d 'read this file instead of the log that the settings name' -r -F
complete -c sandboxd -n '__sandboxd_is audit' -l json -d 'print JSON'
complete -c sandboxd -n '__sandboxd_is audit' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is audit' -a 'show verify send'
complete -c sandboxd -n '__sandboxd_is audit' -F
complete -c sandboxd -n __sandboxd_is_alone -a metrics -d 'print metrics of the daemon, in the text format of Prometheus'
complete -c sandboxd -n '__sandboxd_is metrics' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a logs -d 'show the log of the daemon, also as it is written'
complete -c sandboxd -n '__sandboxd_is logs' -s f -d 'go on with what is logged from now on'
complete -c sandboxd -n '__sandboxd_is logs' -l follow -d 'the same as -f'
complete -c sandboxd -n '__sandboxd_is logs' -l json -d 'print the lines of the file as they are: JSON'
complete -c sandboxd -n '__sandboxd_is logs' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a serve -d 'run the daemon in the foreground'
complete -c sandboxd -n '__sandboxd_is serve' -l socket -d 'listen at this socket' -r -F
complete -c sandboxd -n '__sandboxd_is serve' -l settings -d 'add a settings file that only managed settings overrule' -r -F
complete -c sandboxd -n '__sandboxd_is serve' -l log-format -d 'log as console (default on a terminal), journal (default under systemd) or json' -x -a 'console json journal'
complete -c sandboxd -n '__sandboxd_is serve' -l idle-exit -d 'end after so many seconds without use' -x
complete -c sandboxd -n '__sandboxd_is serve' -l resolve -d 'pin a host name to an address' -x
complete -c sandboxd -n '__sandboxd_is serve' -l help -d 'show this text'
complete -c sandboxd -n __sandboxd_is_alone -a hook -d 'put the shell commands of an agent into its sandbox'
complete -c sandboxd -n '__sandboxd_is hook' -l project -d 'install, uninstall: only for the project in this directory, on this machine'
complete -c sandboxd -n '__sandboxd_is hook' -l cwd -d 'the directory of --project' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is hook' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is hook' -a 'install uninstall status run'
complete -c sandboxd -n '__sandboxd_is hook' -F
complete -c sandboxd -n __sandboxd_is_alone -a mcp -d 'serve tools that run commands in the sandbox to MCP clients'
complete -c sandboxd -n '__sandboxd_is mcp' -l wrap -d 'run another MCP server, which follows, in the sandbox'
complete -c sandboxd -n '__sandboxd_is mcp' -l cwd -d 'the directory of the project (default: the current one)' -x -a '(__fish_complete_directories)'
complete -c sandboxd -n '__sandboxd_is mcp' -l allow-domain -d '--wrap: let the server connect to this host' -x
complete -c sandboxd -n '__sandboxd_is mcp' -l allow-write -d '--wrap: let the server write this path' -r -F
complete -c sandboxd -n '__sandboxd_is mcp' -l allow-read -d '--wrap: let the server read this path although the settings deny it' -r -F
complete -c sandboxd -n '__sandboxd_is mcp' -l settings -d '--wrap: add a settings file: a path, or a NAME of run --learn' -r -F
complete -c sandboxd -n '__sandboxd_is mcp' -l output-limit -d 'characters of one output; the middle of a longer one is left out (30000)' -x
complete -c sandboxd -n '__sandboxd_is mcp' -l no-autostart -d 'fail when no daemon answers, instead of starting one'
complete -c sandboxd -n '__sandboxd_is mcp' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is mcp' -x -a '(__fish_complete_subcommand --fcs-skip=2)'
complete -c sandboxd -n __sandboxd_is_alone -a service -d 'let the system start the daemon'
complete -c sandboxd -n '__sandboxd_is service' -l now -d 'install: start the daemon now, not only at the next login'
complete -c sandboxd -n '__sandboxd_is service' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is service' -a 'install uninstall status'
complete -c sandboxd -n '__sandboxd_is service' -F
complete -c sandboxd -n __sandboxd_is_alone -a completion -d 'print the completions of a shell'
complete -c sandboxd -n '__sandboxd_is completion' -l help -d 'show this text'
complete -c sandboxd -n '__sandboxd_is completion' -a 'bash zsh fish'
complete -c sandboxd -n '__sandboxd_is completion' -F
