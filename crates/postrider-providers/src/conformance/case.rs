//! The cases of the suite, and the outcomes that an adapter may report in each.

use std::fmt;

use postrider_model::{Finding, Outcome};

/// The kind of an outcome or a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeKind {
    /// [`Outcome::Delivered`].
    Delivered,
    /// [`Outcome::Rejected`].
    Rejected,
    /// [`Outcome::NotSent`] or [`Outcome::AccountRefused`].
    NotSent,
    /// [`Outcome::Unknown`].
    Unknown,
    /// [`Finding::Done`].
    Done,
    /// [`Finding::Absent`].
    Absent,
    /// [`Finding::Unclear`], [`Finding::Later`] or [`Finding::CannotTell`].
    Unclear,
}

impl From<&Outcome> for OutcomeKind {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Delivered { .. } => Self::Delivered,
            Outcome::Rejected { .. } => Self::Rejected,
            Outcome::NotSent { .. } | Outcome::AccountRefused { .. } => Self::NotSent,
            Outcome::Unknown { .. } => Self::Unknown,
        }
    }
}

impl From<&Finding> for OutcomeKind {
    fn from(finding: &Finding) -> Self {
        match finding {
            Finding::Done { .. } => Self::Done,
            Finding::Absent { .. } => Self::Absent,
            Finding::Unclear { .. } | Finding::Later { .. } | Finding::CannotTell { .. } => Self::Unclear,
        }
    }
}

impl fmt::Display for OutcomeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Delivered => "delivered",
            Self::Rejected => "rejected",
            Self::NotSent => "not sent",
            Self::Unknown => "unknown",
            Self::Done => "done",
            Self::Absent => "absent",
            Self::Unclear => "unclear",
        })
    }
}

/// Declares the cases with their names and their rules, so that they stand in one table.
macro_rules! cases {
    ($($(#[$doc:meta])* $case:ident, $name:literal => [$($kind:ident),+];)+) => {
        /// A behavior of the vendor during a call, a repeat or a look-up.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Case {
            $($(#[$doc])* $case),+
        }

        impl Case {
            /// All cases, in the order in which they run.
            pub const ALL: &[Self] = &[$(Self::$case),+];

            /// Name in the report.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$case => $name),+ }
            }

            /// The results that an adapter may report, unless its vendor documents otherwise.
            #[must_use]
            pub const fn rule(self) -> &'static [OutcomeKind] {
                match self { $(Self::$case => &[$(OutcomeKind::$kind),+]),+ }
            }
        }
    };
}

cases! {
    /// The vendor accepts the message.
    Success, "success" => [Delivered];
    /// The vendor refuses this message.
    Refusal, "refusal" => [Rejected];
    /// 429, with the time to wait.
    Busy, "429 with Retry-After" => [NotSent];
    /// 500. The vendor may have acted before.
    ServerError, "500" => [Unknown];
    /// 503 with a page, from a proxy between.
    Unavailable, "503 with a page" => [Unknown];
    /// The request arrives, and the server sends nothing.
    Slow, "no answer in time" => [Unknown];
    /// No server listens.
    ConnectionRefused, "connection refused" => [NotSent];
    /// The request is read, and the connection closed.
    CutBeforeAnswer, "cut before the first byte" => [Unknown];
    /// The vendor acts, and the connection is reset.
    CutAfterActing, "cut after acting" => [Unknown];
    /// The status line and half a header.
    HalfHead, "half of the head" => [Unknown];
    /// A good answer, up to the middle of its body.
    HalfBody, "half of the body" => [Unknown];
    /// A good answer that announces one byte more than comes.
    EndMissing, "body without its end" => [Unknown];
    /// A greeting in another protocol.
    NotHttp, "an answer that is not HTTP" => [Unknown];
    /// 200 with a page, as a captive portal answers.
    WrongContentType, "200 with a page" => [Unknown];
    /// 200 and a body that does not end.
    Huge, "200 without end" => [Unknown];
    /// 307 to another server, which would take the request.
    Redirect, "307 to another server" => [Rejected, NotSent, Unknown];
    /// 302 to another server.
    RedirectFound, "302 to another server" => [Rejected, NotSent, Unknown];
    /// Two calls; on a connection that served one already, the second is cut.
    KeptConnection, "a kept connection dies" => [Delivered, Unknown];
    /// 500 to the preparation.
    PreparationRefused, "500 to the preparation" => [NotSent];
    /// The preparation is cut.
    PreparationCut, "preparation cut" => [NotSent];
    /// A repeat at a vendor that takes none.
    RepeatNotTaken, "repeat: not taken" => [Unclear];
    /// The vendor recognises the repeat, or acts now.
    RepeatAccepted, "repeat: success" => [Done];
    /// The vendor refuses this very message.
    RepeatRefused, "repeat: refusal" => [Absent, Unclear];
    /// 429: it proves nothing about the first call.
    RepeatBusy, "repeat: 429" => [Unclear];
    /// 500.
    RepeatServerError, "repeat: 500" => [Unclear];
    /// The repeat is cut as well.
    RepeatCut, "repeat: cut after acting" => [Unclear];
    /// Half of a good answer.
    RepeatHalfBody, "repeat: half of the body" => [Unclear];
    /// The vendor has it.
    LookUpFound, "look-up: found" => [Done];
    /// The vendor does not have it.
    LookUpMissing, "look-up: not found" => [Absent];
    /// 429.
    LookUpBusy, "look-up: 429" => [Unclear];
    /// 500.
    LookUpServerError, "look-up: 500" => [Unclear];
    /// 401: it proves nothing about the item.
    LookUpForbidden, "look-up: 401" => [Unclear];
    /// The connection is reset.
    LookUpCut, "look-up: cut" => [Unclear];
    /// 200 with a page.
    LookUpWrongContentType, "look-up: 200 with a page" => [Unclear];
}

impl Case {
    /// Whether a call is repeated after it was cut.
    pub(super) fn is_repeat(self) -> bool {
        self.name().starts_with("repeat:")
    }

    /// Whether the adapter looks the item up after a call was cut.
    pub(super) fn is_look_up(self) -> bool {
        self.name().starts_with("look-up:")
    }
}
