//! The load generator's progress bar.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::session::ledger::RequestRecord;

/// Requests done, in flight, failed, TTFT so far, time left. Draws on stderr, and only on a terminal.
pub struct LoadProgress {
    bar: ProgressBar,
    released: u64,
    ended: u64,
    failed: u64,
    ttft_sum_ms: f64,
    ttft_samples: u64,
}

impl LoadProgress {
    /// A bar for `planned` requests; `visible` false draws nothing.
    pub fn new(planned: u64, visible: bool) -> Self {
        let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(planned), target);
        let style = ProgressStyle::with_template("{pos}/{len} requests {wide_bar} {msg}  {elapsed} gone, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(250));
        LoadProgress { bar, released: 0, ended: 0, failed: 0, ttft_sum_ms: 0.0, ttft_samples: 0 }
    }

    /// A request was released.
    pub fn released(&mut self) {
        self.released += 1;
    }

    /// Requests released so far.
    pub fn released_requests(&self) -> u64 {
        self.released
    }

    /// A request ended.
    pub fn ended(&mut self, record: &RequestRecord) {
        self.ended += 1;
        self.failed += u64::from(!record.completed());
        if let Some(ttft_ms) = record.ttft_ms() {
            self.ttft_sum_ms += ttft_ms;
            self.ttft_samples += 1;
        }
        let mean_ttft_ms = self.ttft_sum_ms / self.ttft_samples.max(1) as f64;
        let in_flight = self.released - self.ended;
        self.bar.set_message(format!("{in_flight} in flight, {} failed, mean TTFT {mean_ttft_ms:.0} ms", self.failed));
        self.bar.set_position(self.ended);
    }

    /// The run is over: the bar goes.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
