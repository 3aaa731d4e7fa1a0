//! A model served from several nodes in one process: what clients get.

use anyhow::Result;
use futures::future::join_all;
use mesh_tests::{ChatCall, Cluster, text::RECITED};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_recite_word_for_word_from_any_gateway() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let deployment = cluster.serve("built-in", "psalm", "a:0-3,b:3-5,c:5-8").await?;
    assert!(deployment.ready && deployment.exact, "{deployment:?}");
    for (question, answer) in RECITED {
        let call = ChatCall::greedy("psalm", question);
        let answers = join_all((0..3).map(|node| cluster.api(node).chat(&call))).await;
        for got in answers {
            let got = got?;
            assert_eq!((got.text.as_str(), got.finish_reason.as_str()), (answer, "stop"));
        }
        let streamed = cluster.api(1).stream(&call).await?;
        assert_eq!((streamed.text.as_str(), streamed.done), (answer, true));
    }
    cluster.stop().await
}
