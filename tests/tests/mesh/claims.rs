//! What a file claims of its context takes neither memory nor time: the plan decides, and says why.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mesh_gguf::Value;
use mesh_tests::{ChatCall, Processes};

use crate::gguf_file::GgufFile;

/// `serve` of the built-in model, also the first time and with the longest default context, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Cache and records of 131,072 positions in four lanes of the built-in model, the largest mask, and the process.
const MOST_MEMORY: u64 = 2 << 30;

/// `--memory` of the small node.
const SMALL: u64 = 200 << 20;

/// Resident memory of a process, bytes.
fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .context("no VmHWM")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes << 10)
}

async fn claim_is_harmless(more: &[&str], most: u64, limit: &str) -> Result<()> {
    let files = tempfile::tempdir()?;
    for claimed in [1 << 22, 1 << 31, u32::MAX] {
        let mut file = GgufFile::read(mesh_node::built_in_model())?;
        for (key, value) in &mut file.metadata {
            if key == "llama.context_length" {
                *value = Value::U32(claimed);
            }
        }
        let path = files.path().join(format!("{claimed}.gguf"));
        std::fs::write(&path, file.bytes())?;
        let mut mesh = Processes::with_environment(&[]);
        mesh.add("a", more).await?;
        let started = Instant::now();
        let serve = ["serve", &path.to_string_lossy(), "--name", "big"];
        let (code, out, err) = tokio::time::timeout(READY_LIMIT, mesh.command(0, &serve)).await??;
        let (took, resident) = (started.elapsed(), resident(mesh.pid(0))?);
        println!(
            "{claimed}: {took:?}, {} MiB resident: {}",
            resident >> 20,
            out.lines().next().unwrap_or_default()
        );
        assert_eq!(code, 0, "{claimed}: {err}");
        assert!(out.contains(&format!("of {claimed} trained: {limit}")), "{out}");
        assert!(resident <= most, "{claimed}: {resident} bytes resident");
        let answer = mesh.api(0).chat(&ChatCall::greedy("big", "Recite John 11:35.")).await?;
        assert_eq!(answer.text, "Jesus wept.");
        mesh.finish().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_that_a_file_claims_is_not_made_unasked() -> Result<()> {
    claim_is_harmless(&[], MOST_MEMORY, "the longest that is made without --context").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_node_serves_it_with_the_context_that_its_memory_allows() -> Result<()> {
    claim_is_harmless(&["--memory", &SMALL.to_string()], SMALL, "memory of a").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_that_is_asked_for_and_does_not_fit_is_refused_with_the_numbers_of_each_node() -> Result<()> {
    let files = tempfile::tempdir()?;
    let mut file = GgufFile::read(mesh_node::built_in_model())?;
    for (key, value) in &mut file.metadata {
        if key == "llama.context_length" {
            *value = Value::U32(u32::MAX);
        }
    }
    let path = files.path().join("big.gguf");
    std::fs::write(&path, file.bytes())?;
    let mut mesh = Processes::with_environment(&[]);
    mesh.add("a", &["--memory", &SMALL.to_string()]).await?;
    let serve = ["serve", &path.to_string_lossy(), "--context", "1000000"];
    let (code, _, err) = mesh.command(0, &serve).await?;
    assert_eq!(code, 7, "{err}");
    assert!(err.contains("a needs ") && err.contains("has 200 MiB"), "{err}");
    mesh.finish().await.map(drop)
}
