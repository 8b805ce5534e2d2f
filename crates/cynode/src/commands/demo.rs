//! `cynode demo`: one task from its description to its merge, on this machine, without an API key and without a network.

mod installation;
mod layout;
mod script;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use cynode_app::AppEnvironment;
use cynode_wire::platform::health::ReadinessStatus;
use cynork::{
    client::{ApiClient, ApiRequest},
    operations,
    sample::{self, SampleRepository},
    terminal::{LiveTerminal, TextStyle, format_clock},
};
use data_encoding::HEXLOWER;
use reqwest::header::{HeaderValue, ORIGIN, SET_COOKIE};
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    installation::{DemoInstallation, PROGRAM_NAMES},
    layout::DemoLayout,
    script::{DemoOutcome, DemoScript},
};
use super::{block_on, doctor, serve, up};
use crate::{
    browser::{self, ConsoleLink, DesktopSession},
    config::CynodeConfig,
    output, restate, supervise,
};

/// Play one task on this machine.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Data directory, which must be empty and stays afterwards. Without it, use a temporary directory.
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
    /// Answer every question with yes.
    #[arg(long)]
    yes: bool,
    /// Keep everything running at the end.
    #[arg(long)]
    keep: bool,
    /// Print plain lines without colours and live updates.
    #[arg(long)]
    plain: bool,
    /// Open the web console in your browser, logged in, as soon as everything runs.
    #[arg(long)]
    open: bool,
}

/// What the person chose for the course of the demo.
#[derive(Clone, Copy)]
struct DemoChoices {
    answers_yes: bool,
    opens_browser: bool,
}

/// A path without parameters.
const NO_PATH_PARAMS: [&str; 0] = [];

/// The handle of the created admin.
const ADMIN_HANDLE: &str = "demo";

/// The file with the password of the created admin.
const PASSWORD_FILE: &str = "demo-password";

/// Timeout of the login for the browser.
const BROWSER_LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run_demo(demo: DemoArgs, config: &CynodeConfig) -> anyhow::Result<ExitCode> {
    check_machine(config)?;
    ensure!(
        demo.yes || std::io::IsTerminal::is_terminal(&std::io::stdin()),
        "it asks twice, and nobody is at a terminal to answer: give --yes"
    );
    let mut screen = LiveTerminal::new(demo.plain, crate::config::is_color_disabled());
    let choices = DemoChoices { answers_yes: demo.yes, opens_browser: demo.open };
    let place = DemoLayout::create_layout(demo.data_dir, demo.keep)?;
    let played = block_on(async {
        let stop = serve::stop_signal()?;
        let house = DemoInstallation::start_installation(&place)?;
        let played = tokio::select! {
            played = play_demo(&place, &house, &mut screen, choices) => played.map(Some),
            () = stop.cancelled() => Ok(None),
        };
        screen.set_status_lines(Vec::new());
        match &played {
            Ok(None) => screen.print_line("\nstopped"),
            Ok(Some(_)) => {}
            Err(_) => {
                let last = installation::read_log_tail(&place.dir);
                screen.print_line(&format!("\nthe last words of `cynode up`:\n{last}"));
            }
        }
        house.stop_installation().await;
        played
    });
    // After a failure the files stay, for inspection.
    if played.is_ok() {
        place.remove_files()?;
    }
    let kept = place.keeps_files();
    match played {
        Ok(Some(DemoOutcome::Merged)) => {
            print_next_steps(&mut screen, &place, kept);
            Ok(ExitCode::SUCCESS)
        }
        Ok(Some(DemoOutcome::Refused)) => {
            screen.print_line(
                "As you wish: nothing was built or merged. The demo removes what it made.",
            );
            Ok(ExitCode::SUCCESS)
        }
        Ok(None) => Ok(ExitCode::from(130)),
        Err(error) => Err(error
            .context(format!("the demo came to nothing; its logs are in {}", place.dir.display()))),
    }
}

/// Reports everything that is missing before anything is created.
fn check_machine(config: &CynodeConfig) -> anyhow::Result<()> {
    let needed = doctor::demo_checks(config);
    let lacking: Vec<_> =
        needed.into_iter().filter(|check| check.status != ReadinessStatus::Ok).collect();
    if !lacking.is_empty() {
        output::print_checks(&lacking);
        bail!("this machine lacks something; see above, and `cynode doctor`");
    }
    // The node contains the programs for sandboxes itself.
    for program in ["cynode-runner", "cynode-pma", "cynode-node"] {
        supervise::find_sibling_program(program)?;
    }
    up::find_instructions(config.manager.instructions.clone(), &supervise::find_sibling_program("cynode-pma")?)
        .context("the project manager's `instructions` are not beside this program, nor in ../share/cynode; see `manager.instructions` in the configuration")?;
    restate::find_tested_engine()?;
    Ok(())
}

async fn play_demo(
    place: &DemoLayout,
    house: &DemoInstallation,
    screen: &mut LiveTerminal,
    choices: DemoChoices,
) -> anyhow::Result<DemoOutcome> {
    let begun = Instant::now();
    let bold =
        screen.paint.apply_style(TextStyle::Bold, "CyNode: one task, from its words to its merge");
    screen.print_line(&bold);
    screen.print_line(
        "Everything is real but the model and the agents, which play a script: no key, no network.",
    );
    let repository = SampleRepository::create_at(place.repository_path())?;
    let client = ApiClient::new(&format!("http://{}", place.listen))?;
    let client = log_in(place, &client, screen, begun).await?;
    let project = sample::set_up(&client, &repository, "slug").await?;
    wait_for_programs(house, screen, begun).await;
    let members = house.running_programs();
    screen.print_line(&format!(
        "{:>5}  everything runs, at http://{}, in {}",
        format_clock(begun.elapsed()),
        place.listen,
        place.dir.display()
    ));
    for name in PROGRAM_NAMES {
        let pid = members.get(name).map_or("-".to_owned(), ToString::to_string);
        screen.print_line(&format!("         {name:<13} {pid}"));
    }
    let invitation =
        "kill -9 any of them, at any moment: it goes on, and nothing is lost or done twice";
    let invitation = screen.paint.apply_style(TextStyle::Cyan, invitation);
    screen.print_line(&format!("       {invitation}"));
    let handover = BrowserHandover::default();
    let opened = choices.opens_browser && Box::pin(handover.open_console(place, screen)).await;
    let lines = (!choices.answers_yes).then(spawn_stdin_reader);
    let mut scene =
        DemoScript { client, screen, house, lines, begun, project: project.clone(), members };
    let ended = scene.run_task().await?;
    if matches!(ended, DemoOutcome::Merged) {
        let bare = place.dir.join("storage/repositories").join(format!("{project}.git"));
        repository.pull_from(&bare)?;
        scene.screen.print_line(&format!("\nThe repository is in {}:", repository.path.display()));
        for line in repository.run_git(&["log", "--stat", "--format=%h %an: %s", "-1"])?.lines() {
            scene.screen.print_line(&format!("       {line}"));
        }
        scene.screen.print_line(&format!("\ndone in {}", format_clock(begun.elapsed())));
        // With a page open, even a person who answers nothing wants to look around.
        if opened && scene.lines.is_none() && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            scene.lines = Some(spawn_stdin_reader());
        }
        scene.wait_for_enter().await;
    }
    Ok(ended)
}

/// Waits until every process is running.
async fn wait_for_programs(house: &DemoInstallation, screen: &mut LiveTerminal, begun: Instant) {
    let mut turn = tokio::time::interval(std::time::Duration::from_millis(100));
    // A process that is late may start later; nothing depends on it.
    for _ in 0..100 {
        turn.tick().await;
        if PROGRAM_NAMES.iter().all(|name| house.running_programs().contains_key(name)) {
            break;
        }
        screen
            .set_status_lines(vec![format!("{}  everybody comes", format_clock(begun.elapsed()))]);
    }
}

/// Creates the first admin with the link that `cynode up` printed, and logs in. After a kill the admin may already exist.
async fn log_in(
    place: &DemoLayout,
    client: &ApiClient,
    screen: &mut LiveTerminal,
    begun: Instant,
) -> anyhow::Result<ApiClient> {
    let password = HEXLOWER.encode(&AppEnvironment::from_system().random_bytes::<16>());
    restate::write_private_file(&place.dir.join(PASSWORD_FILE), &password)?;
    let mut turn = tokio::time::interval(std::time::Duration::from_millis(200));
    loop {
        turn.tick().await;
        screen.set_status_lines(vec![format!(
            "{}  a database, the engine and the server are started",
            format_clock(begun.elapsed())
        )]);
        if begun.elapsed().as_secs() > 120 {
            bail!("the server did not answer");
        }
        if let Some(token) = installation::find_bootstrap_token(&place.dir) {
            let admin = json!({ "token": token, "handle": ADMIN_HANDLE, "display_name": "Demo", "password": password });
            // After a kill the admin may already exist.
            let _: Result<Value, _> = client
                .send(
                    &ApiRequest::with_path_params(operations::BOOTSTRAP, NO_PATH_PARAMS)
                        .with_json_body(&admin),
                )
                .await;
        }
        let login = json!({ "handle": ADMIN_HANDLE, "password": password });
        let session = client
            .send(
                &ApiRequest::with_path_params(operations::LOGIN, NO_PATH_PARAMS)
                    .with_json_body(&login),
            )
            .await;
        let session: Value = session.unwrap_or_default();
        if let Some(token) = session["token"].as_str() {
            return Ok(client.clone().with_token(SecretString::from(token.to_owned())));
        }
    }
}

/// What leads the person's browser to the console. It ends with the demo.
#[derive(Default)]
struct BrowserHandover {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl BrowserHandover {
    /// Opens the console, logged in, and prints what happened. Returns whether a browser was opened.
    async fn open_console(&self, place: &DemoLayout, screen: &mut LiveTerminal) -> bool {
        let console = format!("http://{}/", place.listen);
        let password_file = place.dir.join(PASSWORD_FILE);
        let account =
            format!("log in as `{ADMIN_HANDLE}`; the password is in {}", password_file.display());
        let desktop = DesktopSession::from_process();
        let opened = match log_in_browser(&console, &password_file, desktop).await {
            Ok(cookie) => {
                let link =
                    ConsoleLink { destination: console.clone(), console: console.clone(), cookie };
                browser::open_console(link, desktop, &self.tasks, &self.stop).await
            }
            Err(error) => Err(format!("{error:#}")),
        };
        for line in browser::describe_opening(&console, &account, desktop, &opened) {
            screen.print_line(&format!("       {line}"));
        }
        opened.is_ok()
    }
}

impl Drop for BrowserHandover {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Logs in as a browser does. Returns the cookie of its session; none if no browser will be opened.
async fn log_in_browser(
    console: &str,
    password_file: &Path,
    desktop: DesktopSession,
) -> anyhow::Result<Option<HeaderValue>> {
    if desktop.find_obstacle().is_some() {
        return Ok(None);
    }
    let password = std::fs::read_to_string(password_file)?;
    let login = json!({ "handle": ADMIN_HANDLE, "password": password.trim() });
    let http = reqwest::Client::builder().timeout(BROWSER_LOGIN_TIMEOUT).no_proxy().build()?;
    let origin = console.trim_end_matches('/');
    let response = http
        .post(format!("{origin}/v1/sessions"))
        .header(ORIGIN, origin)
        .json(&login)
        .send()
        .await?
        .error_for_status()?;
    let cookie = response.headers().get(SET_COOKIE).cloned();
    Ok(Some(cookie.context("the server gave the browser no session")?))
}

/// Returns the lines that the person types. A thread of its own reads them, since a blocking read cannot be cancelled.
fn spawn_stdin_reader() -> mpsc::UnboundedReceiver<String> {
    let (tell, typed) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let Ok(line) = line else { return };
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    typed
}

/// Prints the next steps.
fn print_next_steps(screen: &mut LiveTerminal, place: &DemoLayout, kept: bool) {
    let dir = place.dir.display();
    if kept {
        screen.print_line(&format!("  repository   {}", place.repository_path().display()));
        screen.print_line(&format!(
            "  once more    cynode --config {dir}/config.toml up --data-dir {dir}"
        ));
        screen.print_line(&format!(
            "               http://{} as `{ADMIN_HANDLE}`, the password is in {dir}/{PASSWORD_FILE}",
            place.listen
        ));
    } else {
        screen.print_line("  everything was removed; `cynode demo --keep` leaves the repository and the installation to look at");
    }
    screen.print_line("  next         `cynode up` starts an installation of your own; docs/guides/models.md connects a model, docs/guides/nodes.md more machines");
}
