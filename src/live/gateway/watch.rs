//! Finding workers: a fixed list, or whoever registers in the namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::WorkerType;
use crate::live::discovery::Namespace;
use crate::live::gateway::gate::Gate;
use crate::live::gateway::link;

/// How often the namespace is read (wall time).
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Keeps links to a fixed list of workers until `stop`.
pub fn links_to(
    gate: &Arc<Gate>,
    urls: &[String],
    tasks: &TaskTracker,
    stop: &CancellationToken,
    mismatches: &mpsc::UnboundedSender<String>,
) {
    for url in urls {
        gate.number(url);
        tasks.spawn(link::keep(gate.clone(), url.clone(), stop.clone(), mismatches.clone()));
    }
}

/// Keeps links to the workers of a namespace, as they come and go, until `stop`.
pub async fn links_in(
    gate: Arc<Gate>,
    namespace: Namespace,
    tasks: TaskTracker,
    stop: CancellationToken,
    mismatches: mpsc::UnboundedSender<String>,
) {
    let mut links: BTreeMap<String, CancellationToken> = BTreeMap::new();
    let mut left_out: BTreeSet<String> = BTreeSet::new();
    loop {
        let folder = namespace.clone();
        let listed = tokio::task::spawn_blocking(move || folder.list()).await;
        match listed.unwrap_or_else(|_| Ok(Vec::new())) {
            Ok(mut registrations) => {
                registrations.retain(|registration| {
                    let whole = registration.worker_type == WorkerType::Aggregated;
                    if !whole && left_out.insert(registration.url.clone()) {
                        let part = registration.worker_type;
                        tracing::warn!("{} is a {part:?} worker: this router sends it nothing", registration.url);
                    }
                    whole
                });
                links.retain(|url, link| {
                    let listed = registrations.iter().any(|registration| registration.url == *url);
                    if !listed {
                        link.cancel();
                    }
                    listed
                });
                for registration in registrations {
                    let url = registration.url;
                    links.entry(url.clone()).or_insert_with(|| {
                        gate.number(&url);
                        let token = stop.child_token();
                        tasks.spawn(link::keep(gate.clone(), url, token.clone(), mismatches.clone()));
                        token
                    });
                }
            }
            Err(error) => tracing::warn!("{error}"),
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
    }
}
