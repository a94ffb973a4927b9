//! Shows progress: bars on a terminal, a line per change without one, the unchanged events for programs.

use std::{
    collections::{HashMap, HashSet},
    io::IsTerminal,
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use postrider_model::campaigns::PhaseStatus;

use super::board::{Board, Phase};
use crate::cli::output;

pub struct Display {
    shape: Shape,
    printed: HashSet<String>,
}

enum Shape {
    Bars(MultiProgress, HashMap<String, ProgressBar>),
    Lines(HashMap<String, String>),
    Json,
}

impl Display {
    pub fn new(json: bool) -> Self {
        let shape = if json {
            Shape::Json
        } else if std::io::stderr().is_terminal() {
            Shape::Bars(MultiProgress::new(), HashMap::new())
        } else {
            Shape::Lines(HashMap::new())
        };
        Self { shape, printed: HashSet::new() }
    }

    /// Shows the state of all phases.
    pub fn show(&mut self, board: &Board) -> anyhow::Result<()> {
        match &mut self.shape {
            Shape::Bars(all, bars) => {
                let widest = board.phases.iter().map(|phase| phase.name.len()).max().unwrap_or_default();
                for phase in &board.phases {
                    match bars.get(&phase.name) {
                        Some(bar) => update_bar(bar, phase),
                        None => {
                            // Filled in before it is shown, so that it is never shown empty.
                            let bar = ProgressBar::hidden().with_style(style(widest)?);
                            update_bar(&bar, phase);
                            bars.insert(phase.name.clone(), all.add(bar));
                        }
                    }
                }
                if board.is_over() {
                    bars.values().for_each(ProgressBar::abandon);
                }
            }
            Shape::Lines(shown) => {
                for phase in board.phases.iter().filter(|phase| phase.status != PhaseStatus::NotStarted) {
                    let line = format!("{}: {}", phase.name, phase.details());
                    if shown.get(&phase.name) != Some(&line) {
                        message!("{line}");
                        shown.insert(phase.name.clone(), line);
                    }
                }
            }
            Shape::Json => {}
        }
        Ok(())
    }

    /// Prints the unchanged event for programs.
    pub fn event(&self, text: &str) -> anyhow::Result<()> {
        if matches!(self.shape, Shape::Json) {
            output::text(&format!("{text}\n"))?;
        }
        Ok(())
    }

    /// Prints a sentence above the bars.
    pub fn print(&self, words: &str) {
        match &self.shape {
            Shape::Bars(all, _) => all.suspend(|| message!("{words}")),
            Shape::Lines(_) | Shape::Json => message!("{words}"),
        }
    }

    /// Prints a sentence unless it was printed before.
    pub fn print_once(&mut self, words: String) {
        if !self.printed.contains(&words) {
            self.print(&words);
            self.printed.insert(words);
        }
    }
}

fn style(widest: usize) -> anyhow::Result<ProgressStyle> {
    Ok(ProgressStyle::with_template(&format!("{{prefix:{widest}}}  {{bar:30}}  {{msg}}"))?)
}

fn update_bar(bar: &ProgressBar, phase: &Phase) {
    bar.set_prefix(phase.name.clone());
    bar.set_length(1000);
    bar.set_position((phase.progress.clamp(0.0, 100.0) * 10.0) as u64);
    bar.set_message(phase.details());
}
