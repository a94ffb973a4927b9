//! Every command as a new user would type it.
mod bad_input;
mod campaign_files;
mod campaigns;
mod channels;
mod commands;
mod configuration;
mod doctor;
mod import;
mod in_doubt;
mod items;
mod jobs;
mod overview;
mod people;
mod phases;
mod scripts;
mod secrets;
mod stage;
mod terminal;
mod terminals;
mod trace;

use crate::world::{MASTER_KEY, Output, World, succeeded};

/// A refusal: one line on stderr that says this, nothing on stdout, and an exit code that scripts notice.
fn assert_refused(output: &Output, says: &str) {
    let Output { code, stdout, stderr } = output;
    assert_eq!((*code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "one line: {stderr}");
    assert!(stderr.contains(says), "`{says}` is not in: {stderr}");
}

/// The same, where the command line itself is at fault: clap adds how to use the command.
fn assert_misused(output: &Output, says: &str) {
    let Output { code, stdout, stderr } = output;
    assert_eq!((*code, stdout.as_str()), (2, ""), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains(says), "`{says}` is not in: {stderr}");
}

/// Output with what differs from run to run made the same, and columns that it stretched drawn together.
fn stable(output: &str) -> String {
    let lines = output.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().map(stable_word).collect();
        words.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn stable_word(word: &str) -> &str {
    let digits = |text: &str, others: &str| {
        text.contains(|c: char| c.is_ascii_digit())
            && text.chars().all(|c| c.is_ascii_digit() || others.contains(c))
    };
    match word {
        _ if uuid::Uuid::parse_str(word).is_ok() => "[id]",
        _ if word.starts_with("pr_") => "[key]",
        _ if word.len() == 10 && digits(word, "-") => "[date]",
        _ if word.len() == 9 && digits(word, ":Z") => "[time]",
        _ => word,
    }
}
