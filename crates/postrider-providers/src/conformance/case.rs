//! What can happen to a call, and what an adapter may say about it.

use std::fmt;

use postrider_model::{Finding, Outcome};

/// What an adapter said, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// [`Outcome::Delivered`].
    Delivered,
    /// [`Outcome::Rejected`].
    Rejected,
    /// [`Outcome::NotSent`].
    NotSent,
    /// [`Outcome::Unknown`].
    Unknown,
    /// [`Finding::Done`].
    Done,
    /// [`Finding::Absent`].
    Absent,
    /// [`Finding::Unclear`].
    Unclear,
}

impl From<&Outcome> for Verdict {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Delivered { .. } => Self::Delivered,
            Outcome::Rejected { .. } => Self::Rejected,
            Outcome::NotSent { .. } => Self::NotSent,
            Outcome::Unknown { .. } => Self::Unknown,
        }
    }
}

impl From<&Finding> for Verdict {
    fn from(finding: &Finding) -> Self {
        match finding {
            Finding::Done { .. } => Self::Done,
            Finding::Absent { .. } => Self::Absent,
            Finding::Unclear { .. } | Finding::CannotTell { .. } => Self::Unclear,
        }
    }
}

impl fmt::Display for Verdict {
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
    ($($(#[$doc:meta])* $case:ident, $name:literal => [$($verdict:ident),+];)+) => {
        /// Something that happens to a call, a repeat or a look-up.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Case {
            $($(#[$doc])* $case),+
        }

        impl Case {
            /// Every one of them, in the order in which they are run.
            pub const ALL: &[Self] = &[$(Self::$case),+];

            /// As the report calls it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$case => $name),+ }
            }

            /// What an adapter may say, unless its vendor documents otherwise.
            #[must_use]
            pub const fn rule(self) -> &'static [Verdict] {
                match self { $(Self::$case => &[$(Verdict::$verdict),+]),+ }
            }
        }
    };
}

cases! {
    /// The vendor says yes.
    Success, "success" => [Delivered];
    /// The vendor says no to this message.
    Refusal, "refusal" => [Rejected];
    /// 429, with the time to wait.
    Busy, "429 with Retry-After" => [NotSent];
    /// 500. Who knows what it did before.
    ServerError, "500" => [Unknown];
    /// 503 from something in between, with a page.
    Unavailable, "503 with a page" => [Unknown];
    /// The request arrives, and nothing comes back.
    Slow, "no answer in time" => [Unknown];
    /// Nobody listens.
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
    /// 500 to what comes before the action.
    PreparationRefused, "500 to the preparation" => [NotSent];
    /// What comes before the action is cut.
    PreparationCut, "preparation cut" => [NotSent];
    /// A repeat is asked of a vendor that takes none.
    RepeatNotTaken, "repeat: not taken" => [Unclear];
    /// The vendor recognises the repeat, or does it now.
    RepeatAccepted, "repeat: success" => [Done];
    /// The vendor says no to this very message.
    RepeatRefused, "repeat: refusal" => [Absent, Unclear];
    /// 429: this says nothing about the first time.
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
    /// 401: it says nothing about the item.
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

    /// Whether the vendor is asked after a call was cut.
    pub(super) fn is_question(self) -> bool {
        self.name().starts_with("look-up:")
    }
}
