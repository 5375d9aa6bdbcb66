
using namespace System.Management.Automation
using namespace System.Management.Automation.Language

Register-ArgumentCompleter -Native -CommandName 'edge-deploy' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    $commandElements = $commandAst.CommandElements
    $command = @(
        'edge-deploy'
        for ($i = 1; $i -lt $commandElements.Count; $i++) {
            $element = $commandElements[$i]
            if ($element -isnot [StringConstantExpressionAst] -or
                $element.StringConstantType -ne [StringConstantType]::BareWord -or
                $element.Value.StartsWith('-') -or
                $element.Value -eq $wordToComplete) {
                break
        }
        $element.Value
    }) -join ';'

    $completions = @(switch ($command) {
        'edge-deploy' {
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('auto', 'auto', [CompletionResultType]::ParameterValue, 'Probe, plan, load and serve: the whole way in one command')
            [CompletionResult]::new('plan', 'plan', [CompletionResultType]::ParameterValue, 'Show the plan with its reasons; loads nothing, fetches nothing (`auto --dry-run`)')
            [CompletionResult]::new('explain', 'explain', [CompletionResultType]::ParameterValue, 'Say where each value of the plan comes from and how to verify it')
            [CompletionResult]::new('run', 'run', [CompletionResultType]::ParameterValue, 'Answer one prompt in the terminal')
            [CompletionResult]::new('say', 'say', [CompletionResultType]::ParameterValue, 'Speak a text into a WAV file')
            [CompletionResult]::new('bench', 'bench', [CompletionResultType]::ParameterValue, 'Measure prefill and decode rates of a model on this machine')
            [CompletionResult]::new('probe', 'probe', [CompletionResultType]::ParameterValue, 'Show what this machine is and what may be used of it')
            [CompletionResult]::new('profiles', 'profiles', [CompletionResultType]::ParameterValue, 'List, show, copy and check profiles')
            [CompletionResult]::new('pull', 'pull', [CompletionResultType]::ParameterValue, 'Fetch a model into the cache')
            [CompletionResult]::new('doctor', 'doctor', [CompletionResultType]::ParameterValue, 'Check this machine, the cache and the settings; report what to do about faults')
            [CompletionResult]::new('verify', 'verify', [CompletionResultType]::ParameterValue, 'Compare what a running server uses with its plan')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Print a completion script for a shell')
            [CompletionResult]::new('man', 'man', [CompletionResultType]::ParameterValue, 'Print the man page')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'edge-deploy;auto' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'A profile by name instead of the model family''s own, or a YAML file above it')
            [CompletionResult]::new('--set', '--set', [CompletionResultType]::ParameterName, 'Set one key, such as `stages.decoder.threads=4`; may be repeated')
            [CompletionResult]::new('--context', '--context', [CompletionResultType]::ParameterName, 'Tokens of context for each sequence (`stages.<first stage>.context`)')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Worker threads (`stages.<first stage>.threads`)')
            [CompletionResult]::new('--isa-cap', '--isa-cap', [CompletionResultType]::ParameterName, 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)')
            [CompletionResult]::new('--hardware', '--hardware', [CompletionResultType]::ParameterName, 'Plan for a machine saved with `probe --save`')
            [CompletionResult]::new('--sysroot', '--sysroot', [CompletionResultType]::ParameterName, 'Plan for a machine captured with `doctor --capture`')
            [CompletionResult]::new('--config-dir', '--config-dir', [CompletionResultType]::ParameterName, 'Folder searched first for `profiles/` and `hardware/`')
            [CompletionResult]::new('--host', '--host', [CompletionResultType]::ParameterName, 'Address to bind; loopback unless said (`server.host`)')
            [CompletionResult]::new('--port', '--port', [CompletionResultType]::ParameterName, 'Port to bind; 0 takes any free one (`server.port`)')
            [CompletionResult]::new('--api-key', '--api-key', [CompletionResultType]::ParameterName, 'Key that clients must send; better in EDGE_DEPLOY_API_KEY, which `ps` does not show')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--lenient', '--lenient', [CompletionResultType]::ParameterName, 'Unknown keys are warnings instead of errors')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Go on although the plan does not fit into memory')
            [CompletionResult]::new('--dry-run', '--dry-run', [CompletionResultType]::ParameterName, 'Show the plan and stop: nothing is fetched or loaded')
            [CompletionResult]::new('--strict', '--strict', [CompletionResultType]::ParameterName, 'Stop if the running engine differs from the plan')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;plan' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'A profile by name instead of the model family''s own, or a YAML file above it')
            [CompletionResult]::new('--set', '--set', [CompletionResultType]::ParameterName, 'Set one key, such as `stages.decoder.threads=4`; may be repeated')
            [CompletionResult]::new('--context', '--context', [CompletionResultType]::ParameterName, 'Tokens of context for each sequence (`stages.<first stage>.context`)')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Worker threads (`stages.<first stage>.threads`)')
            [CompletionResult]::new('--isa-cap', '--isa-cap', [CompletionResultType]::ParameterName, 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)')
            [CompletionResult]::new('--hardware', '--hardware', [CompletionResultType]::ParameterName, 'Plan for a machine saved with `probe --save`')
            [CompletionResult]::new('--sysroot', '--sysroot', [CompletionResultType]::ParameterName, 'Plan for a machine captured with `doctor --capture`')
            [CompletionResult]::new('--config-dir', '--config-dir', [CompletionResultType]::ParameterName, 'Folder searched first for `profiles/` and `hardware/`')
            [CompletionResult]::new('--host', '--host', [CompletionResultType]::ParameterName, 'Address to bind; loopback unless said (`server.host`)')
            [CompletionResult]::new('--port', '--port', [CompletionResultType]::ParameterName, 'Port to bind; 0 takes any free one (`server.port`)')
            [CompletionResult]::new('--api-key', '--api-key', [CompletionResultType]::ParameterName, 'Key that clients must send; better in EDGE_DEPLOY_API_KEY, which `ps` does not show')
            [CompletionResult]::new('--diff', '--diff', [CompletionResultType]::ParameterName, 'Compare with another plan, key by key: a plan saved with `--json`, a machine saved with `probe --save` or captured in a folder, or another profile (a name or a YAML file)')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--lenient', '--lenient', [CompletionResultType]::ParameterName, 'Unknown keys are warnings instead of errors')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Go on although the plan does not fit into memory')
            [CompletionResult]::new('--emit', '--emit', [CompletionResultType]::ParameterName, 'Print a profile that pins everything planned; given back with `--profile` it plans the same')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;explain' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'A profile by name instead of the model family''s own, or a YAML file above it')
            [CompletionResult]::new('--set', '--set', [CompletionResultType]::ParameterName, 'Set one key, such as `stages.decoder.threads=4`; may be repeated')
            [CompletionResult]::new('--context', '--context', [CompletionResultType]::ParameterName, 'Tokens of context for each sequence (`stages.<first stage>.context`)')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Worker threads (`stages.<first stage>.threads`)')
            [CompletionResult]::new('--isa-cap', '--isa-cap', [CompletionResultType]::ParameterName, 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)')
            [CompletionResult]::new('--hardware', '--hardware', [CompletionResultType]::ParameterName, 'Plan for a machine saved with `probe --save`')
            [CompletionResult]::new('--sysroot', '--sysroot', [CompletionResultType]::ParameterName, 'Plan for a machine captured with `doctor --capture`')
            [CompletionResult]::new('--config-dir', '--config-dir', [CompletionResultType]::ParameterName, 'Folder searched first for `profiles/` and `hardware/`')
            [CompletionResult]::new('--host', '--host', [CompletionResultType]::ParameterName, 'Address to bind; loopback unless said (`server.host`)')
            [CompletionResult]::new('--port', '--port', [CompletionResultType]::ParameterName, 'Port to bind; 0 takes any free one (`server.port`)')
            [CompletionResult]::new('--api-key', '--api-key', [CompletionResultType]::ParameterName, 'Key that clients must send; better in EDGE_DEPLOY_API_KEY, which `ps` does not show')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--lenient', '--lenient', [CompletionResultType]::ParameterName, 'Unknown keys are warnings instead of errors')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Go on although the plan does not fit into memory')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;run' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'A profile by name instead of the model family''s own, or a YAML file above it')
            [CompletionResult]::new('--set', '--set', [CompletionResultType]::ParameterName, 'Set one key, such as `stages.decoder.threads=4`; may be repeated')
            [CompletionResult]::new('--context', '--context', [CompletionResultType]::ParameterName, 'Tokens of context for each sequence (`stages.<first stage>.context`)')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Worker threads (`stages.<first stage>.threads`)')
            [CompletionResult]::new('--isa-cap', '--isa-cap', [CompletionResultType]::ParameterName, 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)')
            [CompletionResult]::new('--hardware', '--hardware', [CompletionResultType]::ParameterName, 'Plan for a machine saved with `probe --save`')
            [CompletionResult]::new('--sysroot', '--sysroot', [CompletionResultType]::ParameterName, 'Plan for a machine captured with `doctor --capture`')
            [CompletionResult]::new('--config-dir', '--config-dir', [CompletionResultType]::ParameterName, 'Folder searched first for `profiles/` and `hardware/`')
            [CompletionResult]::new('--system', '--system', [CompletionResultType]::ParameterName, 'A system message before the prompt')
            [CompletionResult]::new('--max-tokens', '--max-tokens', [CompletionResultType]::ParameterName, 'Most tokens to generate')
            [CompletionResult]::new('--temperature', '--temperature', [CompletionResultType]::ParameterName, '0 always takes the likeliest token; higher is more varied')
            [CompletionResult]::new('--top-p', '--top-p', [CompletionResultType]::ParameterName, 'Keep the likeliest tokens that together have this probability')
            [CompletionResult]::new('--top-k', '--top-k', [CompletionResultType]::ParameterName, 'Keep this many of the likeliest tokens; 0 keeps all')
            [CompletionResult]::new('--min-p', '--min-p', [CompletionResultType]::ParameterName, 'Drop tokens less likely than this share of the likeliest')
            [CompletionResult]::new('--repetition-penalty', '--repetition-penalty', [CompletionResultType]::ParameterName, 'Makes repeated tokens less likely; 1 is off')
            [CompletionResult]::new('--seed', '--seed', [CompletionResultType]::ParameterName, 'Same seed, same answer')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--lenient', '--lenient', [CompletionResultType]::ParameterName, 'Unknown keys are warnings instead of errors')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Go on although the plan does not fit into memory')
            [CompletionResult]::new('--raw', '--raw', [CompletionResultType]::ParameterName, 'Give the prompt to the model as it is, without its chat template')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;say' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'A profile by name instead of the model family''s own, or a YAML file above it')
            [CompletionResult]::new('--set', '--set', [CompletionResultType]::ParameterName, 'Set one key, such as `stages.decoder.threads=4`; may be repeated')
            [CompletionResult]::new('--context', '--context', [CompletionResultType]::ParameterName, 'Tokens of context for each sequence (`stages.<first stage>.context`)')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Worker threads (`stages.<first stage>.threads`)')
            [CompletionResult]::new('--isa-cap', '--isa-cap', [CompletionResultType]::ParameterName, 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)')
            [CompletionResult]::new('--hardware', '--hardware', [CompletionResultType]::ParameterName, 'Plan for a machine saved with `probe --save`')
            [CompletionResult]::new('--sysroot', '--sysroot', [CompletionResultType]::ParameterName, 'Plan for a machine captured with `doctor --capture`')
            [CompletionResult]::new('--config-dir', '--config-dir', [CompletionResultType]::ParameterName, 'Folder searched first for `profiles/` and `hardware/`')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'The WAV file to write')
            [CompletionResult]::new('--out', '--out', [CompletionResultType]::ParameterName, 'The WAV file to write')
            [CompletionResult]::new('--voice', '--voice', [CompletionResultType]::ParameterName, 'A voice of the model; its first by name if absent')
            [CompletionResult]::new('--clone', '--clone', [CompletionResultType]::ParameterName, 'A WAV file whose voice is cloned, with a Base model')
            [CompletionResult]::new('--clone-text', '--clone-text', [CompletionResultType]::ParameterName, 'What is said in it; its manner is then continued too')
            [CompletionResult]::new('--language', '--language', [CompletionResultType]::ParameterName, 'A language of the model, or `auto`')
            [CompletionResult]::new('--instructions', '--instructions', [CompletionResultType]::ParameterName, 'How to say it, in words, for models that take instructions')
            [CompletionResult]::new('--min-frames', '--min-frames', [CompletionResultType]::ParameterName, 'Least frames of 80 ms; the end is held back, and the guards against endless sound are off')
            [CompletionResult]::new('--max-frames', '--max-frames', [CompletionResultType]::ParameterName, 'Most frames of 80 ms; by the length of the text if absent')
            [CompletionResult]::new('--seed', '--seed', [CompletionResultType]::ParameterName, 'Same seed, same sound')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--lenient', '--lenient', [CompletionResultType]::ParameterName, 'Unknown keys are warnings instead of errors')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Go on although the plan does not fit into memory')
            [CompletionResult]::new('--stream-text', '--stream-text', [CompletionResultType]::ParameterName, 'Give the text token by token while speaking, not all at once before')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;bench' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'A profile by name instead of the model family''s own, or a YAML file above it')
            [CompletionResult]::new('--set', '--set', [CompletionResultType]::ParameterName, 'Set one key, such as `stages.decoder.threads=4`; may be repeated')
            [CompletionResult]::new('--context', '--context', [CompletionResultType]::ParameterName, 'Tokens of context for each sequence (`stages.<first stage>.context`)')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Worker threads (`stages.<first stage>.threads`)')
            [CompletionResult]::new('--isa-cap', '--isa-cap', [CompletionResultType]::ParameterName, 'Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)')
            [CompletionResult]::new('--hardware', '--hardware', [CompletionResultType]::ParameterName, 'Plan for a machine saved with `probe --save`')
            [CompletionResult]::new('--sysroot', '--sysroot', [CompletionResultType]::ParameterName, 'Plan for a machine captured with `doctor --capture`')
            [CompletionResult]::new('--config-dir', '--config-dir', [CompletionResultType]::ParameterName, 'Folder searched first for `profiles/` and `hardware/`')
            [CompletionResult]::new('--prefill', '--prefill', [CompletionResultType]::ParameterName, 'Prompt lengths whose prefill is timed')
            [CompletionResult]::new('--decode', '--decode', [CompletionResultType]::ParameterName, 'Tokens decoded for one sample')
            [CompletionResult]::new('--depth', '--depth', [CompletionResultType]::ParameterName, 'Context lengths at which decoding is timed')
            [CompletionResult]::new('--batch', '--batch', [CompletionResultType]::ParameterName, 'Sequences decoded together')
            [CompletionResult]::new('--repeat', '--repeat', [CompletionResultType]::ParameterName, 'Samples of each kind')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--lenient', '--lenient', [CompletionResultType]::ParameterName, 'Unknown keys are warnings instead of errors')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Go on although the plan does not fit into memory')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;probe' {
            [CompletionResult]::new('--sysroot', '--sysroot', [CompletionResultType]::ParameterName, 'Read a machine captured with `doctor --capture` instead of this one')
            [CompletionResult]::new('--hardware', '--hardware', [CompletionResultType]::ParameterName, 'Show a machine saved with `--save`')
            [CompletionResult]::new('--save', '--save', [CompletionResultType]::ParameterName, 'Write the machine to a file that `--hardware` takes')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;profiles' {
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('list', 'list', [CompletionResultType]::ParameterValue, 'List profiles and hardware classes, where each comes from and what it hides')
            [CompletionResult]::new('show', 'show', [CompletionResultType]::ParameterValue, 'Print a profile or hardware class')
            [CompletionResult]::new('eject', 'eject', [CompletionResultType]::ParameterValue, 'Copy a built-in profile or hardware class to your own folder, to be changed there')
            [CompletionResult]::new('validate', 'validate', [CompletionResultType]::ParameterValue, 'Check YAML files; all problems are shown with file and line')
            [CompletionResult]::new('schema', 'schema', [CompletionResultType]::ParameterValue, 'Print the JSON schema of profiles, for editors')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'edge-deploy;profiles;list' {
            [CompletionResult]::new('--config-dir', '--config-dir', [CompletionResultType]::ParameterName, 'Folder searched first')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;profiles;show' {
            [CompletionResult]::new('--class', '--class', [CompletionResultType]::ParameterName, 'Hardware class to resolve for')
            [CompletionResult]::new('--config-dir', '--config-dir', [CompletionResultType]::ParameterName, 'Folder searched first')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--resolved', '--resolved', [CompletionResultType]::ParameterName, 'Everything that applies with it, each value with its origin')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;profiles;eject' {
            [CompletionResult]::new('--config-dir', '--config-dir', [CompletionResultType]::ParameterName, 'Folder to write to instead of your own')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Replace a file that is there')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;profiles;validate' {
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--hardware', '--hardware', [CompletionResultType]::ParameterName, 'They are hardware class files')
            [CompletionResult]::new('--lenient', '--lenient', [CompletionResultType]::ParameterName, 'Unknown keys are warnings instead of errors')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;profiles;schema' {
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;profiles;help' {
            [CompletionResult]::new('list', 'list', [CompletionResultType]::ParameterValue, 'List profiles and hardware classes, where each comes from and what it hides')
            [CompletionResult]::new('show', 'show', [CompletionResultType]::ParameterValue, 'Print a profile or hardware class')
            [CompletionResult]::new('eject', 'eject', [CompletionResultType]::ParameterValue, 'Copy a built-in profile or hardware class to your own folder, to be changed there')
            [CompletionResult]::new('validate', 'validate', [CompletionResultType]::ParameterValue, 'Check YAML files; all problems are shown with file and line')
            [CompletionResult]::new('schema', 'schema', [CompletionResultType]::ParameterValue, 'Print the JSON schema of profiles, for editors')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'edge-deploy;profiles;help;list' {
            break
        }
        'edge-deploy;profiles;help;show' {
            break
        }
        'edge-deploy;profiles;help;eject' {
            break
        }
        'edge-deploy;profiles;help;validate' {
            break
        }
        'edge-deploy;profiles;help;schema' {
            break
        }
        'edge-deploy;profiles;help;help' {
            break
        }
        'edge-deploy;pull' {
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--list', '--list', [CompletionResultType]::ParameterName, 'List the models that have a name, and whether they are in the cache')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;doctor' {
            [CompletionResult]::new('--capture', '--capture', [CompletionResultType]::ParameterName, 'Copy what the probe reads into a folder that `--sysroot` takes; for bug reports')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--report', '--report', [CompletionResultType]::ParameterName, 'Print everything the probe read too, without names and serial numbers, to be pasted into a bug report')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;verify' {
            [CompletionResult]::new('--port', '--port', [CompletionResultType]::ParameterName, 'Its port, where the address names none')
            [CompletionResult]::new('--api-key', '--api-key', [CompletionResultType]::ParameterName, 'Its key, if it wants one; better in EDGE_DEPLOY_API_KEY')
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print JSON (docs/reference/json.md) instead of text')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;completions' {
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;man' {
            [CompletionResult]::new('--log', '--log', [CompletionResultType]::ParameterName, 'Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Log lines as JSON')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'edge-deploy;help' {
            [CompletionResult]::new('auto', 'auto', [CompletionResultType]::ParameterValue, 'Probe, plan, load and serve: the whole way in one command')
            [CompletionResult]::new('plan', 'plan', [CompletionResultType]::ParameterValue, 'Show the plan with its reasons; loads nothing, fetches nothing (`auto --dry-run`)')
            [CompletionResult]::new('explain', 'explain', [CompletionResultType]::ParameterValue, 'Say where each value of the plan comes from and how to verify it')
            [CompletionResult]::new('run', 'run', [CompletionResultType]::ParameterValue, 'Answer one prompt in the terminal')
            [CompletionResult]::new('say', 'say', [CompletionResultType]::ParameterValue, 'Speak a text into a WAV file')
            [CompletionResult]::new('bench', 'bench', [CompletionResultType]::ParameterValue, 'Measure prefill and decode rates of a model on this machine')
            [CompletionResult]::new('probe', 'probe', [CompletionResultType]::ParameterValue, 'Show what this machine is and what may be used of it')
            [CompletionResult]::new('profiles', 'profiles', [CompletionResultType]::ParameterValue, 'List, show, copy and check profiles')
            [CompletionResult]::new('pull', 'pull', [CompletionResultType]::ParameterValue, 'Fetch a model into the cache')
            [CompletionResult]::new('doctor', 'doctor', [CompletionResultType]::ParameterValue, 'Check this machine, the cache and the settings; report what to do about faults')
            [CompletionResult]::new('verify', 'verify', [CompletionResultType]::ParameterValue, 'Compare what a running server uses with its plan')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Print a completion script for a shell')
            [CompletionResult]::new('man', 'man', [CompletionResultType]::ParameterValue, 'Print the man page')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'edge-deploy;help;auto' {
            break
        }
        'edge-deploy;help;plan' {
            break
        }
        'edge-deploy;help;explain' {
            break
        }
        'edge-deploy;help;run' {
            break
        }
        'edge-deploy;help;say' {
            break
        }
        'edge-deploy;help;bench' {
            break
        }
        'edge-deploy;help;probe' {
            break
        }
        'edge-deploy;help;profiles' {
            [CompletionResult]::new('list', 'list', [CompletionResultType]::ParameterValue, 'List profiles and hardware classes, where each comes from and what it hides')
            [CompletionResult]::new('show', 'show', [CompletionResultType]::ParameterValue, 'Print a profile or hardware class')
            [CompletionResult]::new('eject', 'eject', [CompletionResultType]::ParameterValue, 'Copy a built-in profile or hardware class to your own folder, to be changed there')
            [CompletionResult]::new('validate', 'validate', [CompletionResultType]::ParameterValue, 'Check YAML files; all problems are shown with file and line')
            [CompletionResult]::new('schema', 'schema', [CompletionResultType]::ParameterValue, 'Print the JSON schema of profiles, for editors')
            break
        }
        'edge-deploy;help;profiles;list' {
            break
        }
        'edge-deploy;help;profiles;show' {
            break
        }
        'edge-deploy;help;profiles;eject' {
            break
        }
        'edge-deploy;help;profiles;validate' {
            break
        }
        'edge-deploy;help;profiles;schema' {
            break
        }
        'edge-deploy;help;pull' {
            break
        }
        'edge-deploy;help;doctor' {
            break
        }
        'edge-deploy;help;verify' {
            break
        }
        'edge-deploy;help;completions' {
            break
        }
        'edge-deploy;help;man' {
            break
        }
        'edge-deploy;help;help' {
            break
        }
    })

    $completions.Where{ $_.CompletionText -like "$wordToComplete*" } |
        Sort-Object -Property ListItemText
}
