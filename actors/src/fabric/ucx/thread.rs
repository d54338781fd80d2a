//! The one thread that calls UCX.
//!
//! ```text
//!   ┌─▶ commands ─▶ ends with something to do: progress, step ─▶ anything happened? ── yes ──┐
//!   │                                                             │ no, for `spin`           │
//!   │    woken by a worker, the doorbell, a deadline ◀── sleep ◀── arm each of them          │
//!   └────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Rules:
//! - An end that has nothing to do is armed: it costs nothing until its descriptor tells of something, or
//!   a command names it.
//! - Before it sleeps, every end that was progressed has had its step after the last progress, and then was
//!   armed: what came between the two makes arming say so.
//! - Its beat is in a turn but while it sleeps. Jobs that wait for a peer are nothing that it has to do.
//! - If this thread panics, all it has is leaked: tickets do not come back, since nobody knows what is under
//!   way, and handles say that it has ended.

use super::context::{Context, Setting};
use super::error::UcxError;
use super::events::Events;
use super::fence::Verdict;
use super::mailbox::{Command, EndNo, Mailbox};
use super::options::{OneSided, UcxOptions};
use super::route::{Common, OVER, Route};
use super::transports::{has_rdma, is_ended_by_peers, left_out, settings_of, transports};
use kvroom_ucx_sys::{Level, Ucx as Library, Version};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// What is known of the library and its context.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) version: Version,
    pub(super) rdma: bool,
}

/// The doorbell's number among the descriptors; ends count from 1.
const BELL: EndNo = 0;

/// Turns between two looks at descriptors while nobody sleeps.
const LOOK_EVERY: u32 = 16;

/// See the module.
pub(super) struct Thread {
    mailbox: Arc<Mailbox>,
    common: Rc<Common>,
    routes: BTreeMap<EndNo, Route>,
    /// Those that are not armed.
    hot: BTreeSet<EndNo>,
    next: EndNo,
    quit: bool,
    commands: VecDeque<Command>,
    woken: Vec<EndNo>,
}

/// Starts the thread, and waits until it has a context.
pub(super) fn start(options: &UcxOptions, mailbox: &Arc<Mailbox>) -> Result<Facts, UcxError> {
    let library = Library::open(options.library.as_deref());
    let library = library.map_err(|error| UcxError::Library(error.to_string()))?;
    if !library.listen(say) {
        tracing::debug!("what UCX says goes to standard output: set UCX_LOG_FILE");
    }
    let settings = settings(options)?;
    let (ready, started) = channel();
    let (options, inbox) = (options.clone(), Arc::clone(mailbox));
    let body = move || run(library, &settings, options, inbox, &ready);
    let thread = std::thread::Builder::new()
        .name("kvroom-ucx".into())
        .spawn(body);
    if let Err(error) = thread {
        return Err(UcxError::Ended(format!(" before it began: {error}")));
    }
    // Without an answer it panicked.
    started
        .recv()
        .unwrap_or_else(|_| Err(UcxError::Ended(PANICKED.into())))
}

/// Logs what UCX says.
fn say(level: Level, text: &str) {
    match level {
        Level::Error => tracing::error!(target: SAID, "{text}"),
        Level::Warn => tracing::warn!(target: SAID, "{text}"),
        Level::Info => tracing::info!(target: SAID, "{text}"),
        Level::Debug => tracing::debug!(target: SAID, "{text}"),
        Level::Trace => tracing::trace!(target: SAID, "{text}"),
    }
}

/// Where what UCX says is logged.
const SAID: &str = "kvroom::ucx";

const PANICKED: &str = ": it panicked, which is a bug of kvroom";

/// What UCX is told instead of its environment's settings.
fn settings(options: &UcxOptions) -> Result<Vec<Setting>, UcxError> {
    let mut settings = vec![(c"KEEPALIVE_INTERVAL", c"1s".to_owned())];
    let text = |name: &str, value: &str| {
        CString::new(value).map_err(|_| UcxError::Library(format!("{name} has a zero byte")))
    };
    if let Some(transports) = &options.transports {
        settings.push((c"TLS", text("ucx.transports", transports)?));
    }
    if let Some(devices) = &options.devices {
        settings.push((c"NET_DEVICES", text("ucx.devices", devices)?));
    }
    Ok(settings)
}

/// What is used if nobody says what. With RDMA nothing else, so that what its end proves is known; without, all
/// but [`left_out`].
const WITH_RDMA: &CStr = c"rc,dc,ud";

/// A context, and its transports.
fn choose(
    library: &Arc<Library>,
    settings: &[Setting],
    said: bool,
) -> Result<(Context, Vec<String>), UcxError> {
    let with = |transports: Option<&CStr>| {
        let mut settings = settings.to_vec();
        settings.extend(transports.map(|names| (c"TLS", names.to_owned())));
        let said = settings.iter().find(|(name, _)| *name == c"TLS");
        let of = said.map(|(_, names)| names.to_string_lossy().into_owned());
        let names = of.as_deref().unwrap_or_default();
        settings.extend(settings_of(names, library.version()));
        let context = Context::new(Arc::clone(library), &settings)?;
        let found = transports_of(&context);
        Ok((context, found))
    };
    if said {
        return with(None);
    }
    let (context, found) = with(None)?;
    if has_rdma(&found) {
        context.discard();
        return with(Some(WITH_RDMA));
    }
    let those = left_out(&found, library.version());
    if those.is_empty() {
        return Ok((context, found));
    }
    context.discard();
    let but = CString::new(format!("^{}", those.join(",")));
    let but = but.map_err(|_| UcxError::Library("a transport's name has a zero byte".into()))?;
    with(Some(&but))
}

fn transports_of(context: &Context) -> Vec<String> {
    transports(&context.describe())
}

fn run(
    library: Arc<Library>,
    settings: &[Setting],
    options: UcxOptions,
    mailbox: Arc<Mailbox>,
    ready: &Sender<Result<Facts, UcxError>>,
) {
    let inbox = Arc::clone(&mailbox);
    let body = || match Thread::new(library, settings, options, inbox) {
        Err(error) => {
            let _ = ready.send(Err(error));
        }
        Ok((thread, facts)) => {
            let _ = ready.send(Ok(facts));
            let mut thread = Box::new(thread);
            match catch_unwind(AssertUnwindSafe(|| thread.serve())) {
                Ok(()) => thread.leave(),
                Err(panic) => {
                    // See the rules.
                    Box::leak(thread);
                    resume_unwind(panic);
                }
            }
        }
    };
    let ended = catch_unwind(AssertUnwindSafe(body));
    if ended.is_err() {
        tracing::error!("the thread of UCX panicked: what it was at work on stays held");
    }
    mailbox.close(if ended.is_err() { PANICKED } else { "" });
}

impl Thread {
    fn new(
        library: Arc<Library>,
        settings: &[Setting],
        options: UcxOptions,
        mailbox: Arc<Mailbox>,
    ) -> Result<(Thread, Facts), UcxError> {
        let version = library.version();
        let (mut context, found) = choose(&library, settings, options.transports.is_some())?;
        context.offer_probe()?;
        let context = Rc::new(context);
        let rdma = has_rdma(&found);
        let verdict = Verdict::of(&found);
        let puts = rdma || options.one_sided == OneSided::Always;
        if puts && (verdict.writes.is_none() || verdict.reads.is_none()) {
            tracing::warn!(
                why = verdict.why,
                transports = found.join(","),
                "with these transports the pages of a peer that does not answer stay held; name others in \
                 ucx.transports"
            );
        }
        if is_ended_by_peers(version) && found.iter().any(|name| name == "posix" || name == "sysv")
        {
            tracing::warn!(
                version = version.to_string(),
                transports = found.join(","),
                "UCX 1.16 to 1.18 end this process over posix and sysv when a peer of this host goes at the wrong \
                 moment: leave them out of ucx.transports, or take another version"
            );
        }
        let events = Events::new().and_then(|events| {
            events.add(mailbox.bell(), BELL)?;
            Ok(events)
        });
        let events = events.map_err(|error| UcxError::Call {
            call: "epoll",
            status: error.to_string(),
            advice: "; look at `ulimit -n`",
        })?;
        let common = Common {
            context,
            events,
            options,
            verdict,
            left: Cell::new(0),
            puts,
        };
        let thread = Thread {
            mailbox,
            common: Rc::new(common),
            routes: BTreeMap::new(),
            hot: BTreeSet::new(),
            next: BELL,
            quit: false,
            commands: VecDeque::new(),
            woken: Vec::new(),
        };
        Ok((thread, Facts { version, rdma }))
    }

    fn serve(&mut self) {
        let spin = self.common.options.spin;
        let (mut busy, mut turn) = (Instant::now(), 0_u32);
        while !self.is_over() {
            let now = Instant::now();
            self.mailbox.beat().begin_then(now);
            #[cfg(feature = "plant")]
            crate::copy::plant::wedge(self.mailbox.beat().part());
            let mut worked = self.commands(now);
            worked |= self.step(now);
            turn = turn.wrapping_add(1);
            if worked {
                busy = now;
            }
            if worked || now.duration_since(busy) < spin {
                if turn.is_multiple_of(LOOK_EVERY) {
                    self.look(Some(Duration::ZERO));
                }
                continue;
            }
            self.sleep();
            busy = Instant::now();
        }
    }

    /// Whether nobody can ask for anything, and nothing is left that would end by itself.
    fn is_over(&self) -> bool {
        self.quit && self.routes.values().all(Route::is_retired)
    }

    /// Its descriptors go with it, unless ends are retired: those stay as they are, for they must not be
    /// destroyed, with the thread's epoll and the context.
    fn leave(self) {
        std::mem::forget(self.routes);
    }

    fn commands(&mut self, now: Instant) -> bool {
        let mut commands = std::mem::take(&mut self.commands);
        self.mailbox.take(&mut commands);
        let any = !commands.is_empty();
        while let Some(command) = commands.pop_front() {
            self.command(command, now);
        }
        self.commands = commands;
        any
    }

    fn command(&mut self, command: Command, now: Instant) {
        match command {
            Command::End(reply) => {
                let born = self.end();
                let number = born.as_ref().ok().map(|born| born.number);
                if reply.send(born).is_err()
                    && let Some(number) = number
                {
                    self.at(number, |route| route.close(now));
                }
            }
            Command::Register(pool, reply) => {
                let _ = reply.send(self.common.context.register(pool));
            }
            Command::Connect(number, theirs, mode, reply) => {
                self.at(number, |route| route.connect(&theirs, mode, reply, now));
            }
            Command::Post(number, mut job) => match self.routes.get_mut(&number) {
                Some(route) => {
                    route.post(*job);
                    self.hot.insert(number);
                }
                None => job.ticket.errored(OVER),
            },
            Command::Began(number, border) => {
                let up = self.routes.get(&number).is_some_and(Route::is_up);
                if let (false, Some(border)) = (up, border.get()) {
                    (border.over)(OVER);
                }
            }
            Command::Cancel(number, life) => self.at(number, |route| route.cancel(life)),
            Command::Close(number) => self.at(number, |route| route.close(now)),
            Command::Ask => self.mailbox.beat().answer(),
            Command::Quit => self.quit = true,
            #[cfg(test)]
            Command::Test(poke) => poke(self),
        }
    }

    /// Does something to an end, which then has a turn.
    pub(super) fn at(&mut self, number: EndNo, does: impl FnOnce(&mut Route)) {
        if let Some(route) = self.routes.get_mut(&number) {
            does(route);
            self.hot.insert(number);
        }
    }

    /// How many ends there are.
    #[cfg(test)]
    pub(super) fn ends(&self) -> usize {
        self.routes.len()
    }

    /// How many workers were left alone.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.common.left.get()
    }

    fn end(&mut self) -> Result<super::mailbox::Born, UcxError> {
        let retired = self.routes.values().filter(|r| r.is_retired()).count();
        let kept = retired + self.common.left.get();
        if kept > 0 && kept >= self.common.options.retired {
            return Err(UcxError::Limit {
                what: "the connections of so many peers are kept, since they cannot be ended safely",
                limit: "ucx.retired",
                value: self.common.options.retired,
            });
        }
        let number = self.next + 1;
        let (route, born) = Route::new(number, &self.common)?;
        self.next = number;
        self.routes.insert(number, route);
        self.hot.insert(number);
        Ok(born)
    }

    fn step(&mut self, now: Instant) -> bool {
        let mut worked = false;
        let routes = &mut self.routes;
        self.hot.retain(|number| {
            let Some(route) = routes.get_mut(number) else {
                return false;
            };
            worked |= route.step(now);
            let gone = route.is_gone();
            if gone {
                routes.remove(number);
            }
            !gone
        });
        worked
    }

    /// Adds those that have something to do to the hot ones.
    fn look(&mut self, within: Option<Duration>) {
        self.woken.clear();
        self.common.events.wait(within, &mut self.woken);
        for number in self.woken.drain(..) {
            if number == BELL {
                self.mailbox.silence();
            } else {
                self.hot.insert(number);
            }
        }
    }

    /// Sleeps until something comes, or something is due.
    fn sleep(&mut self) {
        let routes = &self.routes;
        self.hot
            .retain(|number| routes.get(number).is_some_and(|route| !route.arm()));
        if !self.hot.is_empty() || !self.mailbox.sleep() {
            return;
        }
        let due = self.routes.iter().filter_map(|(n, r)| Some((r.due()?, *n)));
        let due: Vec<(Instant, EndNo)> = due.collect();
        let first = due.iter().map(|(at, _)| *at).min();
        let within = first.map(|at| at.saturating_duration_since(Instant::now()));
        self.mailbox.beat().end();
        self.look(within);
        let now = Instant::now();
        let due = due.into_iter().filter(|(at, _)| *at <= now);
        self.hot.extend(due.map(|(_, number)| number));
    }
}
