//! `cynode demo`: one task from its words to its merge, on this machine, without a key and without a network.

mod house;
mod place;
mod story;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, bail, ensure};
use clap::Args;
use cynode_app::Environment;
use cynode_wire::health::CheckStatus;
use cynork::{
    client::{Call, Client},
    operations,
    sample::{self, Repository},
    terminal::{Screen, Style, clock},
};
use data_encoding::HEXLOWER;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

use self::{
    house::{ALL, House},
    place::Place,
    story::{Ended, Scene},
};
use super::{block_on, doctor, serve, up};
use crate::{config::Config, output, restate, supervise};

/// Plays one task on this machine.
#[derive(Args)]
pub(crate) struct Demo {
    /// Where everything is kept, and left in the end; an empty directory. Without it, one that is removed.
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
    /// Answers every question with yes.
    #[arg(long)]
    yes: bool,
    /// Leaves everything as it is in the end.
    #[arg(long)]
    keep: bool,
    /// Plain lines, without colours and without anything that is drawn anew.
    #[arg(long)]
    plain: bool,
}

/// No places in a path.
const NONE: [&str; 0] = [];

/// The handle of the admin that is made.
const ADMIN: &str = "demo";

pub(crate) fn run(demo: Demo, config: &Config) -> anyhow::Result<ExitCode> {
    look_at_machine(config)?;
    ensure!(
        demo.yes || std::io::IsTerminal::is_terminal(&std::io::stdin()),
        "it asks twice, and nobody is at a terminal to answer: give --yes"
    );
    let mut screen = Screen::new(demo.plain, crate::config::no_colour());
    let place = Place::make(demo.data_dir, demo.keep)?;
    let played = block_on(async {
        let stop = serve::stop_signal()?;
        let house = House::open(&place)?;
        let played = tokio::select! {
            played = play(&place, &house, &mut screen, demo.yes) => played.map(Some),
            () = stop.cancelled() => Ok(None),
        };
        screen.below(Vec::new());
        match &played {
            Ok(None) => screen.say("\nstopped"),
            Ok(Some(_)) => {}
            Err(_) => {
                let last = house::last_words(&place.dir);
                screen.say(&format!("\nthe last words of `cynode up`:\n{last}"));
            }
        }
        house.close().await;
        played
    });
    // What went wrong is to be seen, so it is left.
    if played.is_ok() {
        place.leave()?;
    }
    let kept = place.is_kept();
    match played {
        Ok(Some(Ended::Merged)) => {
            farewell(&mut screen, &place, kept);
            Ok(ExitCode::SUCCESS)
        }
        Ok(Some(Ended::Refused)) => {
            screen.say("As you wish: nothing was built or merged. The demo removes what it made.");
            Ok(ExitCode::SUCCESS)
        }
        Ok(None) => Ok(ExitCode::from(130)),
        Err(error) => Err(error
            .context(format!("the demo came to nothing; its logs are in {}", place.dir.display()))),
    }
}

/// What is missing is told before anything is made.
fn look_at_machine(config: &Config) -> anyhow::Result<()> {
    let needed = doctor::for_demo(config);
    let lacking: Vec<_> =
        needed.into_iter().filter(|check| check.status != CheckStatus::Ok).collect();
    if !lacking.is_empty() {
        output::checks(&lacking);
        bail!("this machine lacks something; see above, and `cynode doctor`");
    }
    // What runs inside of sandboxes the node carries itself.
    for program in ["cynode-runner", "cynode-pma", "cynode-node"] {
        supervise::beside_us(program)?;
    }
    up::instructions(config.manager.instructions.clone(), &supervise::beside_us("cynode-pma")?)
        .context("the project manager's `instructions` are not beside this program, nor in ../share/cynode; see `manager.instructions` in the configuration")?;
    restate::find()
        .with_context(|| format!("the engine is not installed: {}", restate::INSTALL))?;
    Ok(())
}

async fn play(
    place: &Place,
    house: &House,
    screen: &mut Screen,
    yes: bool,
) -> anyhow::Result<Ended> {
    let begun = Instant::now();
    let bold = screen.paint.dye(Style::Bold, "CyNode: one task, from its words to its merge");
    screen.say(&bold);
    screen.say(
        "Everything is real but the model and the agents, which play a script: no key, no network.",
    );
    let repository = Repository::create(place.repository())?;
    let client = Client::new(&format!("http://{}", place.listen))?;
    let client = log_in(place, &client, screen, begun).await?;
    let project = sample::set_up(&client, &repository, "slug").await?;
    settle(house, screen, begun).await;
    let members = house.members();
    screen.say(&format!(
        "{:>5}  everything runs, at http://{}, in {}",
        clock(begun.elapsed()),
        place.listen,
        place.dir.display()
    ));
    for name in ALL {
        let pid = members.get(name).map_or("-".to_owned(), ToString::to_string);
        screen.say(&format!("         {name:<13} {pid}"));
    }
    let invitation =
        "kill -9 any of them, at any moment: it goes on, and nothing is lost or done twice";
    let invitation = screen.paint.dye(Style::Cyan, invitation);
    screen.say(&format!("       {invitation}"));
    let lines = (!yes).then(typed);
    let mut scene =
        Scene { client, screen, house, lines, begun, project: project.clone(), members };
    let ended = scene.play().await?;
    if matches!(ended, Ended::Merged) {
        let bare = place.dir.join("gate/repositories").join(format!("{project}.git"));
        repository.pull(&bare)?;
        scene.screen.say(&format!("\nThe repository is in {}:", repository.path.display()));
        for line in repository.git(&["log", "--stat", "--format=%h %an: %s", "-1"])?.lines() {
            scene.screen.say(&format!("       {line}"));
        }
        scene.screen.say(&format!("\ndone in {}", clock(begun.elapsed())));
        scene.linger().await;
    }
    Ok(ended)
}

/// Waits until everybody is there.
async fn settle(house: &House, screen: &mut Screen, begun: Instant) {
    let mut turn = tokio::time::interval(std::time::Duration::from_millis(100));
    // Whoever is not there by then may come later; nothing depends on it.
    for _ in 0..100 {
        turn.tick().await;
        if ALL.iter().all(|name| house.members().contains_key(name)) {
            break;
        }
        screen.below(vec![format!("{}  everybody comes", clock(begun.elapsed()))]);
    }
}

/// Makes the first admin with the link that `cynode up` printed, and logs in. Killed in between, it may have been made already.
async fn log_in(
    place: &Place,
    client: &Client,
    screen: &mut Screen,
    begun: Instant,
) -> anyhow::Result<Client> {
    let password = HEXLOWER.encode(&Environment::system().bytes::<16>());
    restate::write_secret(&place.dir.join("demo-password"), &password)?;
    let mut turn = tokio::time::interval(std::time::Duration::from_millis(200));
    loop {
        turn.tick().await;
        screen.below(vec![format!(
            "{}  a database, the engine and the server are started",
            clock(begun.elapsed())
        )]);
        if begun.elapsed().as_secs() > 120 {
            bail!("the server did not answer");
        }
        if let Some(token) = house::bootstrap_token(&place.dir) {
            let admin = json!({ "token": token, "handle": ADMIN, "display_name": "Demo", "password": password });
            // Killed in between, it may have been made already.
            let _: Result<Value, _> =
                client.send(&Call::to(operations::BOOTSTRAP, NONE).body(&admin)).await;
        }
        let login = json!({ "handle": ADMIN, "password": password });
        let session = client.send(&Call::to(operations::LOGIN, NONE).body(&login)).await;
        let session: Value = session.unwrap_or_default();
        if let Some(token) = session["token"].as_str() {
            return Ok(client.clone().with_token(SecretString::from(token.to_owned())));
        }
    }
}

/// What the person types, line by line. A thread of its own, since nobody can be made to stop reading.
fn typed() -> mpsc::UnboundedReceiver<String> {
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

/// What one can do next.
fn farewell(screen: &mut Screen, place: &Place, kept: bool) {
    let dir = place.dir.display();
    if kept {
        screen.say(&format!("  repository   {}", place.repository().display()));
        screen
            .say(&format!("  once more    cynode --config {dir}/config.toml up --data-dir {dir}"));
        screen.say(&format!(
            "               http://{} as `{ADMIN}`, the password is in {dir}/demo-password",
            place.listen
        ));
    } else {
        screen.say("  everything was removed; `cynode demo --keep` leaves the repository and the installation to look at");
    }
    screen.say("  next         `cynode up` starts an installation of your own; docs/models.md connects a model, docs/nodes.md more machines");
}
