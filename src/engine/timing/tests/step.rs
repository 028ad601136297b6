//! One line for a step, by numbers worked out by hand.

use super::*;

/// The fit to the run on an RTX PRO 6000.
const LINE: StepModel = StepModel {
    base_ms: 12.66,
    prefill_token_us: 39.6,
    decode_sequence_us: 46.0,
    kv_token_read_ns: 69.0,
    chunk_context_ns: 2.0,
    saturating_ms: 0.0,
    saturating_tokens: 0.0,
};

fn ms(model: StepModel, prefill: PrefillBatch, decode: DecodeBatch, speedup: f64, decode_speedup: f64) -> f64 {
    let time = TimingModel::Step(model).step_time(prefill, decode, speedup, decode_speedup);
    assert!(!time.clamped);
    time.span.as_ms()
}

#[test]
fn the_line_by_hand() {
    let nothing = (PrefillBatch::default(), DecodeBatch::default());
    let chunk = prompts(&[(500, 1000)]);
    let ten = decoding(10, 20_000);
    assert_ms("nothing", ms(LINE, nothing.0, nothing.1, 1.0, 1.0), 0.0);
    // 12.66 + 10·46 µs + 20 000·69 ns
    assert_ms("decode", ms(LINE, nothing.0, ten, 1.0, 1.0), 12.66 + 0.46 + 1.38);
    // 12.66 + 1000·39.6 µs + 500·69 ns + 1000·(500 + 500)·2 ns
    assert_ms("prefill", ms(LINE, chunk, nothing.1, 1.0, 1.0), 12.66 + 39.6 + 0.0345 + 2.0);
    assert_ms("both, the base once", ms(LINE, chunk, ten, 1.0, 1.0), 56.1345);
    let model = TimingModel::Step(LINE);
    assert_ms("its parts have a base each", model.prefill_ms(chunk) + model.decode_ms(ten), 56.1345 + 12.66);
}

#[test]
fn chunks_are_counted_exactly_and_not_by_means() {
    // 64·32 + 129·64 pairs, 193 tokens.
    let uneven = prompts(&[(0, 64), (0, 129)]);
    assert_ms("64 + 129", ms(LINE, uneven, DecodeBatch::default(), 1.0, 1.0), 12.66 + 7.6428 + 0.020608);
}

#[test]
fn large_batches_saturate() {
    let model = StepModel { base_ms: 7.86, saturating_ms: 8.25, saturating_tokens: 87.0, ..StepModel::default() };
    let tokens = |prefill: u32, sequences: u32| {
        let prefill = if prefill == 0 { PrefillBatch::default() } else { prompts(&[(0, prefill)]) };
        model.line_ms(prefill, decoding(sequences, 0))
    };
    let share = 1.0 - 1.0 / std::f64::consts::E;
    assert_ms("87 sequences", tokens(0, 87), 7.86 + 8.25 * share);
    assert_ms("80 prompt tokens and 7 sequences", tokens(80, 7), 7.86 + 8.25 * share);
    assert_ms("many", tokens(100_000, 0), 7.86 + 8.25);
}

#[test]
fn decode_speedup_divides_what_decode_adds() {
    let (chunk, ten) = (prompts(&[(500, 1000)]), decoding(10, 20_000));
    assert_ms("decode alone", ms(LINE, PrefillBatch::default(), ten, 1.0, 2.0), 7.25);
    assert_ms("prefill alone", ms(LINE, chunk, DecodeBatch::default(), 1.0, 2.0), 54.2945);
    assert_ms("both", ms(LINE, chunk, ten, 1.0, 2.0), 54.2945 + 1.84 / 2.0);
    assert_ms("both, all four times as fast", ms(LINE, chunk, ten, 4.0, 1.0), 14.033625);
    assert_ms("decode eight times as fast", ms(LINE, PrefillBatch::default(), ten, 4.0, 2.0), 1.8125);
}

#[test]
fn coefficients_out_of_range_are_named() {
    assert!(LINE.check().is_ok());
    for (index, (key, _)) in LINE.coefficients().into_iter().enumerate() {
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            let mut model = LINE;
            let fields = [
                &mut model.base_ms,
                &mut model.prefill_token_us,
                &mut model.decode_sequence_us,
                &mut model.kv_token_read_ns,
                &mut model.chunk_context_ns,
                &mut model.saturating_ms,
                &mut model.saturating_tokens,
            ];
            *fields[index] = bad;
            let error = TimingModel::Step(model).check().expect_err("refused");
            assert_eq!((error.key, error.value.as_str()), (key, bad.to_string().as_str()), "{error}");
        }
    }
    let error = StepModel { saturating_ms: 1.0, ..LINE }.check().expect_err("refused");
    assert_eq!(error.to_string(), "`saturating_tokens` is 0, expected a number above 0, as saturating_ms is above 0");
}
