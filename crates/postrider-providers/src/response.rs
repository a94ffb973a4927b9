//! The provider's response to a call, as the item keeps it: a bounded excerpt, without headers.
//!
//! The code that the vendors share notes each response where it is classified, after secrets were removed from it. The worker that
//! makes the call gets the last one. Outside of [`recorded`], for example in a lookup, nothing is kept.

use std::cell::RefCell;

use postrider_model::ResponseExcerpt;

tokio::task_local! {
    static LAST: RefCell<Option<ResponseExcerpt>>;
}

/// Makes a call, and returns with its outcome the last response that its adapter noted.
pub async fn recorded<C: Future>(call: C) -> (C::Output, Option<ResponseExcerpt>) {
    LAST.scope(RefCell::new(None), async {
        let outcome = call.await;
        (outcome, LAST.with(RefCell::take))
    })
    .await
}

/// Notes a response of the provider: its status, and its words without secrets. An adapter whose vendor has an HTTP API need not
/// call this.
pub fn note(status: u16, body: &str) {
    let _ = LAST.try_with(|last| last.replace(Some(ResponseExcerpt::new(status, body))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_is_recorded_with_its_last_response_alone() {
        note(500, "outside");
        let (outcome, response) = recorded(async {
            note(503, "busy");
            note(200, "done");
            "outcome"
        })
        .await;
        assert_eq!(outcome, "outcome");
        assert_eq!(response, Some(ResponseExcerpt::new(200, "done")));
        assert_eq!(recorded(async {}).await.1, None);
    }
}
