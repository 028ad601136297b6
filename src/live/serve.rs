//! Connections on a listener: HTTP/1 and HTTP/2 (so also gRPC) on one port, each connection a task.
//!
//! `axum::serve` would do, but its HTTP/2 settings are fixed: one client connection may then carry no more than 200
//! streams, and windows of 64 KiB hold up long prompts.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::live::grpc::{OVERLAP_KEY, WORKER_KEY};

/// Room for a long prompt on each stream, and for all of them on a connection: one slow stream holds up no other.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
const MAX_STREAMS: u32 = 1 << 20;
/// What waits to be sent on a stream; small, so that tokens for a client that lags are put together instead of queued.
const SEND_BUFFER_BYTES: usize = 16 << 10;

/// Serves until `stop`: then no new connection is taken, open ones end after their requests in flight, and `closed` ends
/// the wait for them.
pub async fn serve(listener: TcpListener, routes: Router, stop: CancellationToken, closed: CancellationToken) {
    let tasks = TaskTracker::new();
    let routes = routes.layer(axum::middleware::map_response(repeat_in_trailers));
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, or the peer is gone already: neither is a reason to stop serving.
                    tracing::warn!("a connection could not be accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            },
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("TCP_NODELAY: {error}");
        }
        tasks.spawn(connection(stream, routes.clone(), stop.clone(), closed.clone()));
    }
    drop(listener);
    tasks.close();
    tokio::select! {
        () = tasks.wait() => {}
        () = closed.cancelled() => {}
    }
}

async fn connection(stream: TcpStream, routes: Router, stop: CancellationToken, closed: CancellationToken) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES);
    let service = TowerToHyperService::new(routes);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                served = connection.as_mut() => served,
                () = closed.cancelled() => return,
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!("a connection ended: {error}");
    }
}

/// gRPC clients often see only the trailers: what the headers say of worker and overlap is said there again.
async fn repeat_in_trailers(response: Response) -> Response {
    let named: Vec<_> = [WORKER_KEY, OVERLAP_KEY]
        .into_iter()
        .filter_map(|key| response.headers().get(key).map(|value| (key, value.clone())))
        .collect();
    if named.is_empty() {
        return response;
    }
    response.map(|body| {
        axum::body::Body::new(body.map_frame(move |frame| match frame.into_trailers() {
            Ok(mut trailers) => {
                for (key, value) in &named {
                    trailers.insert(*key, value.clone());
                }
                http_body::Frame::trailers(trailers)
            }
            Err(frame) => frame,
        }))
    })
}

/// Binds a port; the error names it.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => " (another program listens there; choose another --port)",
            _ => "",
        };
        io::Error::new(error.kind(), format!("{address}: cannot listen: {error}{hint}"))
    })
}

/// HTTP routes and one gRPC service on one port; gRPC calls are told by their path.
pub fn with_grpc<S>(routes: Router, service: S) -> Router
where
    S: tower_service::Service<
            axum::extract::Request,
            Response = http::Response<tonic::body::Body>,
            Error = std::convert::Infallible,
        > + tonic::server::NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    routes.route_service(&format!("/{}/{{*method}}", S::NAME), service)
}
