//! Receipts in files: what requests came to outlives the node, and whoever touches it is found out.

use std::time::Duration;

use anyhow::{Context, Result};
use mesh_proto::v1::ServeRequest;
use mesh_tests::{ChatCall, Processes, until};
use serde_json::{Value, json};

const RETURN_LIMIT: Duration = Duration::from_secs(60);

/// The node whose receipts are kept; the other one watches.
const KEEPER: usize = 1;

async fn export(mesh: &Processes, since: &str) -> Result<Vec<Value>> {
    let arguments = ["receipts", "export", "--since", since, "--output", "json"];
    let (code, out, err) = mesh.command(KEEPER, &arguments).await?;
    assert_eq!((code, err.as_str()), (0, ""));
    Ok(out.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Exit code, and what is printed.
async fn verify(mesh: &Processes) -> Result<(i32, Value)> {
    let (code, out, _) = mesh
        .command(KEEPER, &["receipts", "verify", "--output", "json"])
        .await?;
    Ok((code, serde_json::from_str(&out)?))
}

async fn recite(mesh: &Processes) -> Result<()> {
    let call = ChatCall::greedy("psalm", "Recite John 11:35.");
    assert_eq!(mesh.api(0).chat(&call).await?.text, "Jesus wept.");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_outlive_their_node_and_show_who_touched_them() -> Result<()> {
    let mut mesh = Processes::start(1).await?;
    mesh.add("b", &["--receipts=always"]).await?;
    let request = ServeRequest {
        model: "built-in".to_owned(),
        name: "psalm".to_owned(),
        stages: "b:0-4,a:4-8".to_owned(),
        ..ServeRequest::default()
    };
    mesh.api(0).serve(request).await?;
    for _ in 0..3 {
        recite(&mesh).await?;
    }
    let refused = ChatCall::greedy("psalm", &"word ".repeat(5000)).with("stream", json!(false));
    assert!(mesh.api(0).chat(&refused).await.is_err());

    // While it runs: a client has its answer a moment before the receipt is on the disk.
    until("three receipts are in the file", RETURN_LIMIT, || async {
        (export(&mesh, "1").await.ok()?.len() == 3).then_some(())
    })
    .await;
    let lines = export(&mesh, "1").await?;
    for (index, line) in lines.iter().enumerate() {
        let receipt = &line["receipt"];
        assert_eq!((&line["seq"], &line["kind"]), (&json!(index + 1), &json!("receipt")));
        assert_eq!(
            (&receipt["node"], &receipt["deployment"]),
            (&json!("b"), &json!("psalm"))
        );
        assert_eq!(
            (&receipt["finish_reason"], &receipt["token_ids"]),
            (&json!("stop"), &Value::Null)
        );
        assert_eq!(receipt["timings"]["stage_us"].as_array().map(Vec::len), Some(2));
    }
    let (code, found) = verify(&mesh).await?;
    assert_eq!((code, &found["receipts"], &found["faults"]), (0, &json!(3), &json!([])));
    let id = lines[0]["receipt"]["request_id"].as_str().context("an id")?.to_owned();
    let (code, shown, _) = mesh.command(0, &["requests", "show", &id, "--output", "json"]).await?;
    let shown: Value = serde_json::from_str(&shown)?;
    assert_eq!((code, &shown["receipt"]), (0, &lines[0]["receipt"]));

    // Killed at once; the settings come from the file this time.
    mesh.kill(KEEPER).await?;
    std::fs::write(
        mesh.data_dir(KEEPER).join("config.toml"),
        "receipts = \"always\"\nreceipt_tokens = true\n",
    )?;
    mesh.restart(KEEPER).await?;
    let api = mesh.api(0);
    until("the deployment comes back with its node", RETURN_LIMIT, || async {
        let deployment = api.deployment("psalm").await.ok()??;
        (deployment.ready && deployment.epoch > 1).then_some(())
    })
    .await;
    recite(&mesh).await?;
    until("the fourth receipt is in the file", RETURN_LIMIT, || async {
        (export(&mesh, "4").await.ok()?.len() == 1).then_some(())
    })
    .await;
    let fourth = &export(&mesh, "4").await?[0];
    assert_eq!(fourth["seq"], 4);
    let (count, ids) = (&fourth["receipt"]["completion_tokens"], &fourth["receipt"]["token_ids"]);
    assert_eq!(count.as_u64(), ids.as_array().map(|ids| ids.len() as u64));
    assert_eq!(verify(&mesh).await?.0, 0);

    // Somebody would like an answer to have been longer.
    let file = mesh
        .data_dir(KEEPER)
        .join("receipts/receipts-00000000000000000001.jsonl");
    let text = std::fs::read_to_string(&file)?;
    let longer = |line: &str| line.replacen("\"completion_tokens\":", "\"completion_tokens\":1", 1);
    let changed: Vec<String> = text
        .lines()
        .enumerate()
        .map(|(at, line)| if at == 1 { longer(line) } else { line.to_owned() })
        .collect();
    std::fs::write(&file, changed.join("\n") + "\n")?;
    let (code, out, err) = mesh.command(KEEPER, &["receipts", "verify"]).await?;
    assert_eq!(code, 1, "{err}");
    assert!(
        out.contains("receipts-00000000000000000001.jsonl:2: line number 2"),
        "{out}"
    );
    assert!(err.contains("1 fault"), "{err}");
    std::fs::write(&file, text)?;
    assert_eq!(verify(&mesh).await?.0, 0);
    mesh.finish().await.map(drop)
}
