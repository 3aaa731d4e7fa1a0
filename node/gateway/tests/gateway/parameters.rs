//! Parameters: what is understood, refused and ignored.

use std::sync::Arc;

use mesh_proto::{
    sampling::default_sampling,
    v1::{GenerateRequest, LogitBias, Sampling, generate_request::Prompt},
};
use serde_json::json;

use crate::{
    scripted::Immediate,
    server::{Server, chat_body, refusal, start},
};

async fn server() -> (Arc<Immediate>, Server) {
    let inference = Arc::new(Immediate::default());
    (inference.clone(), start(inference).await)
}

async fn accepted(inference: &Immediate, server: &Server, more: &str) -> GenerateRequest {
    let response = server.chat(chat_body(more)).await;
    assert_eq!(response.status(), 200, "{more}: {}", response.text().await.unwrap());
    inference.last()
}

#[tokio::test]
async fn without_parameters_the_defaults_hold() {
    let (inference, server) = server().await;
    let request = accepted(&inference, &server, "").await;
    assert_eq!(request.sampling, Some(default_sampling()));
    assert_eq!((request.max_tokens, request.stop), (None, vec![]));
    let nulls = r#","temperature":null,"stop":null,"max_tokens":null,"seed":null,"tools":null,"n":null,"logit_bias":null,"stream":null,"stream_options":null,"logprobs":null"#;
    assert_eq!(
        accepted(&inference, &server, nulls).await.sampling,
        Some(default_sampling())
    );
}

#[tokio::test]
async fn every_offered_parameter_arrives() {
    let (inference, server) = server().await;
    let more = r#","temperature":0.5,"top_p":0.9,"presence_penalty":-1,"frequency_penalty":1.5,"seed":-1,
        "stop":["a","b"],"logit_bias":{"5":-100,"7":1.5},"max_tokens":9,"max_completion_tokens":9,
        "top_k":40,"min_p":0.05,"typical_p":0.75,"repeat_penalty":1.25,"n":1"#;
    let request = accepted(&inference, &server, more).await;
    let expected = Sampling {
        temperature: 0.5,
        top_p: 0.9,
        top_k: 40,
        min_p: 0.05,
        typical_p: 0.75,
        presence_penalty: -1.0,
        frequency_penalty: 1.5,
        repeat_penalty: 1.25,
        logit_bias: vec![LogitBias { token: 5, bias: -100.0 }, LogitBias { token: 7, bias: 1.5 }],
        seed: Some(u64::MAX),
        prompt_tokens: 0,
    };
    assert_eq!(request.sampling, Some(expected));
    assert_eq!(request.stop, ["a", "b"]);
    assert_eq!(request.max_tokens, Some(9));
    let request = accepted(&inference, &server, r#","stop":"x","max_completion_tokens":99999999999,"top_k":-1,"seed":18446744073709551615,"repetition_penalty":1.5"#).await;
    assert_eq!(
        (request.stop, request.max_tokens),
        (vec!["x".to_owned()], Some(u32::MAX))
    );
    let sampling = request.sampling.unwrap();
    assert_eq!(
        (sampling.top_k, sampling.seed, sampling.repeat_penalty),
        (0, Some(u64::MAX), 1.5)
    );
}

#[tokio::test]
async fn what_cannot_change_the_answer_is_ignored() {
    let (inference, server) = server().await;
    let more = r#","user":"u","metadata":{"a":[1]},"store":true,"service_tier":"auto","parallel_tool_calls":true,
        "safety_identifier":"s","prompt_cache_key":"k","cache_prompt":true,"tools":[],"tool_choice":"none",
        "response_format":{"type":"text"},"modalities":["text"],"logprobs":false,"top_logprobs":0"#;
    let request = accepted(&inference, &server, more).await;
    assert_eq!(request.sampling, Some(default_sampling()));
}

#[tokio::test]
async fn what_would_change_the_answer_is_refused_by_name() {
    let (_, server) = server().await;
    let invalid = [
        (r#""temperature":2.1"#, "temperature"),
        (r#""temperature":-0.1"#, "temperature"),
        (r#""temperature":"1""#, "temperature"),
        (r#""temperature":1e300"#, "temperature"),
        (r#""top_p":0"#, "top_p"),
        (r#""top_p":1.1"#, "top_p"),
        (r#""presence_penalty":3"#, "presence_penalty"),
        (r#""frequency_penalty":-3"#, "frequency_penalty"),
        (r#""min_p":-1"#, "min_p"),
        (r#""top_k":-2"#, "top_k"),
        (r#""seed":1.5"#, "seed"),
        (r#""seed":18446744073709551616"#, "seed"),
        (r#""max_tokens":0"#, "max_tokens"),
        (r#""max_tokens":-1"#, "max_tokens"),
        (r#""max_tokens":1e400"#, "max_tokens"),
        (r#""max_completion_tokens":0"#, "max_completion_tokens"),
        (r#""max_tokens":1,"max_completion_tokens":2"#, "max_completion_tokens"),
        (r#""repeat_penalty":1,"repetition_penalty":2"#, "repeat_penalty"),
        (r#""stop":["a","b","c","d","e"]"#, "stop"),
        (r#""stop":"""#, "stop"),
        (r#""stop":{}"#, "stop"),
        (r#""logit_bias":{"5":101}"#, "logit_bias"),
        (r#""logit_bias":{"five":1}"#, "logit_bias"),
        (r#""logit_bias":[1]"#, "logit_bias"),
        (r#""n":0"#, "n"),
        (r#""n":"2""#, "n"),
        (r#""stream":"yes""#, "stream"),
        (r#""stream_options":{"include_usage":true}"#, "stream_options"),
        (r#""prompt":"hi""#, "prompt"),
        (r#""max_token":5"#, "max_token"),
        (r#""model":7"#, "model"),
    ];
    let unsupported = [
        (r#""n":2"#, "n"),
        (r#""best_of":2"#, "best_of"),
        (r#""logprobs":true"#, "logprobs"),
        (r#""logprobs":0"#, "logprobs"),
        (r#""top_logprobs":2"#, "top_logprobs"),
        (r#""tools":[{"type":"function","function":{"name":"f"}}]"#, "tools"),
        (r#""tool_choice":"auto""#, "tool_choice"),
        (r#""tool_choice":{"type":"function"}"#, "tool_choice"),
        (r#""functions":[{"name":"f"}]"#, "functions"),
        (r#""response_format":{"type":"json_object"}"#, "response_format"),
        (r#""suffix":"x""#, "suffix"),
        (r#""echo":true"#, "echo"),
        (r#""audio":{"voice":"x"}"#, "audio"),
        (r#""modalities":["text","audio"]"#, "modalities"),
        (r#""prediction":{"type":"content"}"#, "prediction"),
    ];
    let all = invalid.iter().map(|case| (case, "invalid_request"));
    for ((field, name), code) in all.chain(unsupported.iter().map(|case| (case, "unsupported_parameter"))) {
        let body = if field.contains("\"model\"") {
            format!("{{{field}}}")
        } else {
            chat_body(&format!(",{field}"))
        };
        let (status, error) = refusal(server.chat(body).await).await;
        let got = (
            status,
            error["param"].as_str().unwrap_or("-"),
            error["code"].as_str().unwrap(),
        );
        assert_eq!(got, (400, *name, code), "{field}: {error}");
    }
}

#[tokio::test]
async fn a_field_that_appears_twice_is_refused() {
    let (_, server) = server().await;
    let (status, error) = refusal(server.chat(chat_body(r#","seed":1,"seed":2"#)).await).await;
    assert_eq!(status, 400);
    assert!(error["message"].as_str().unwrap().contains("seed"), "{error}");
}

#[tokio::test]
async fn messages_in_every_supported_form_arrive() {
    let (inference, server) = server().await;
    let body = r#"{"model":"smol","messages":[
        {"role":"developer","content":"be brief"},
        {"role":"user","name":"ann","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
        {"role":"assistant","content":null,"refusal":null,"tool_calls":[],"function_call":null,"audio":null,"annotations":[]},
        {"role":"user","content":"<|im_end|>"}]}"#;
    assert_eq!(server.chat(body).await.status(), 200);
    let Some(Prompt::Chat(chat)) = inference.last().prompt else {
        panic!("a chat")
    };
    let messages: Vec<_> = chat
        .messages
        .iter()
        .map(|m| (m.role.as_str(), m.content.as_str(), m.name.as_deref()))
        .collect();
    let expected = [
        ("system", "be brief", None),
        ("user", "a\nb", Some("ann")),
        ("assistant", "", None),
        ("user", "<|im_end|>", None),
    ];
    assert_eq!(messages, expected);
}

#[tokio::test]
async fn messages_that_mean_nothing_or_are_not_supported_are_refused_by_place() {
    let (_, server) = server().await;
    let cases = [
        ("[]", "messages", "invalid_request"),
        ("{}", "messages", "invalid_request"),
        (r#"[{"content":"x"}]"#, "messages[0].role", "invalid_request"),
        (
            r#"[{"role":"robot","content":"x"}]"#,
            "messages[0].role",
            "invalid_request",
        ),
        (r#"[{"role":"user"}]"#, "messages[0].content", "invalid_request"),
        (
            r#"[{"role":"user","content":null}]"#,
            "messages[0].content",
            "invalid_request",
        ),
        (
            r#"[{"role":"user","content":7}]"#,
            "messages[0].content",
            "invalid_request",
        ),
        (r#"["hi"]"#, "messages[0]", "invalid_request"),
        (
            r#"[{"role":"user","content":[{"type":"text"}]}]"#,
            "messages[0].content[0].text",
            "invalid_request",
        ),
        (
            r#"[{"role":"user","content":[{"text":"a"}]}]"#,
            "messages[0].content[0].type",
            "invalid_request",
        ),
        (
            r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]"#,
            "messages[0].content[0]",
            "unsupported_parameter",
        ),
        (
            r#"[{"role":"tool","tool_call_id":"c","content":"x"}]"#,
            "messages[0].role",
            "unsupported_parameter",
        ),
        (
            r#"[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"c"}]}]"#,
            "messages[1].tool_calls",
            "unsupported_parameter",
        ),
    ];
    for (messages, param, code) in cases {
        let (status, error) = refusal(
            server
                .chat(format!(r#"{{"model":"smol","messages":{messages}}}"#))
                .await,
        )
        .await;
        assert_eq!(
            (status, &error["param"], &error["code"]),
            (400, &json!(param), &json!(code)),
            "{messages}"
        );
    }
    let (status, error) = refusal(server.chat(r#"{"model":"smol"}"#).await).await;
    assert_eq!((status, &error["param"]), (400, &json!("messages")));
}

#[tokio::test]
async fn one_prompt_is_taken_in_every_form_and_several_are_refused() {
    let (inference, server) = server().await;
    for (prompt, tokens) in [
        (r#""hi""#, false),
        (r#"["hi"]"#, false),
        ("[1,2]", true),
        ("[[1,2]]", true),
    ] {
        assert_eq!(
            server
                .text(format!(r#"{{"model":"smol","prompt":{prompt}}}"#))
                .await
                .status(),
            200
        );
        match inference.last().prompt {
            Some(Prompt::Text(text)) => assert!(!tokens && text == "hi"),
            Some(Prompt::Tokens(prompt)) => assert!(tokens && prompt.ids == [1, 2]),
            _ => panic!("a prompt"),
        }
    }
    for prompt in [r#"["a","b"]"#, "[[1],[2]]", "[]", "[-1]", r#"[1,"a"]"#, "7", "null"] {
        let (status, error) = refusal(server.text(format!(r#"{{"model":"smol","prompt":{prompt}}}"#)).await).await;
        assert_eq!((status, &error["param"]), (400, &json!("prompt")), "{prompt}");
    }
    let (_, error) = refusal(server.text(r#"{"model":"smol","messages":[]}"#).await).await;
    assert_eq!(error["param"], "messages");
}
