//! The auditor compares what the vendors delivered and the receipts of the sim with the database. It trusts neither.

use std::collections::{BTreeMap, HashMap, HashSet};

use postrider_testkit::crash::Findings;
use uuid::Uuid;

/// Vendors that are asked before they are called again.
const ASKED: &[&str] = &["slack"];
/// One that gives no answer to that, twice, is called all the same. So a reply that came twice was claimed for a call, for a question, and
/// for a call, at least.
const CLAIMS_UNTIL_UNASKED: usize = 3;

/// A message, as the vendor that delivered it knows it.
#[derive(Debug, Clone)]
pub struct Said {
    /// The text of the message. No other message has this text, and its reply repeats it.
    pub text: String,
    /// Whether it was answered with 200.
    pub was_taken: bool,
}

/// A row of `channel_messages`.
#[derive(Debug, Clone)]
pub struct Message {
    pub id: Uuid,
    pub text: String,
    pub status: String,
}

/// A row of `channel_outbox`.
#[derive(Debug, Clone)]
pub struct Reply {
    pub id: Uuid,
    pub message: Uuid,
    pub provider: String,
    pub text: String,
    pub status: String,
    pub claims: usize,
    pub last_error: Option<String>,
    pub provider_message_id: Option<String>,
}

/// The receipt of the sim for a request to send.
#[derive(Debug, Clone)]
pub struct Receipt {
    pub provider: String,
    pub text: String,
    pub acted: bool,
    pub message_id: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub said: Vec<Said>,
    pub messages: Vec<Message>,
    pub replies: Vec<Reply>,
    pub receipts: Vec<Receipt>,
    /// How often each reply was claimed, by a record beside the system.
    pub claims: HashMap<Uuid, usize>,
}

/// The violations that the auditor found. Each list is empty if the guarantees held.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Taken, and nowhere.
    pub lost: Vec<String>,
    /// Taken, and neither executed nor about to be.
    pub unexecuted: Vec<String>,
    /// Executed, and there is no reply.
    pub without_reply: Vec<String>,
    /// A reply to a message that is not there or was not executed, or that has another reply.
    pub without_message: Vec<String>,
    /// Neither sent nor dead, although everything is over.
    pub stuck: Vec<String>,
    /// Said to be sent, and the vendor knows nothing of it.
    pub never_arrived: Vec<String>,
    /// Sent under a name that the vendor did not give.
    pub misnamed: Vec<String>,
    /// Dead, without an error that says why.
    pub dead_without_reason: Vec<String>,
    /// The vendor was asked to send what is no reply.
    pub from_nowhere: Vec<String>,
    /// More requests than claims: a process called that did not hold the reply.
    pub unclaimed: Vec<String>,
    /// More than once at a vendor that can be asked, and was not asked.
    pub unasked: Vec<String>,
    /// The claim count of the row differs from the claims that were made.
    pub miscounted: Vec<String>,
    /// Replies that the vendor has more than once, by vendor.
    pub duplicates: BTreeMap<String, usize>,
    pub sent: usize,
    pub dead: usize,
    /// Replies that were claimed more than once.
    pub claimed_again: usize,
}

impl Findings for Report {
    fn findings(&self) -> Vec<(&'static str, Vec<String>)> {
        vec![
            ("taken and lost", self.lost.clone()),
            ("taken and not executed", self.unexecuted.clone()),
            ("executed without a reply", self.without_reply.clone()),
            ("replies without a message", self.without_message.clone()),
            ("stuck", self.stuck.clone()),
            ("sent without a receipt", self.never_arrived.clone()),
            ("sent under another name", self.misnamed.clone()),
            ("dead without a reason", self.dead_without_reason.clone()),
            ("receipts without a reply", self.from_nowhere.clone()),
            ("requests without a claim", self.unclaimed.clone()),
            ("twice without a question", self.unasked.clone()),
            ("claims not counted", self.miscounted.clone()),
        ]
    }

    fn summary(&self) -> String {
        format!(
            "{} sent, {} dead, {} claimed more than once; twice at the vendor: {:?}",
            self.sent, self.dead, self.claimed_again, self.duplicates
        )
    }
}

/// Compares the facts after all work has ended.
pub fn audit(facts: &Facts) -> Report {
    let mut report = Report::default();
    compare_messages(facts, &mut report);
    compare_replies(facts, &mut report);
    report
}

fn compare_messages(facts: &Facts, report: &mut Report) {
    let known: HashMap<&str, &Message> =
        facts.messages.iter().map(|message| (message.text.as_str(), message)).collect();
    for said in facts.said.iter().filter(|said| said.was_taken) {
        match known.get(said.text.as_str()) {
            None => report.lost.push(said.text.clone()),
            Some(message) if message.status != "executed" => {
                report.unexecuted.push(format!("{} is {}", said.text, message.status));
            }
            Some(_) => {}
        }
    }
    let answered: HashSet<Uuid> = facts.replies.iter().map(|reply| reply.message).collect();
    let executed = facts.messages.iter().filter(|message| message.status == "executed");
    report.without_reply =
        executed.clone().filter(|it| !answered.contains(&it.id)).map(|it| it.text.clone()).collect();
    let mut open: HashMap<Uuid, &str> = executed.map(|message| (message.id, &*message.text)).collect();
    for reply in &facts.replies {
        // One reply to each, and it is its own.
        if open.remove(&reply.message) != Some(&reply.text) {
            report.without_message.push(reply.text.clone());
        }
    }
}

fn compare_replies(facts: &Facts, report: &mut Report) {
    let mut receipts: HashMap<(&str, &str), Vec<&Receipt>> = HashMap::new();
    for receipt in &facts.receipts {
        receipts.entry((&receipt.provider, &receipt.text)).or_default().push(receipt);
    }
    for reply in &facts.replies {
        let asked = receipts.remove(&(&*reply.provider, &*reply.text)).unwrap_or_default();
        let acted: Vec<&&Receipt> = asked.iter().filter(|receipt| receipt.acted).collect();
        let claims = facts.claims.get(&reply.id).copied().unwrap_or_default();
        match reply.status.as_str() {
            "sent" => {
                report.sent += 1;
                if acted.is_empty() {
                    report.never_arrived.push(reply.text.clone());
                } else if !acted.iter().any(|receipt| receipt.message_id == reply.provider_message_id) {
                    report.misnamed.push(reply.text.clone());
                }
            }
            "dead" => {
                report.dead += 1;
                if reply.last_error.as_deref().unwrap_or_default().is_empty() {
                    report.dead_without_reason.push(reply.text.clone());
                }
            }
            _ => report.stuck.push(format!("{} is {}", reply.text, reply.status)),
        }
        if asked.len() > claims {
            report.unclaimed.push(format!("{}: {} requests, {claims} claims", reply.text, asked.len()));
        }
        if reply.claims != claims {
            report.miscounted.push(format!("{}: {} of {claims}", reply.text, reply.claims));
        }
        report.claimed_again += usize::from(claims > 1);
        if acted.len() > 1 {
            if ASKED.contains(&reply.provider.as_str()) && claims < CLAIMS_UNTIL_UNASKED {
                report.unasked.push(format!("{}: {claims} claims", reply.text));
            }
            *report.duplicates.entry(reply.provider.clone()).or_default() += 1;
        }
    }
    report.from_nowhere = receipts.keys().map(|(provider, text)| format!("{provider}: {text}")).collect();
    report.from_nowhere.sort();
}
