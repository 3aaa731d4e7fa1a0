//! Files that differ from good ones in a value or a type: each is refused, or served; none ends the node.

mod mutation;
mod sources;

use std::{path::Path, time::Duration};

use anyhow::Result;
use mesh_tests::{ChatCall, Processes};

use mutation::Mutation;

/// Mutants of a usual run: as many as take well under a minute. `MESH_MUTANTS=500` runs more.
const MUTANTS: u64 = 150;

/// Where the pseudo-random choices start; `MESH_MUTANTS_SEED` starts elsewhere.
const SEED: u64 = 2026;

/// One `serve` of a mutant: a trial in a child and a load take a fraction of a second.
const SERVE_LIMIT: Duration = Duration::from_secs(60);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[derive(Debug, Default)]
struct Tally {
    refused: u64,
    died_in_a_child: u64,
    served: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_mutant_of_values_and_types_ends_the_node() -> Result<()> {
    let (seed, count) = (number("MESH_MUTANTS_SEED", SEED), number("MESH_MUTANTS", MUTANTS));
    let files = tempfile::tempdir()?;
    let sources = sources::sources(files.path())?;
    let mesh = Processes::start(1).await?;
    let mut tally = Tally::default();
    println!("seed {seed}, {count} mutants");
    for index in 0..count {
        let mutation = Mutation::new(&sources, seed.wrapping_add(index));
        let path = files.path().join(format!("mutant-{index}.gguf"));
        std::fs::write(&path, &mutation.bytes)?;
        serve_and_ask(&mesh, &path, &mutation, &mut tally).await?;
        std::fs::remove_file(&path)?;
    }
    println!("{tally:?}");
    assert!(tally.refused > 0 && tally.served > 0, "{tally:?}");
    // The node that saw them all is the one that was started, and it serves.
    let (code, _, err) = mesh.command(0, &["serve", "built-in", "--name", "psalm"]).await?;
    assert_eq!(code, 0, "{err}");
    let answer = mesh
        .api(0)
        .chat(&ChatCall::greedy("psalm", "Recite John 11:35."))
        .await?;
    assert_eq!(answer.text, "Jesus wept.");
    mesh.finish().await.map(drop)
}

/// Serves a mutant; if that works, has it say something, and stops it.
async fn serve_and_ask(mesh: &Processes, path: &Path, mutation: &Mutation, tally: &mut Tally) -> Result<()> {
    let what = &mutation.what;
    let file = path.to_string_lossy();
    let serve = ["serve", &file, "--name", "mutant", "--context", "64"];
    let (code, _, err) = tokio::time::timeout(SERVE_LIMIT, mesh.command(0, &serve)).await??;
    if code != 0 {
        tally.refused += 1;
        tally.died_in_a_child += u64::from(err.contains("in a process that tried it out"));
        println!("{what}: {}", err.trim());
        let (alive, ..) = mesh.command(0, &["status"]).await?;
        assert_eq!(alive, 0, "{what} ended the node: {err}");
        // 6: the model; 7: memory; 2: a context that the mutant was not trained with.
        assert!([2, 6, 7].contains(&code), "{what}: exit code {code}: {err}");
        return Ok(());
    }
    tally.served += 1;
    println!("{what}: served");
    // Whatever it says, or fails to.
    let call = ChatCall::greedy("mutant", "In the beginning").with("max_tokens", 4.into());
    let answer = mesh.api(0).chat(&call).await;
    let (alive, ..) = mesh.command(0, &["status"]).await?;
    assert_eq!(alive, 0, "{what} ended the node over a request: {answer:?}");
    let (code, _, err) = mesh.command(0, &["stop", "mutant"]).await?;
    assert_eq!(code, 0, "{what}: {err}");
    Ok(())
}
