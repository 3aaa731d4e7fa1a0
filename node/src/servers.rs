//! The servers of a node's gateway: they run until they are told to drain, and one that ends before is a failure.

use std::io;

use tokio::task::{JoinError, JoinSet};

use crate::NodeError;

type Ended = Result<(&'static str, io::Result<()>), JoinError>;

/// Tasks of the servers; dropping it ends them at once.
#[derive(Default)]
pub(crate) struct Servers {
    tasks: JoinSet<(&'static str, io::Result<()>)>,
}

impl Servers {
    /// Starts one.
    pub fn start(&mut self, what: &'static str, server: impl Future<Output = io::Result<()>> + Send + 'static) {
        self.tasks.spawn(async move { (what, server.await) });
    }

    /// Resolves when the first of them ends though nobody told it to.
    pub async fn failure(&mut self) -> NodeError {
        match self.tasks.join_next().await {
            Some(ended) => failure(ended),
            None => std::future::pending().await,
        }
    }

    /// They were told to drain: waits for the rest.
    pub async fn drained(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if !matches!(ended, Ok((_, Ok(())))) {
                let error = failure(ended);
                tracing::error!(%error, "a server did not drain");
            }
        }
    }
}

fn failure(ended: Ended) -> NodeError {
    let (what, error) = match ended {
        Ok((what, Err(error))) => (what, error),
        Ok((what, Ok(()))) => (what, io::Error::other("it ended by itself")),
        Err(error) => ("HTTP or gRPC", io::Error::other(error)),
    };
    NodeError::Server { what, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn defect() -> io::Result<()> {
        panic!("a defect")
    }

    #[tokio::test]
    async fn a_server_that_ends_early_is_told_whatever_it_ended_with() {
        let mut servers = Servers::default();
        servers.start("HTTP", std::future::pending());
        servers.start("gRPC", async { Err(io::Error::other("no more files")) });
        let error = servers.failure().await.to_string();
        assert!(error.contains("gRPC") && error.contains("no more files"), "{error}");
        servers.start("gRPC", async { Ok(()) });
        assert!(servers.failure().await.to_string().contains("by itself"));
        servers.start("gRPC", defect());
        assert!(servers.failure().await.to_string().contains("panic"));
    }
}
