//! What must not compile: a provider call without a reservation, a second one with the same, and one made by hand.
//!
//! That the same code compiles as it is meant is shown by the example at `postrider_providers::provider`, from which each
//! case here differs in one place.

#[test]
fn no_call_without_a_reservation_no_copy_no_use_after_settling_none_made_by_hand() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
