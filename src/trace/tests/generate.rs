use super::super::*;
use crate::rng::Seed;
#[test]
fn show() {
    for n in [250, 500, 1000, 2000, 4000, 8000, 12031] {
        let mut a = [0.0; 9];
        for seed in 0..10 {
            let rows = conversation_like(Seed(seed), 12031, &ConversationOptions::default());
            let s = TraceStats::of(&rows[..n], 512);
            for (x, y) in a.iter_mut().zip([s.infinite_cache_reused_block_ratio(), s.infinite_cache_reused_token_ratio(), s.input.mean_tokens, s.output.mean_tokens, s.input.max_tokens.into(), s.distinct_timestamps as f64, s.duration_ms, s.total_blocks as f64, s.distinct_blocks as f64]) { *x += y / 10.0; }
            if n==12031 || n==1000 { println!("   {seed} {:.4} {:.0} {}", s.infinite_cache_reused_block_ratio(), s.input.mean_tokens, s.input.max_tokens); }
        }
        println!("{n} {a:.4?}");
    }
}
