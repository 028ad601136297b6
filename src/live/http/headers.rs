//! Header names of the surface, and the id that a request goes by.
//!
//! Clients may name their request with `x-request-id`; it comes back on the reply, errors included. The others tell
//! what the reply's body cannot: which worker serves the request is known before its first token is.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// The request's id, taken from the client or made up.
pub const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// The worker that serves the request. Left out if its address cannot stand in a header.
pub const WORKER_HEADER: HeaderName = HeaderName::from_static("x-mockfleet-worker");
/// Leading prompt blocks that the router believed to be in that worker's cache. Only a router sends it.
pub const OVERLAP_BLOCKS_HEADER: HeaderName = HeaderName::from_static("x-mockfleet-overlap-blocks");
/// How many times faster than real time the fleet runs.
pub const SPEEDUP_RATIO_HEADER: HeaderName = HeaderName::from_static("x-mockfleet-speedup-ratio");

/// Requests of this process that came without a name.
static UNNAMED_REQUESTS: AtomicU64 = AtomicU64::new(0);

/// What a request is called.
pub(super) struct RequestId {
    /// As text.
    pub text: String,
    /// The same, as it goes back to the client.
    pub header: Option<HeaderValue>,
}

impl RequestId {
    /// The client's name for its request, else `prefix` and the next number of this process.
    pub fn of(headers: &HeaderMap, prefix: &str) -> RequestId {
        let named = headers.get(REQUEST_ID_HEADER).and_then(|value| Some((value.to_str().ok()?, value)));
        match named {
            Some((text, value)) if !text.is_empty() => RequestId { text: text.to_owned(), header: Some(value.clone()) },
            _ => {
                let number = UNNAMED_REQUESTS.fetch_add(1, Ordering::Relaxed) + 1;
                let text = format!("{prefix}-{number}");
                let header = HeaderValue::from_str(&text).ok();
                RequestId { text, header }
            }
        }
    }
}
