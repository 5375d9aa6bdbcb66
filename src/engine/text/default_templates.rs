//! Chat templates for models that ship none, one per family.
//!
//! In: the family's name. Out: a Jinja template. Invariant: a template a model ships always wins over these.

/// Gemma: turns closed by `<end_of_turn>`; the system text opens the first user turn; user and model alternate.
const GEMMA: &str = r"{{- bos_token -}}
{%- set ns = namespace(system='', expects='user') -%}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {%- if not loop.first -%}{{- raise_exception('a system message must be the first message') -}}{%- endif -%}
        {%- set ns.system = message.content | trim -%}
    {%- elif message.role != ns.expects -%}
        {{- raise_exception('user and assistant messages must alternate, starting with user') -}}
    {%- elif message.role == 'user' -%}
        {{- '<start_of_turn>user\n' -}}
        {%- if ns.system -%}{{- ns.system ~ '\n\n' -}}{%- endif -%}
        {{- (message.content | trim) ~ '<end_of_turn>\n' -}}
        {%- set ns.system = '' -%}
        {%- set ns.expects = 'assistant' -%}
    {%- else -%}
        {{- '<start_of_turn>model\n' ~ (message.content | trim) ~ '<end_of_turn>\n' -}}
        {%- set ns.expects = 'user' -%}
    {%- endif -%}
{%- endfor -%}
{%- if ns.system -%}{{- raise_exception('a system message needs a user message after it') -}}{%- endif -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}";

/// ChatML, no system text of its own.
const CHATML: &str = r"{%- for message in messages -%}
    {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}";

/// Spark: every turn between the sequence's own begin and end tokens; answers begin inside or after reasoning.
const SPARK: &str = r"{%- set first_system = messages and messages[0].role == 'system' -%}
{{- bos_token ~ '<|System|>\nyou are a helpful assistant.' -}}
{%- if first_system -%}{{- '\n\n' ~ messages[0].content -}}{%- endif -%}
{{- eos_token -}}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {%- if not loop.first -%}{{- bos_token ~ '<|System|>\n' ~ message.content ~ eos_token -}}{%- endif -%}
    {%- elif message.role == 'user' -%}
        {{- bos_token ~ '<|User|>' ~ message.content ~ eos_token -}}
    {%- elif message.role == 'assistant' -%}
        {{- bos_token ~ '<|Bot|></think>' ~ message.content.split('</think>')[-1] ~ eos_token -}}
    {%- elif message.role == 'tool' -%}
        {%- if loop.first or loop.previtem.role != 'tool' -%}{{- bos_token ~ '<|Tool|>' -}}{%- endif -%}
        {{- '<tool_response>' ~ message.content ~ '</tool_response>' -}}
        {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- eos_token -}}{%- endif -%}
    {%- else -%}
        {{- raise_exception('the role ' ~ message.role ~ ' is not known') -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- bos_token ~ '<|Bot|>' ~ ('<think>' if enable_thinking is undefined or enable_thinking else '</think>') -}}
{%- endif -%}";

/// The template of a family of `model/families.rs`; `None` for a family without one.
pub fn of_family(family: &str) -> Option<&'static str> {
    Some(match family {
        "gemma3" => GEMMA,
        "llama" | "qwen3" => CHATML,
        "spark2_5" => SPARK,
        _ => return None,
    })
}
