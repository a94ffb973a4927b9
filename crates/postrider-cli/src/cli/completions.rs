//! `postrider completions` and `postrider man`, both generated from the definitions of the commands.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, output};

#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Args)]
pub struct ManArgs {
    /// Write one page per command into this directory, such as /usr/local/share/man/man1
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn print(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "postrider", &mut script);
    output::text(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

pub fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    match &args.out {
        Some(directory) => {
            let cannot = || format!("cannot write man pages into {}", directory.display());
            std::fs::create_dir_all(directory).with_context(cannot)?;
            clap_mangen::generate_to(Cli::command(), directory).with_context(cannot)?;
            message!("wrote the man pages into {}", directory.display());
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            output::text(&String::from_utf8(page)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
