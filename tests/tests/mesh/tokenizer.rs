//! Prompts, templates and vocabularies that end the process that reads them: a child's, never the node's.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use mesh_gguf::Value;
use mesh_tests::{Api, ChatCall, Processes, until, weights::built_in_with};
use serde_json::json;

/// A child is started in a fraction of a second.
const CHILD_LIMIT: Duration = Duration::from_secs(20);

/// A node that is told to stop may not wait for what a child is at, which is given 20 s.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Values nested deeper than the stack of the thread that renders: printing walks them by recursion.
const DEEP: &str = "{% set ns = namespace(l=[]) %}{% for a in range(1000) %}{% for b in range(1000) %}\
                    {% set ns.l = [ns.l] %}{% endfor %}{% endfor %}{{ ns.l }}";

/// Serves the built-in weights with other metadata, from the first node.
async fn serve(mesh: &Processes, name: &str, settings: &[(&str, Value)]) -> Result<(i32, String)> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join(format!("{name}.gguf"));
    std::fs::write(&path, built_in_with(settings))?;
    let path = path.to_string_lossy();
    let (code, _, err) = mesh
        .command(0, &["serve", &path, "--name", name, "--stages", "a:0-8"])
        .await?;
    Ok((code, err))
}

/// A template that does this when the first message is `go`, and is harmless otherwise.
fn when_told(template: &str) -> Value {
    Value::string(format!(
        "{{% if messages[0].content == 'go' %}}{template}{{% endif %}}{{{{ messages[0].content }}}}"
    ))
}

/// Status, and the error's code and message.
async fn post(api: &Api, path: &str, body: &serde_json::Value) -> Result<(u16, String, String)> {
    let response = api.post(path, body).await?;
    let status = response.status().as_u16();
    let body: serde_json::Value = response.json().await?;
    let text = |field: &str| body["error"][field].as_str().unwrap_or_default().to_owned();
    Ok((status, text("code"), text("message")))
}

async fn chat(api: &Api, model: &str, content: &str) -> Result<(u16, String, String)> {
    let call = ChatCall::greedy(model, content).with("max_tokens", json!(2));
    post(api, "/v1/chat/completions", call.body()).await
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|line| {
            line.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect()
}

fn kill(signal: &str, pid: u32) -> Result<()> {
    let status = std::process::Command::new("kill")
        .args([signal, &pid.to_string()])
        .status()?;
    anyhow::ensure!(status.success(), "kill {signal} {pid} failed");
    Ok(())
}

fn lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_of_like_characters_is_refused_for_its_length_and_the_node_lives() -> Result<()> {
    let mesh = Processes::start(2).await?;
    for pre in ["gpt-4o", "tekken", "falcon"] {
        let (code, err) = serve(&mesh, pre, &[("tokenizer.ggml.pre", Value::string(pre))]).await?;
        assert_eq!(code, 0, "{err}");
        for (node, character, count) in [
            (0, "a", 7_000),
            (1, "a", 7_000),
            (0, "!", 7_000),
            (0, "7", 7_000),
            (0, "a", 1 << 20),
            (1, "漢", 1 << 20),
        ] {
            let body = json!({"model": pre, "prompt": character.repeat(count), "max_tokens": 1});
            let (status, code, message) = post(&mesh.api(node), "/v1/completions", &body).await?;
            assert_eq!(
                (status, code.as_str()),
                (400, "context_length_exceeded"),
                "{pre}: {message}"
            );
            assert!(message.contains("shorten the prompt"), "{message}");
        }
        assert_eq!(chat(&mesh.api(1), pre, "hello").await?.0, 200);
    }
    mesh.finish().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_hangs_or_ends_its_process_falls_back_when_the_model_is_served() -> Result<()> {
    let mesh = Processes::start(1).await?;
    let nested = "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}x\
                  {% endfor %}{% endfor %}{% endfor %}";
    // Folding these constants takes many seconds, and is done before there is any fuel.
    let folded = format!("{{{{ 1{} }}}}", "~1".repeat(30_000));
    for (name, template) in [("nested", nested), ("deep", DEEP), ("folded", &folded)] {
        let (code, err) = serve(&mesh, name, &[("tokenizer.chat_template", Value::string(template))]).await?;
        assert_eq!(code, 0, "{err}");
        let deployment = mesh.api(0).deployment(name).await?.context("served")?;
        let used = deployment.chat_template;
        assert!(
            used.starts_with("chatml (fallback: the model's does not work: "),
            "{used}"
        );
        assert_eq!(chat(&mesh.api(0), name, "hello").await?.0, 200);
    }
    mesh.finish().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_that_ends_its_process_is_refused_and_those_beside_it_are_answered() -> Result<()> {
    let mesh = Processes::start(1).await?;
    let (code, err) = serve(&mesh, "deep", &[("tokenizer.chat_template", when_told(DEEP))]).await?;
    assert_eq!(code, 0, "{err}");
    let api = mesh.api(0);
    let questions = ["hello", "go", "hello", "go", "hello", "hello"];
    let answers = futures::future::try_join_all(questions.map(|question| chat(&api, "deep", question))).await?;
    for (question, (status, code, message)) in questions.iter().zip(answers) {
        println!("{question}: {status} {code} {message}");
        match *question {
            "go" => {
                assert_eq!((status, code.as_str()), (400, "template_error"), "{message}");
                assert!(
                    message.contains("too much time or memory") && message.contains("shorten"),
                    "{message}"
                );
            }
            _ => assert_eq!(status, 200, "{code}: {message}"),
        }
    }
    mesh.finish().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_told_to_stop_does_not_wait_for_what_is_rendered() -> Result<()> {
    let mut mesh = Processes::start(1).await?;
    let (code, err) = serve(&mesh, "psalm", &[]).await?;
    assert_eq!(code, 0, "{err}");
    let api = mesh.api(0);
    let [child] = children(mesh.pid(0))[..] else {
        panic!("one head has one child: {:?}", children(mesh.pid(0)));
    };
    // From now on it is at its work for as long as it is let.
    kill("-STOP", child)?;
    let asking = tokio::spawn({
        let api = api.clone();
        async move { chat(&api, "psalm", "hello").await }
    });
    until("the request is there", CHILD_LIMIT, || async {
        (!api.requests(false).await.ok()?.requests.is_empty()).then_some(())
    })
    .await;
    mesh.signal(0, "-TERM").await?;
    let status = tokio::time::timeout(STOP_LIMIT, mesh.wait(0))
        .await
        .context("it waits")??;
    assert_eq!(status.code(), Some(0));
    let (status, code, _) = asking.await??;
    assert_eq!((status, code.as_str()), (503, "draining"));
    until("no child is left", CHILD_LIMIT, || async {
        (!lives(child)).then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_end_with_their_node_and_are_replaced_when_they_end() -> Result<()> {
    let mut mesh = Processes::start(1).await?;
    let (code, err) = serve(&mesh, "psalm", &[]).await?;
    assert_eq!(code, 0, "{err}");
    let api = mesh.api(0);
    let [first] = children(mesh.pid(0))[..] else {
        panic!("one head has one child: {:?}", children(mesh.pid(0)));
    };
    kill("-KILL", first)?;
    let second = until("another child", CHILD_LIMIT, || async {
        let [second] = children(mesh.pid(0))[..] else {
            return None;
        };
        (second != first).then_some(second)
    })
    .await;
    assert_eq!(chat(&api, "psalm", "hello").await?.0, 200);
    assert!(!lives(first), "it was reaped");
    kill("-KILL", mesh.pid(0))?;
    mesh.wait(0).await?;
    until("no child is left", CHILD_LIMIT, || async {
        (!lives(second)).then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vocabulary_that_cannot_take_every_text_is_refused_when_it_is_served() -> Result<()> {
    let mesh = Processes::start(1).await?;
    // SentencePiece falls back on tokens for bytes, and this vocabulary spells its bytes as GPT-2 does.
    let (code, err) = serve(&mesh, "spm", &[("tokenizer.ggml.model", Value::string("llama"))]).await?;
    assert_eq!(code, 6, "{err}");
    assert!(
        err.contains("has no token <0x00>") && err.contains("convert the model again"),
        "{err}"
    );
    assert!(mesh.api(0).status().await?.deployments.is_empty());
    let (code, err) = serve(&mesh, "psalm", &[]).await?;
    assert_eq!(code, 0, "{err}");
    assert_eq!(chat(&mesh.api(0), "psalm", "hello").await?.0, 200);
    mesh.finish().await?;
    Ok(())
}
