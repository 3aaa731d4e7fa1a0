//! The official `openai` Python package, unmodified, from any node's port.

use anyhow::Result;
use mesh_tests::Processes;
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_package_streams_and_completes_from_any_port() -> Result<()> {
    let Ok(python) = std::env::var("MESH_TEST_PYTHON") else {
        eprintln!("skipped: MESH_TEST_PYTHON is not set; tests/run.sh sets it");
        return Ok(());
    };
    let mesh = Processes::start(3).await?;
    let (code, _, err) = mesh
        .command(1, &["serve", "built-in", "--name", "psalm", "--stages", "3"])
        .await?;
    assert_eq!(code, 0, "{err}");
    for node in 0..3 {
        let base = format!("{}/v1", mesh.api(node).http());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/openai_client.py");
        let output = Command::new(&python)
            .arg(script)
            .arg(&base)
            .kill_on_drop(true)
            .output()
            .await?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    mesh.finish().await.map(drop)
}
