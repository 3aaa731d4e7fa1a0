//! What users get wrong: a clear message that says what to do, an exit code, nothing half-made, and nodes that live on.

use std::path::{Path, PathBuf};

use anyhow::Result;
use mesh_gguf::Value;
use mesh_tests::{ChatCall, Processes, processes::run};

use crate::gguf_file::GgufFile;

/// A command that must fail with these words.
async fn refused(mesh: &Processes, arguments: &[&str], words: &[&str]) -> Result<()> {
    let (code, out, err) = mesh.command(0, arguments).await?;
    assert_ne!(code, 0, "{arguments:?} succeeded: {out}");
    for word in words {
        assert!(err.contains(word), "{arguments:?}: {word:?} is not in {err:?}");
    }
    Ok(())
}

fn leftovers(data_dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(data_dir.join("models"))
        .into_iter()
        .flatten()
        .flatten();
    files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|end| end == "tmp"))
        .collect()
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<String> {
    let path = dir.join(name);
    std::fs::write(&path, bytes)?;
    Ok(path.to_string_lossy().into_owned())
}

/// The built-in model with a stretch of bytes replaced by others of the same length.
fn altered(from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = mesh_node::built_in_model().to_vec();
    let at = bytes
        .windows(from.len())
        .position(|window| window == from)
        .unwrap_or_else(|| panic!("{from:?} is not there"));
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_models_and_stage_lists_are_refused_with_the_remedy_and_leave_nothing() -> Result<()> {
    let mesh = Processes::start(2).await?;
    let files = tempfile::tempdir()?;
    let dir = files.path();
    let model = mesh_node::built_in_model();

    let mut huge = model[..24].to_vec();
    huge[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut old = model.to_vec();
    old[4] = 1;
    // Type 8 (Q8_0) of the first block's matrix becomes one that was removed from ggml.
    let name = b"blk.0.attn_q.weight";
    let at = model
        .windows(name.len())
        .position(|window| window == name)
        .unwrap_or_default()
        + name.len();
    let mut wrong_type = model.to_vec();
    wrong_type[at + 4 + 16..at + 8 + 16].copy_from_slice(&4u32.to_le_bytes());
    let cases: [(&str, Vec<u8>, &[&str]); 6] = [
        (
            "text.gguf",
            b"hello, this is no model at all".to_vec(),
            &["text.gguf", "GGUF"],
        ),
        ("empty.gguf", Vec::new(), &["empty.gguf"]),
        ("cut.gguf", model[..model.len() / 2].to_vec(), &["cut.gguf", "byte"]),
        ("huge.gguf", huge, &["huge.gguf"]),
        ("old.gguf", old, &["version 1"]),
        ("type.gguf", wrong_type, &["blk.0.attn_q.weight", "type number 4"]),
    ];
    for (name, bytes, words) in cases {
        let path = write(dir, name, &bytes)?;
        refused(&mesh, &["serve", &path], words).await?;
    }
    let unknown = write(
        dir,
        "unknown.gguf",
        &altered(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0bloom"),
    )?;
    refused(&mesh, &["serve", &unknown], &["bloom"]).await?;
    refused(&mesh, &["serve", "/nowhere/at/all.gguf"], &["/nowhere/at/all.gguf"]).await?;
    refused(&mesh, &["serve", &dir.to_string_lossy()], &["is not a regular file"]).await?;

    for (stages, words) in [
        ("a:0-3,b:4-8", "layers 3-4 are in no stage"),
        ("a:0-4,b:3-8", "layers 3-4 are in two stages"),
        ("a:0-4,b:4-7", "layers 7-8 are in no stage"),
        ("a:0-4,z:4-8", "no node is named \"z\""),
        ("a:0-4,b:4-9", "0-8"),
        ("a:4", "range"),
        ("9", "2 node(s) are up"),
        ("0", "at least one"),
    ] {
        refused(&mesh, &["serve", "built-in", "--stages", stages], &[words]).await?;
    }
    refused(&mesh, &["serve", "built-in", "--context", "100000"], &["512"]).await?;
    refused(&mesh, &["serve", "built-in", "--lanes", "100000"], &["lanes"]).await?;
    refused(&mesh, &["serve", "built-in", "--name", "a\nb"], &["name"]).await?;
    refused(&mesh, &["stop", "nothing"], &["nothing"]).await?;

    for node in 0..2 {
        assert_eq!(leftovers(mesh.data_dir(node)), Vec::<PathBuf>::new());
        assert!(mesh.api(node).status().await?.deployments.is_empty());
    }
    let (code, _, err) = mesh
        .command(0, &["serve", "built-in", "--name", "psalm", "--stages", "2"])
        .await?;
    assert_eq!(code, 0, "{err}");
    refused(&mesh, &["serve", "built-in", "--name", "psalm"], &["exists", "--name"]).await?;
    let answer = mesh
        .api(1)
        .chat(&ChatCall::greedy("psalm", "Recite John 11:35."))
        .await?;
    assert_eq!(answer.text, "Jesus wept.");
    mesh.finish().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_files_send_nothing_to_the_terminal_and_are_cut() -> Result<()> {
    let files = tempfile::tempdir()?;
    let named = |name: &str| -> Result<String> {
        let mut file = GgufFile::read(mesh_node::built_in_model())?;
        for (key, value) in &mut file.metadata {
            if key == "general.name" {
                *value = Value::string(name);
            }
        }
        write(files.path(), "named.gguf", &file.bytes())
    };
    let hostile = "a\u{1b}[2J\u{1b}]0;owned\u{7}\nsupported      yes\r\u{202e}abc\u{9b}0m";
    let mesh = Processes::start(1).await?;
    for name in [hostile.to_owned(), "n".repeat(65_536)] {
        let path = named(&name)?;
        let serve = ["serve", &path, "--name", "named"];
        for command in [
            &["models", "inspect", &path][..],
            &serve,
            &["status"],
            &["models", "list"],
        ] {
            let (code, out, err) = mesh.command(0, command).await?;
            assert_eq!(code, 0, "{command:?}: {err}");
            let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!out.contains(bad) && !err.contains(bad), "{command:?}: {out:?} {err:?}");
            assert!(
                !out.lines().any(|line| line.starts_with("supported      yes\r")),
                "{out}"
            );
            assert!(out.lines().all(|line| line.chars().count() < 1_000), "{command:?}");
        }
        let (_, json, _) = mesh
            .command(0, &["models", "inspect", &path, "--output", "json"])
            .await?;
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json)?["name"], name);
        let (code, _, err) = mesh.command(0, &["stop", "named"]).await?;
        assert_eq!(code, 0, "{err}");
    }
    let log = std::fs::read_to_string(mesh.data_dir(0).join("log"))?;
    assert!(!log.contains(['\u{1b}', '\u{202e}', '\u{7}']), "{log:?}");
    mesh.finish().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_cannot_start_or_join_say_why() -> Result<()> {
    let mesh = Processes::start(2).await?;
    let (_, ticket, _) = mesh.command(0, &["node", "ticket"]).await?;
    let ticket = ticket.trim();
    let free = [
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
    ];
    let start = |dir: &Path, more: &[&str]| {
        let all: Vec<String> = more.iter().map(|part| (*part).to_owned()).collect();
        let dir = dir.to_owned();
        async move {
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            let (code, _, err) = run(&dir, &all).await?;
            anyhow::Ok((code, err))
        }
    };
    let fresh = || tempfile::tempdir();

    let dir = fresh()?;
    let taken = [&["node", "join", ticket, "--name", "b"][..], &free].concat();
    let (code, err) = start(dir.path(), &taken).await?;
    assert!(code != 0 && err.contains("the name b is taken"), "{code} {err}");

    let dir = fresh()?;
    let middle = ticket.len() / 2;
    let flipped = if &ticket[middle..=middle] == "a" { "b" } else { "a" };
    let altered = format!("{}{flipped}{}", &ticket[..middle], &ticket[middle + 1..]);
    for bad in ["hello", &ticket[..40], &altered] {
        let join = [&["node", "join", bad, "--name", "x"][..], &free].concat();
        let (code, err) = start(dir.path(), &join).await?;
        assert!(code != 0 && err.contains("ticket"), "{code} {err}");
    }

    let (status, _, _) = mesh.command(0, &["status"]).await?;
    assert_eq!(status, 0);
    let http = mesh.api(0).http().trim_start_matches("http://").to_owned();
    let dir = fresh()?;
    let busy = ["node", "start", "--name", "x", "--http", &http, "--grpc", "127.0.0.1:0"];
    let (code, err) = start(dir.path(), &busy).await?;
    assert!(code != 0 && err.contains("--http"), "{code} {err}");

    let again = [&["node", "start", "--name", "a"][..], &free].concat();
    let (code, err) = start(mesh.data_dir(0), &again).await?;
    assert!(code != 0 && err.contains("in use"), "{code} {err}");

    let dir = fresh()?;
    let open = ["node", "start", "--name", "x", "--http", "0.0.0.0:0"];
    let (code, err) = start(dir.path(), &open).await?;
    assert!(code != 0 && err.contains("--insecure"), "{code} {err}");

    let (code, err) = start(dir.path(), &["status"]).await?;
    assert!(code != 0 && err.contains("mesh node start"), "{code} {err}");
    mesh.finish().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_data_directory_of_another_node_is_refused() -> Result<()> {
    let mut mesh = Processes::start(2).await?;
    mesh.kill(1).await?;
    let dir = mesh.data_dir(1).to_owned();
    let free = [
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
    ];
    let other = [&["node", "start", "--name", "z"][..], &free].concat();
    let (code, _, err) = run(&dir, &other).await?;
    assert!(code != 0 && err.contains("belongs to node b"), "{code} {err}");
    mesh.finish().await.map(drop)
}
