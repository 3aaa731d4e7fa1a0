//! The gateway of one node: what HTTP and gRPC share, and the two servers.

use std::{io, sync::Arc};

use axum::Router;
use mesh_actors::ports::{
    inference::{Administration, SharedInference},
    lifecycle::Lifecycles,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    access::Access,
    admission::Admission,
    grpc, http,
    options::GatewayOptions,
    origins::Origins,
    serve::{self, Pace, Places, Serving, Wire},
};

/// What every handler sees.
pub(crate) struct Shared {
    pub(crate) options: GatewayOptions,
    pub(crate) access: Access,
    pub(crate) origins: Origins,
    /// Bodies of both listeners.
    bodies: Places,
    pub(crate) admission: Admission,
    pub(crate) inference: SharedInference,
    pub(crate) administration: Arc<dyn Administration>,
    pub(crate) lifecycles: Arc<dyn Lifecycles>,
}

/// HTTP and gRPC front of one node. Clones share everything: one limit of requests in flight, one drain.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

impl Gateway {
    /// A gateway in front of these ports.
    pub fn new(
        options: GatewayOptions,
        inference: SharedInference,
        administration: Arc<dyn Administration>,
        lifecycles: Arc<dyn Lifecycles>,
    ) -> Self {
        let access = Access::new(options.api_key.clone(), options.admin_token.clone());
        let limits = options.connections;
        let admission = Admission::new(limits.in_flight(options.max_in_flight));
        let origins = Origins::new(options.origins.clone());
        Self {
            shared: Arc::new(Shared {
                options,
                access,
                origins,
                bodies: Places::new("bodies being read", limits.bodies()),
                admission,
                inference,
                administration,
                lifecycles,
            }),
        }
    }

    /// The routes of the OpenAI API, `/healthz` and `/readyz`, to be served or merged with others.
    pub fn http(&self) -> Router {
        self.http_with(Router::new())
    }

    /// As [`Gateway::http`], with more routes that ask for the API key as the others do.
    pub fn http_with(&self, more: Router) -> Router {
        http::router(self.shared.clone(), more)
    }

    /// Serves HTTP/1 until `shutdown`, then drains: new work is refused with 503 `draining`; running requests finish,
    /// or end with one error event at the deadline of the options. Dropping the future ends everything at once.
    ///
    /// # Errors
    ///
    /// The listener's, if it has no address.
    pub async fn serve_http(&self, listener: TcpListener, shutdown: CancellationToken) -> io::Result<()> {
        self.serve_http_routes(listener, self.http(), shutdown).await
    }

    /// As [`Gateway::serve_http`], with other routes, such as those of [`Gateway::http_with`].
    ///
    /// # Errors
    ///
    /// As [`Gateway::serve_http`].
    pub async fn serve_http_routes(
        &self,
        listener: TcpListener,
        routes: Router,
        shutdown: CancellationToken,
    ) -> io::Result<()> {
        let ended = self.drain_after(shutdown);
        let serving = self.serving(routes, Wire::Http1, "HTTP connections");
        serve::serve(listener, serving, ended).await
    }

    /// Serves gRPC (HTTP/2 without TLS) until `shutdown`, then drains as [`Gateway::serve_http`] does; health says
    /// `NOT_SERVING` from then on.
    ///
    /// # Errors
    ///
    /// As [`Gateway::serve_http`]; reflection data that does not decode.
    pub async fn serve_grpc(&self, listener: TcpListener, shutdown: CancellationToken) -> io::Result<()> {
        let health = grpc::Health::serving().await;
        let routes = grpc::routes(self.shared.clone(), &health).map_err(io::Error::other)?;
        let ended = async {
            shutdown.cancelled().await;
            health.stopping().await;
            self.drain_after(shutdown).await;
        };
        let serving = self.serving(routes, Wire::Http2, "gRPC connections");
        serve::serve(listener, serving, ended).await
    }

    fn serving(&self, routes: Router, wire: Wire, what: &'static str) -> Serving {
        let options = &self.shared.options;
        Serving {
            routes,
            wire,
            connections: Places::new(what, options.connections.connections()),
            pace: Pace {
                bodies: self.shared.bodies.clone(),
                whole: options.body_timeout,
            },
        }
    }

    async fn drain_after(&self, shutdown: CancellationToken) {
        shutdown.cancelled().await;
        self.shared.admission.drain();
        self.shared.admission.drained(self.shared.options.drain_deadline).await;
        // Subscribers hear of every request to its end; then they end.
        self.shared.lifecycles.close().await;
    }
}
