//! Flags: one for each key, made from the schema.

use super::given::Given;
use super::schema::{POOL, ROWS};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use std::sync::LazyLock;

/// A flag, by names that live as long as the program.
struct Flag {
    path: String,
    flag: String,
    help: String,
    heading: &'static str,
}

static FLAGS: LazyLock<Vec<Flag>> = LazyLock::new(|| {
    let flags = ROWS.iter().map(|row| Flag {
        path: row.path(),
        flag: row.flag(),
        help: help(row.doc),
        heading: row.table,
    });
    flags.collect()
});

/// As clap's help has it: without a period at the end.
fn help(doc: &str) -> String {
    let doc = doc.trim();
    doc.strip_suffix('.').unwrap_or(doc).to_owned()
}

const POOL_WORD: &str = "KEY=VALUE,…";
const POOL_HELP: &str = "A pool that is there from the start, for example \
    name=kv,layers=32,pages=512,page_bytes=16KiB; may be repeated. In place of all pools of the file";

/// Flags that have a shorter name, too.
const SHORT: [(&str, &str); 1] = [("http.listen", "http")];

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let paths = FLAGS.iter().map(|flag| flag.path.as_str()).chain([POOL]);
        let given = paths.filter_map(|path| {
            let words = matches.get_many::<String>(path)?;
            Some((path.to_owned(), words.cloned().collect()))
        });
        Ok(Given::of(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Given::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Given {
    fn augment_args(mut command: Command) -> Command {
        for (flag, row) in FLAGS.iter().zip(ROWS.iter()) {
            let action = if row.list {
                ArgAction::Append
            } else {
                ArgAction::Set
            };
            let mut arg = Arg::new(flag.path.as_str())
                .long(flag.flag.as_str())
                .value_name(row.word)
                .help(flag.help.as_str())
                .action(action)
                .allow_hyphen_values(false);
            if !flag.heading.is_empty() {
                arg = arg.help_heading(flag.heading);
            }
            for (path, short) in SHORT {
                if flag.path == path {
                    arg = arg.visible_alias(short);
                }
            }
            command = command.arg(arg);
        }
        command.arg(
            Arg::new(POOL)
                .long(POOL)
                .value_name(POOL_WORD)
                .help(POOL_HELP)
                .action(ArgAction::Append),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Given::augment_args(command)
    }
}
