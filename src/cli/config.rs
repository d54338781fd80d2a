//! `kvroom config`: what is in effect, and where it is from.

use super::args::ConfigArgs;
use super::exit::{Failure, Verdict};
use super::output;

/// Prints the effective configuration, or the example.
pub(crate) fn run(args: &ConfigArgs) -> Result<Verdict, Failure> {
    if args.example {
        output::print(&crate::daemon::example_config())?;
        return Ok(Verdict::Met);
    }
    let effective = args.serve.effective().map_err(Failure::from)?;
    if args.json {
        output::print_json(&effective.to_json())?;
    } else {
        output::print(&effective.to_toml())?;
    }
    Ok(Verdict::Met)
}
