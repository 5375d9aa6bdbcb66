# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_edge_deploy_global_optspecs
    string join \n log= log-json h/help V/version
end

function __fish_edge_deploy_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_edge_deploy_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_edge_deploy_using_subcommand
    set -l cmd (__fish_edge_deploy_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -s V -l version -d 'Print version'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "auto" -d 'Probe, plan, load and serve: the whole way in one command'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "plan" -d 'Show the plan with its reasons; loads nothing, fetches nothing (`auto --dry-run`)'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "explain" -d 'Say where each value of the plan comes from and how to verify it'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "run" -d 'Answer one prompt in the terminal'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "say" -d 'Speak a text into a WAV file'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "bench" -d 'Measure prefill and decode rates of a model on this machine'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "probe" -d 'Show what this machine is and what may be used of it'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "profiles" -d 'List, show, copy and check profiles'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "pull" -d 'Fetch a model into the cache'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "doctor" -d 'Check this machine, the cache and the settings; report what to do about faults'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "verify" -d 'Compare what a running server uses with its plan'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "completions" -d 'Print a completion script for a shell'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "man" -d 'Print the man page'
complete -c edge-deploy -n "__fish_edge_deploy_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -s m -l model -d 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l profile -d 'A profile by name instead of the model family\'s own, or a YAML file above it' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l set -d 'Set one key, such as `stages.decoder.threads=4`; may be repeated' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l context -d 'Tokens of context for each sequence (`stages.<first stage>.context`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l threads -d 'Worker threads (`stages.<first stage>.threads`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l isa-cap -d 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l hardware -d 'Plan for a machine saved with `probe --save`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l sysroot -d 'Plan for a machine captured with `doctor --capture`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l config-dir -d 'Folder searched first for `profiles/` and `hardware/`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l host -d 'Address to bind; loopback unless said (`server.host`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l port -d 'Port to bind; 0 takes any free one (`server.port`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l api-key -d 'Key that clients must send; better in EDGE_DEPLOY_API_KEY, which `ps` does not show' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l lenient -d 'Unknown keys are warnings instead of errors'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l force -d 'Go on although the plan does not fit into memory'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l dry-run -d 'Show the plan and stop: nothing is fetched or loaded'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l strict -d 'Stop if the running engine differs from the plan'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand auto" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -s m -l model -d 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l profile -d 'A profile by name instead of the model family\'s own, or a YAML file above it' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l set -d 'Set one key, such as `stages.decoder.threads=4`; may be repeated' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l context -d 'Tokens of context for each sequence (`stages.<first stage>.context`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l threads -d 'Worker threads (`stages.<first stage>.threads`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l isa-cap -d 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l hardware -d 'Plan for a machine saved with `probe --save`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l sysroot -d 'Plan for a machine captured with `doctor --capture`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l config-dir -d 'Folder searched first for `profiles/` and `hardware/`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l host -d 'Address to bind; loopback unless said (`server.host`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l port -d 'Port to bind; 0 takes any free one (`server.port`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l api-key -d 'Key that clients must send; better in EDGE_DEPLOY_API_KEY, which `ps` does not show' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l diff -d 'Compare with another plan, key by key: a plan saved with `--json`, a machine saved with `probe --save` or captured in a folder, or another profile (a name or a YAML file)' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l lenient -d 'Unknown keys are warnings instead of errors'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l force -d 'Go on although the plan does not fit into memory'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l emit -d 'Print a profile that pins everything planned; given back with `--profile` it plans the same'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand plan" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -s m -l model -d 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l profile -d 'A profile by name instead of the model family\'s own, or a YAML file above it' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l set -d 'Set one key, such as `stages.decoder.threads=4`; may be repeated' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l context -d 'Tokens of context for each sequence (`stages.<first stage>.context`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l threads -d 'Worker threads (`stages.<first stage>.threads`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l isa-cap -d 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l hardware -d 'Plan for a machine saved with `probe --save`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l sysroot -d 'Plan for a machine captured with `doctor --capture`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l config-dir -d 'Folder searched first for `profiles/` and `hardware/`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l host -d 'Address to bind; loopback unless said (`server.host`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l port -d 'Port to bind; 0 takes any free one (`server.port`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l api-key -d 'Key that clients must send; better in EDGE_DEPLOY_API_KEY, which `ps` does not show' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l lenient -d 'Unknown keys are warnings instead of errors'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l force -d 'Go on although the plan does not fit into memory'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand explain" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -s m -l model -d 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l profile -d 'A profile by name instead of the model family\'s own, or a YAML file above it' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l set -d 'Set one key, such as `stages.decoder.threads=4`; may be repeated' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l context -d 'Tokens of context for each sequence (`stages.<first stage>.context`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l threads -d 'Worker threads (`stages.<first stage>.threads`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l isa-cap -d 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l hardware -d 'Plan for a machine saved with `probe --save`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l sysroot -d 'Plan for a machine captured with `doctor --capture`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l config-dir -d 'Folder searched first for `profiles/` and `hardware/`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l system -d 'A system message before the prompt' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l max-tokens -d 'Most tokens to generate' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l temperature -d '0 always takes the likeliest token; higher is more varied' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l top-p -d 'Keep the likeliest tokens that together have this probability' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l top-k -d 'Keep this many of the likeliest tokens; 0 keeps all' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l min-p -d 'Drop tokens less likely than this share of the likeliest' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l repetition-penalty -d 'Makes repeated tokens less likely; 1 is off' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l seed -d 'Same seed, same answer' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l lenient -d 'Unknown keys are warnings instead of errors'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l force -d 'Go on although the plan does not fit into memory'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l raw -d 'Give the prompt to the model as it is, without its chat template'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand run" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -s m -l model -d 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l profile -d 'A profile by name instead of the model family\'s own, or a YAML file above it' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l set -d 'Set one key, such as `stages.decoder.threads=4`; may be repeated' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l context -d 'Tokens of context for each sequence (`stages.<first stage>.context`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l threads -d 'Worker threads (`stages.<first stage>.threads`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l isa-cap -d 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l hardware -d 'Plan for a machine saved with `probe --save`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l sysroot -d 'Plan for a machine captured with `doctor --capture`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l config-dir -d 'Folder searched first for `profiles/` and `hardware/`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -s o -l out -d 'The WAV file to write' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l voice -d 'A voice of the model; its first by name if absent' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l clone -d 'A WAV file whose voice is cloned, with a Base model' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l clone-text -d 'What is said in it; its manner is then continued too' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l language -d 'A language of the model, or `auto`' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l instructions -d 'How to say it, in words, for models that take instructions' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l min-frames -d 'Least frames of 80 ms; the end is held back, and the guards against endless sound are off' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l max-frames -d 'Most frames of 80 ms; by the length of the text if absent' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l seed -d 'Same seed, same sound' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l lenient -d 'Unknown keys are warnings instead of errors'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l force -d 'Go on although the plan does not fit into memory'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l stream-text -d 'Give the text token by token while speaking, not all at once before'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand say" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -s m -l model -d 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l profile -d 'A profile by name instead of the model family\'s own, or a YAML file above it' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l set -d 'Set one key, such as `stages.decoder.threads=4`; may be repeated' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l context -d 'Tokens of context for each sequence (`stages.<first stage>.context`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l threads -d 'Worker threads (`stages.<first stage>.threads`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l isa-cap -d 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l hardware -d 'Plan for a machine saved with `probe --save`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l sysroot -d 'Plan for a machine captured with `doctor --capture`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l config-dir -d 'Folder searched first for `profiles/` and `hardware/`' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l prefill -d 'Prompt lengths whose prefill is timed' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l decode -d 'Tokens decoded for one sample' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l depth -d 'Context lengths at which decoding is timed' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l batch -d 'Sequences decoded together' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l repeat -d 'Samples of each kind' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l lenient -d 'Unknown keys are warnings instead of errors'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l force -d 'Go on although the plan does not fit into memory'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand bench" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand probe" -l sysroot -d 'Read a machine captured with `doctor --capture` instead of this one' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand probe" -l hardware -d 'Show a machine saved with `--save`' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand probe" -l save -d 'Write the machine to a file that `--hardware` takes' -r -F
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand probe" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand probe" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand probe" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand probe" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and not __fish_seen_subcommand_from list show eject validate schema help" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and not __fish_seen_subcommand_from list show eject validate schema help" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and not __fish_seen_subcommand_from list show eject validate schema help" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and not __fish_seen_subcommand_from list show eject validate schema help" -f -a "list" -d 'List profiles and hardware classes, where each comes from and what it hides'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and not __fish_seen_subcommand_from list show eject validate schema help" -f -a "show" -d 'Print a profile or hardware class'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and not __fish_seen_subcommand_from list show eject validate schema help" -f -a "eject" -d 'Copy a built-in profile or hardware class to your own folder, to be changed there'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and not __fish_seen_subcommand_from list show eject validate schema help" -f -a "validate" -d 'Check YAML files; all problems are shown with file and line'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and not __fish_seen_subcommand_from list show eject validate schema help" -f -a "schema" -d 'Print the JSON schema of profiles, for editors'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and not __fish_seen_subcommand_from list show eject validate schema help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from list" -l config-dir -d 'Folder searched first' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from list" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from list" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from list" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from show" -l class -d 'Hardware class to resolve for' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from show" -l config-dir -d 'Folder searched first' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from show" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from show" -l resolved -d 'Everything that applies with it, each value with its origin'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from show" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from show" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from eject" -l config-dir -d 'Folder to write to instead of your own' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from eject" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from eject" -l force -d 'Replace a file that is there'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from eject" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from eject" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from eject" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from validate" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from validate" -l hardware -d 'They are hardware class files'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from validate" -l lenient -d 'Unknown keys are warnings instead of errors'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from validate" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from validate" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from validate" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from schema" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from schema" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from schema" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from help" -f -a "list" -d 'List profiles and hardware classes, where each comes from and what it hides'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from help" -f -a "show" -d 'Print a profile or hardware class'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from help" -f -a "eject" -d 'Copy a built-in profile or hardware class to your own folder, to be changed there'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from help" -f -a "validate" -d 'Check YAML files; all problems are shown with file and line'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from help" -f -a "schema" -d 'Print the JSON schema of profiles, for editors'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand profiles; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand pull" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand pull" -l list -d 'List the models that have a name, and whether they are in the cache'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand pull" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand pull" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand pull" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand doctor" -l capture -d 'Copy what the probe reads into a folder that `--sysroot` takes; for bug reports' -r -f -a "(__fish_complete_directories)"
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand doctor" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand doctor" -l report -d 'Print everything the probe read too, without names and serial numbers, to be pasted into a bug report'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand doctor" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand doctor" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand verify" -l port -d 'Its port, where the address names none' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand verify" -l api-key -d 'Its key, if it wants one; better in EDGE_DEPLOY_API_KEY' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand verify" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand verify" -l json -d 'Print JSON (docs/reference/json.md) instead of text'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand verify" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand verify" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand completions" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand completions" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand completions" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand man" -l log -d 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG' -r
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand man" -l log-json -d 'Log lines as JSON'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand man" -s h -l help -d 'Print help'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "auto" -d 'Probe, plan, load and serve: the whole way in one command'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "plan" -d 'Show the plan with its reasons; loads nothing, fetches nothing (`auto --dry-run`)'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "explain" -d 'Say where each value of the plan comes from and how to verify it'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "run" -d 'Answer one prompt in the terminal'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "say" -d 'Speak a text into a WAV file'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "bench" -d 'Measure prefill and decode rates of a model on this machine'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "probe" -d 'Show what this machine is and what may be used of it'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "profiles" -d 'List, show, copy and check profiles'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "pull" -d 'Fetch a model into the cache'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "doctor" -d 'Check this machine, the cache and the settings; report what to do about faults'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "verify" -d 'Compare what a running server uses with its plan'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "completions" -d 'Print a completion script for a shell'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "man" -d 'Print the man page'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and not __fish_seen_subcommand_from auto plan explain run say bench probe profiles pull doctor verify completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and __fish_seen_subcommand_from profiles" -f -a "list" -d 'List profiles and hardware classes, where each comes from and what it hides'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and __fish_seen_subcommand_from profiles" -f -a "show" -d 'Print a profile or hardware class'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and __fish_seen_subcommand_from profiles" -f -a "eject" -d 'Copy a built-in profile or hardware class to your own folder, to be changed there'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and __fish_seen_subcommand_from profiles" -f -a "validate" -d 'Check YAML files; all problems are shown with file and line'
complete -c edge-deploy -n "__fish_edge_deploy_using_subcommand help; and __fish_seen_subcommand_from profiles" -f -a "schema" -d 'Print the JSON schema of profiles, for editors'
