//! Tests of the tokenizer: round trips, and ids that must never change.

use proptest::prelude::*;

use super::*;

/// The id of `hello` among 32 000: a change of the hash would break every recorded run.
const HELLO: u32 = 21_801;

proptest! {
    #[test]
    fn ids_survive_their_text(ids in prop::collection::vec(0_u32..500, 0..40), vocab in 500_u32..100_000) {
        let tokenizer = Tokenizer::new(vocab);
        let mut back = Vec::new();
        tokenizer.encode(&tokenizer.decode(&ids), &mut back);
        prop_assert_eq!(back, ids);
    }

    #[test]
    fn words_are_counted_and_stay_below_the_vocabulary(text in ".*", vocab in 1_u32..100) {
        let mut ids = Vec::new();
        Tokenizer::new(vocab).encode(&text, &mut ids);
        prop_assert_eq!(ids.len(), text.split_whitespace().count());
        prop_assert!(ids.iter().all(|id| *id < vocab));
    }
}

#[test]
fn words_have_the_ids_they_always_had() {
    let tokenizer = Tokenizer::new(32_000);
    let mut ids = Vec::new();
    tokenizer.encode("hello <token:32000> <token:+1> <|system|> <|wizard|>", &mut ids);
    assert_eq!(ids[3..], [31_999, tokenizer.role_marker("wizard")]);
    assert!(ids[..3].iter().chain(&ids[4..]).all(|id| *id < 32_000 - RESERVED_TOKENS));
    assert_eq!(ids[0], HELLO);
    assert!(Tokenizer::new(3).role_marker("system") < 3);
}
