//! When to stop: at the first SIGINT or SIGTERM. A second one ends the program at once.

use std::io;

/// Signals that are caught from now on.
#[derive(Debug)]
pub struct StopSignal {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl StopSignal {
    /// Starts to catch them: what is set up after this will be torn down. Needs a runtime.
    pub fn install() -> io::Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            Ok(StopSignal { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
        }
        #[cfg(not(unix))]
        {
            Ok(StopSignal {})
        }
    }

    /// Completes at the first signal; the next one exits with code 130.
    pub async fn wait(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(130);
        });
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
        }
        #[cfg(not(unix))]
        {
            // Without a handler there is nothing to wait for.
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
