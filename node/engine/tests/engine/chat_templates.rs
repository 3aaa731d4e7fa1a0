//! Templates in the styles of well-known families, and what happens to bad ones.

use mesh_engine::{ChatTemplate, TemplateFacts};
use mesh_proto::{ErrorCode, v1::ChatMessage};

fn message(role: &str, content: &str) -> ChatMessage {
    ChatMessage {
        role: role.into(),
        content: content.into(),
        name: None,
    }
}

fn template(source: &str) -> ChatTemplate {
    let facts = TemplateFacts {
        source: Some(source.into()),
        bos: "<s>".into(),
        eos: "</s>".into(),
        has_chatml: false,
    };
    ChatTemplate::new(facts)
}

fn render(source: &str, messages: &[ChatMessage]) -> String {
    let template = template(source);
    assert_eq!(template.name(), "model");
    template.render(messages).expect("the template renders")
}

const LLAMA_3_STYLE: &str = r#"{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if date_string | length != 11 %}{{ raise_exception("odd date") }}{% endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif message.role == "tool" %}
        {{- message.content | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;

#[test]
fn llama_3_style() {
    let messages = [message("system", " be brief "), message("user", "hi\n")];
    assert_eq!(
        render(LLAMA_3_STYLE, &messages),
        "<s><|start_header_id|>system<|end_header_id|>\n\nbe brief<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n\
         hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

const QWEN_3_STYLE: &str = r#"{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}{%- for tool_call in message.tool_calls %}{{- tool_call.name }}{%- endfor %}{%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"#;

#[test]
fn qwen_3_style_drops_old_thoughts() {
    let messages = [
        message("system", "sys"),
        message("user", "one"),
        message("assistant", "<think>\nhm\n</think>\n\ntwo"),
        message("user", "three"),
    ];
    assert_eq!(
        render(QWEN_3_STYLE, &messages),
        "<|im_start|>system\nsys<|im_end|>\n<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n\
         <|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
    );
}

const GEMMA_STYLE: &str = r#"{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must take turns: user, assistant, user, …") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- else -%}
        {{ raise_exception("bad content") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"#;

#[test]
fn gemma_style() {
    let messages = [
        message("system", "sys"),
        message("user", " hi "),
        message("assistant", "yo"),
        message("user", "?"),
    ];
    assert_eq!(
        render(GEMMA_STYLE, &messages),
        "<s><start_of_turn>user\nsys\n\nhi<end_of_turn>\n<start_of_turn>model\nyo<end_of_turn>\n\
         <start_of_turn>user\n?<end_of_turn>\n<start_of_turn>model\n"
    );
}

#[test]
fn raising_is_a_template_error_in_its_own_words() {
    let error = template(GEMMA_STYLE)
        .render(&[message("assistant", "I begin")])
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::TemplateError);
    assert_eq!(error.message, "Roles must take turns: user, assistant, user, …");
    assert_eq!(error.param.as_deref(), Some("messages"));
}

#[test]
fn raising_inside_a_macro_keeps_the_words() {
    let source = "{% macro check(m) %}{% if m.role == 'bad' %}{{ raise_exception('no ' ~ m.role) }}{% endif %}{% endmacro %}\
                  {% for m in messages %}{{ check(m) }}{{ m.content }}{% endfor %}";
    assert_eq!(
        template(source).render(&[message("bad", "x")]).unwrap_err().message,
        "no bad"
    );
    assert_eq!(render(source, &[message("good", "x")]), "x");
}

const MISTRAL_STYLE: &str = r#"{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.tool_calls is defined and message.tool_calls is not none) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("only user and assistant, not " + message.role) }}
    {%- endif %}
    {%- if loop.index > 100 %}{% break %}{% endif %}
{%- endfor %}
"#;

#[test]
fn mistral_style() {
    let messages = [
        message("system", "sys"),
        message("user", "a"),
        message("assistant", " b "),
        message("user", "c"),
    ];
    assert_eq!(
        render(MISTRAL_STYLE, &messages),
        "<s>[INST] a[/INST] b</s>[INST] sys\n\nc[/INST]"
    );
}

#[test]
fn generation_tags_and_trimmed_blocks() {
    let source = "{% for m in messages %}\n    {% if m.role == 'assistant' %}\n{% generation %}\n{{ m.content }}\n\
                  {% endgeneration %}\n    {% else %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend\n";
    let messages = [message("user", "q"), message("assistant", "a")];
    assert_eq!(render(source, &messages), "q\na\nend");
}

#[test]
fn tojson_is_python_s() {
    let source = "{{ {'a': [1, 2.5, none, true], 'b': \"<é\\n'&'>\"} | tojson }}|{{ [1, {}] | tojson(indent=2) }}";
    assert_eq!(
        render(source, &[message("user", "x")]),
        "{\"a\": [1, 2.5, null, true], \"b\": \"<é\\n'&'>\"}|[\n  1,\n  {}\n]"
    );
}

#[test]
fn a_template_that_does_not_compile_falls_back_by_name() {
    for (source, chatml) in [
        ("{% if %}", true),
        ("{{ x | no_such_filter }}", false),
        ("{% unknown %}", false),
    ] {
        let facts = TemplateFacts {
            source: Some(source.into()),
            has_chatml: chatml,
            ..TemplateFacts::default()
        };
        let template = ChatTemplate::new(facts);
        let kind = if chatml {
            "chatml (fallback: "
        } else {
            "plain (fallback: "
        };
        assert!(template.name().starts_with(kind), "{}", template.name());
        assert!(template.name().contains("does not work"), "{}", template.name());
        assert!(template.render(&[message("user", "hi")]).unwrap().contains("hi"));
    }
}

#[test]
fn no_template_at_all_falls_back_by_name() {
    let messages = [message("system", "s"), message("user", "hi")];
    let chatml = ChatTemplate::new(TemplateFacts {
        has_chatml: true,
        ..TemplateFacts::default()
    });
    assert_eq!(chatml.name(), "chatml (fallback: the model brings no chat template)");
    assert_eq!(
        chatml.render(&messages).unwrap(),
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    );
    let plain = ChatTemplate::new(TemplateFacts::default());
    assert_eq!(plain.name(), "plain (fallback: the model brings no chat template)");
    assert_eq!(plain.render(&messages).unwrap(), "system: s\nuser: hi\nassistant:");
}

/// What costs too much time, memory or depth, as expressions; each alone could take a process down.
const COSTLY: [&str; 15] = [
    "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}",
    "{{ '%999999999999d'|format(1) }}",
    "{{ '%.999999999999f'|format(1.5) }}",
    "{{ 'a\nb'|indent(999999999999) }}",
    "{{ [1, [2]]|tojson(indent=999999999999) }}",
    "{{ [1]|tojson(indent=65) }}",
    "{% set ns = namespace(s='x') %}{% for a in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s='x') %}{% for a in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}",
    "{{ 'x' * 1000000000000 }}",
    "{{ [1] * 1000000000000 }}",
    "{% set ns = namespace(l=[1]) %}{% for a in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}",
    "{% set ns = namespace(l=[1]) %}{% for a in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{{ ('x' * 10000000).replace('', 'y' * 10000000) }}",
    "{% for a in range(100000) %}{{ 'x' * 100 }}{% endfor %}",
];

#[test]
fn a_template_that_costs_too_much_falls_back_by_name() {
    for source in COSTLY {
        let template = template(source);
        println!("{}", template.name());
        assert!(
            template
                .name()
                .starts_with("plain (fallback: the model's does not work: "),
            "{source}"
        );
    }
}

#[test]
fn a_conversation_that_costs_too_much_is_a_template_error_that_says_so() {
    for source in COSTLY {
        let source = format!("{{% if messages[0].content == 'go' %}}{source}{{% endif %}}");
        let template = template(&source);
        assert_eq!(template.name(), "model", "{source}");
        let error = template.render(&[message("user", "go")]).unwrap_err();
        println!("{error}");
        assert_eq!(error.code, ErrorCode::TemplateError, "{source}");
        assert!(error.message.ends_with("; change its messages"), "{error}");
        assert_eq!(template.render(&[message("user", "stay")]).unwrap(), "");
    }
}

/// A source as long as it may be of an expression as deep as that allows, or one that is longer.
#[test]
fn expressions_of_any_depth_compile_or_fall_back() {
    let chain = |part: &str, terms: usize| format!("{{{{ 1{} }}}}", part.repeat(terms));
    let nested =
        |open: &str, close: &str, depth: usize| format!("{{{{ {}1{} }}}}", open.repeat(depth), close.repeat(depth));
    for source in [
        chain("+1", 200_000),
        chain("+1", 32_000),
        chain(" and 1", 10_000),
        chain("|abs", 16_000),
        chain(".a", 32_000),
        chain("[0]", 21_000),
        chain(" if 1 else 1", 5_000),
        nested("(", ")", 32_000),
        nested("[", "]", 32_000),
        nested("{1:", "}", 16_000),
        nested("-", "", 65_000),
        nested("not ", "", 16_000),
        "{% if 1 %}".repeat(3_000) + &"{% endif %}".repeat(3_000),
        "{% if 1 %}{% elif 1 %}".to_owned() + &"{% elif 1 %}".repeat(5_000) + "{% endif %}",
    ] {
        let started = std::time::Instant::now();
        let template = template(&source);
        let start: String = source.chars().take(24).collect();
        println!(
            "{start}… of {} bytes: {} in {:?}",
            source.len(),
            template.name(),
            started.elapsed()
        );
        assert!(template.render(&[message("user", "hi")]).is_ok() || template.name() == "model");
    }
}

#[test]
fn a_template_s_own_words_are_passed_on_up_to_a_length() {
    let error = template("{% if messages[0].content == 'go' %}{{ raise_exception('x' * 1000000) }}{% endif %}")
        .render(&[message("user", "go")])
        .unwrap_err();
    assert_eq!(error.message.len(), 1000);
}

#[test]
fn the_longest_conversation_renders() {
    let content = "word ".repeat(1 << 20);
    assert_eq!(
        render(MISTRAL_STYLE, &[message("user", &content)]).len(),
        content.len() + "<s>[INST] [/INST]".len()
    );
    let messages: Vec<ChatMessage> = (0..20_000)
        .map(|index| message(["user", "assistant"][index % 2], "a short message"))
        .collect();
    assert!(render(QWEN_3_STYLE, &messages).len() > 20_000 * 20);
}
