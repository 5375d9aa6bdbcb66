//! Tables of requests that pass and of requests that are refused, with the field each refusal names.

use super::*;

fn defaults() -> SamplingPlan {
    SamplingPlan {
        temperature: 0.7,
        top_p: 0.9,
        top_k: 40,
        min_p: 0.05,
        repetition_penalty: 1.1,
    }
}

fn chat_of(json: Value) -> Result<Asked, ApiError> {
    let request: ChatRequest = serde_json::from_value(json).unwrap();
    chat(&request, &defaults(), 7)
}

fn completion_of(json: Value) -> Result<Asked, ApiError> {
    let request: CompletionRequest = serde_json::from_value(json).unwrap();
    completion(&request, &defaults(), 7)
}

#[test]
fn absent_fields_take_the_plans_defaults() {
    let asked =
        chat_of(serde_json::json!({"temperature": null, "user": "x", "metadata": {"a": 1}, "store": true}))
            .unwrap();
    assert_eq!(
        asked.sampling,
        Sampling {
            temperature: 0.7,
            top_p: 0.9,
            top_k: 40,
            min_p: 0.05,
            repetition_penalty: 1.1,
            seed: 7,
            ..Sampling::default()
        }
    );
    assert_eq!(
        (asked.n, asked.max_tokens, asked.stream, asked.logprobs),
        (1, None, false, None)
    );
}

#[test]
fn given_fields_are_taken() {
    let asked = chat_of(serde_json::json!({
        "temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": -2,
        "frequency_penalty": 2, "logit_bias": {"5": -100, "6": 100}, "seed": -1, "stop": ["a", "b"], "n": 2,
        "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 3, "stream": true,
        "stream_options": {"include_usage": true}, "tools": [], "tool_choice": "none", "modalities": ["text"],
        "response_format": {"type": "text"}
    }))
    .unwrap();
    assert_eq!(asked.sampling.logit_bias, [(5, -100.0), (6, 100.0)]);
    assert_eq!((asked.sampling.seed, asked.sampling.top_k), (u64::MAX, 0));
    assert_eq!(
        (asked.n, asked.max_tokens, asked.logprobs, asked.include_usage),
        (2, Some(5), Some(3), true)
    );
    assert_eq!(
        completion_of(serde_json::json!({"stop": "x", "logprobs": 0, "best_of": 1}))
            .unwrap()
            .logprobs,
        Some(0)
    );
}

#[test]
fn chat_refusals_name_the_field() {
    for (json, param) in [
        (r#"{"temperature": -0.1}"#, "temperature"),
        (r#"{"temperature": 2.1}"#, "temperature"),
        (r#"{"temperature": 1e300}"#, "temperature"),
        (r#"{"top_p": 0}"#, "top_p"),
        (r#"{"top_p": 1.01}"#, "top_p"),
        (r#"{"top_k": -2}"#, "top_k"),
        (r#"{"top_k": 9223372036854775807}"#, "top_k"),
        (r#"{"min_p": 1.5}"#, "min_p"),
        (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
        (r#"{"presence_penalty": 3}"#, "presence_penalty"),
        (r#"{"frequency_penalty": -3}"#, "frequency_penalty"),
        (r#"{"logit_bias": {"x": 1}}"#, "logit_bias.x"),
        (r#"{"logit_bias": {"-1": 1}}"#, "logit_bias.-1"),
        (r#"{"logit_bias": {"1": 101}}"#, "logit_bias.1"),
        (r#"{"n": 0}"#, "n"),
        (r#"{"n": 9}"#, "n"),
        (r#"{"max_tokens": 0}"#, "max_tokens"),
        (r#"{"max_completion_tokens": 0}"#, "max_completion_tokens"),
        (r#"{"max_tokens": 18446744073709551615}"#, "max_tokens"),
        (r#"{"max_tokens": 1, "max_completion_tokens": 2}"#, "max_tokens"),
        (r#"{"stop": ["a","b","c","d","e"]}"#, "stop"),
        (r#"{"stop": ""}"#, "stop"),
        (r#"{"logprobs": true, "top_logprobs": 21}"#, "top_logprobs"),
        (r#"{"top_logprobs": 2}"#, "top_logprobs"),
        (r#"{"stream_options": {"include_usage": true}}"#, "stream_options"),
        (r#"{"tools": [{"type": "function"}]}"#, "tools"),
        (r#"{"tool_choice": "required"}"#, "tool_choice"),
        (r#"{"functions": [{}]}"#, "functions"),
        (r#"{"audio": {"voice": "x"}}"#, "audio"),
        (r#"{"modalities": ["audio"]}"#, "modalities"),
        (
            r#"{"response_format": {"type": "json_object"}}"#,
            "response_format.type",
        ),
        (
            r#"{"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "^a\\!$"}}}}"#,
            "response_format.type",
        ),
        (r#"{"response_format": "text"}"#, "response_format.type"),
        (r#"{"guided_json": {"type": "object"}}"#, "guided_json"),
        (r#"{"guided_regex": "a+"}"#, "guided_regex"),
        (r#"{"guided_choice": ["a", "b"]}"#, "guided_choice"),
        (r#"{"guided_grammar": "root ::= \"a\""}"#, "guided_grammar"),
        (r#"{"structured_outputs": {"json": {}}}"#, "structured_outputs"),
        (r#"{"json_schema": {}}"#, "json_schema"),
        (r#"{"grammar": "root ::= \"a\""}"#, "grammar"),
        (r#"{"min_tokens": 3}"#, "min_tokens"),
        (r#"{"stop_token_ids": [5]}"#, "stop_token_ids"),
        (r#"{"bad_words": ["a"]}"#, "bad_words"),
        (r#"{"use_beam_search": true}"#, "use_beam_search"),
        (r#"{"logit_bias": {"05": 1}}"#, "logit_bias.05"),
        (r#"{"logit_bias": {"+5": 1}}"#, "logit_bias.+5"),
    ] {
        let error = chat_of(serde_json::from_str(json).unwrap()).expect_err(json);
        assert_eq!(error.status(), 400, "{json}");
        assert_eq!(error.body().error.param.as_deref(), Some(param), "{json}");
    }
}

#[test]
fn completion_refusals_name_the_field() {
    for (json, param) in [
        (r#"{"best_of": 2}"#, "best_of"),
        (r#"{"suffix": "x"}"#, "suffix"),
        (r#"{"tools": [{}]}"#, "tools"),
        (r#"{"guided_json": {}}"#, "guided_json"),
        (r#"{"logprobs": 6}"#, "logprobs"),
        (r#"{"logprobs": 1, "echo": true}"#, "echo"),
        (r#"{"max_tokens": 0}"#, "max_tokens"),
    ] {
        let error = completion_of(serde_json::from_str(json).unwrap()).expect_err(json);
        assert_eq!(error.body().error.param.as_deref(), Some(param), "{json}");
    }
}

#[test]
fn extensions_that_ask_for_nothing_pass_and_huge_numbers_are_shown_short() {
    let asked = chat_of(serde_json::json!({
        "guided_json": null, "guided_choice": [], "min_tokens": 0, "stop_token_ids": [], "use_beam_search": false
    }));
    assert!(asked.is_ok());
    let refused = chat_of(serde_json::json!({"temperature": 1e308})).unwrap_err();
    assert_eq!(
        refused.body().error.message,
        "`temperature` is 1e308; send 0 to 2"
    );
}

#[test]
fn messages_are_texts() {
    let read = |json: &str| messages(&serde_json::from_str::<Vec<Message>>(json).unwrap());
    let ok = read(r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "N"}]"#).unwrap();
    assert_eq!(
        ok,
        [ChatMessage {
            role: "user".into(),
            content: "a\nb".into(),
            name: Some("N".into())
        }]
    );
    for (json, param) in [
        ("[]", "messages"),
        (
            r#"[{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]"#,
            "messages[1].role",
        ),
        (r#"[{"role": "user"}]"#, "messages[0].content"),
        (r#"[{"role": "user", "content": null}]"#, "messages[0].content"),
        (
            r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]"#,
            "messages[0].content[0].type",
        ),
        (
            r#"[{"role": "user", "content": [{"type": "text"}]}]"#,
            "messages[0].content[0]",
        ),
        (
            r#"[{"role": "assistant", "content": null, "tool_calls": [{}]}]"#,
            "messages[0].tool_calls",
        ),
    ] {
        let error = read(json).expect_err(json);
        assert_eq!(
            (error.status().as_u16(), error.body().error.param.as_deref()),
            (400, Some(param)),
            "{json}"
        );
    }
}
