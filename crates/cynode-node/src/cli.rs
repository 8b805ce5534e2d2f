//! The command line.

use std::{
    ffi::OsString,
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail, ensure};
use clap::{Args, Parser, Subcommand};
use cynode_wire::nodes::BackendReport;
use data_encoding::HEXLOWER;
use secrecy::SecretString;
use sha2::{Digest, Sha256};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    client::{Caller, Client},
    config::{self, Environment, Layer},
    doctor,
    host::{self, Host},
    join,
    key::Key,
    node::{Node, Parts, Settings, Tried},
    report,
    sandbox::{Backend, Bubblewrap, Ground, Options, Podman, SandboxError},
    store::Store,
    supervisor::supervise,
    workers::{Recipes, install},
    workshop::Installed,
};

/// How many users one node has for its jobs.
const USERS: u32 = 1000;

/// How many nodes of a machine can have users of their own.
const USER_SHARES: u32 = 60;

/// Runs jobs of a CyNode installation on this machine, each in a sandbox.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    /// Where the node keeps its state.
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The configuration; `node.toml` in the state directory when it is left out.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes this machine a node of an installation.
    Join(Join),
    /// Takes jobs and does them, until it is told to stop.
    Run(Run),
    /// Coding agents on this machine.
    Agents {
        #[command(subcommand)]
        command: Agents,
    },
    /// Says what works on this machine, what does not, and what to do.
    Doctor(Layer),
    /// Prints every key of the configuration with its default.
    Config,
    /// Runs a program that ends with the node.
    #[command(hide = true)]
    Hold {
        #[arg(last = true)]
        argv: Vec<OsString>,
    },
}

#[derive(Args, Debug)]
struct Join {
    /// The orchestrator.
    #[arg(long, value_name = "URL")]
    url: String,
    /// A file that holds the one-time token.
    #[arg(long, value_name = "FILE", conflicts_with = "token_stdin")]
    token_file: Option<PathBuf>,
    /// Reads the one-time token from the standard input.
    #[arg(long)]
    token_stdin: bool,
    /// What the node is to be called; the name of the machine when it is left out.
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    layer: Layer,
}

#[derive(Args, Debug)]
struct Run {
    /// The orchestrator, if it has another address than when this machine joined.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    layer: Layer,
}

#[derive(Debug, Subcommand)]
enum Agents {
    /// Shows the agents that there are recipes for, and which of them are installed.
    List,
    /// Fetches an agent in the version that its recipe pins.
    Install {
        /// Which.
        name: String,
    },
}

impl Cli {
    /// Does what the flags say.
    pub fn run(self) -> anyhow::Result<()> {
        if let Command::Hold { argv } = &self.command {
            std::process::exit(host::hold(argv)?);
        }
        if let Command::Config = &self.command {
            return say(config::DEFAULT.trim_end());
        }
        let environment = Environment::read()?;
        let mut state = environment.state(self.state.as_deref())?;
        // Whoever only looks leaves nothing behind.
        let passing = match &self.command {
            Command::Doctor(_) if !state.exists() => Some(passing(&state)?),
            _ => None,
        };
        if let Some(passing) = &passing {
            passing.path().clone_into(&mut state);
        }
        let flags = match &self.command {
            Command::Doctor(layer)
            | Command::Run(Run { layer, .. })
            | Command::Join(Join { layer, .. }) => layer.clone(),
            Command::Agents { .. } | Command::Config | Command::Hold { .. } => Layer::default(),
        };
        let layer = environment.layers(flags, self.config.as_deref(), &state)?;
        let filter = tracing_subscriber::EnvFilter::try_new(layer.log())?;
        tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .init();
        let place = Place::new(&state, layer)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            match self.command {
                Command::Join(flags) => place.join(flags).await,
                Command::Run(flags) => Box::pin(place.run(flags.url)).await,
                Command::Agents { command: Agents::List } => place.list_agents(),
                Command::Agents { command: Agents::Install { name } } => place.install(&name).await,
                Command::Doctor(_) => place.doctor().await,
                Command::Config | Command::Hold { .. } => Ok(()),
            }
        })
    }
}

/// What every command works with.
struct Place {
    store: Store,
    layer: Layer,
    settings: Settings,
    host: Host,
    recipes: Recipes,
}

impl Place {
    fn new(state: &Path, layer: Layer) -> anyhow::Result<Self> {
        let store = Store::open(state)?;
        let settings = layer.settings()?;
        let own = std::env::current_exe().context("the node's own program cannot be found")?;
        let recipes = Recipes::built_in()?;
        let recipes = match &layer.recipes {
            Some(folder) => recipes.with_folder(folder)?,
            None => recipes,
        };
        Ok(Self { store, layer, settings, host: Host::new(own), recipes })
    }

    fn workshop(&self) -> Installed {
        Installed {
            recipes: self.recipes.clone(),
            agents: self.store.agents(),
            most: self.settings.most,
        }
    }

    /// What sandboxes of the node stand on. It must be laid within a runtime.
    fn ground(&self) -> Result<Arc<Ground>, SandboxError> {
        self.ground_of("")
    }

    /// What sandboxes stand on in which somebody only looks whether they work: the node may run meanwhile, and what it stands on is
    /// not ours to take away.
    fn trial(&self) -> Result<Arc<Ground>, SandboxError> {
        self.ground_of(&format!("-trial{}", std::process::id()))
    }

    fn ground_of(&self, whose: &str) -> Result<Arc<Ground>, SandboxError> {
        let digest = Sha256::digest(self.store.root().as_os_str().as_encoded_bytes());
        let instance = format!("{}{whose}", HEXLOWER.encode(&digest[..8]));
        let mut options = Options::new(instance, self.store.sandboxes());
        // Several nodes on one machine take different users, as far as that can be had without asking.
        let share = u32::from(digest[8]) % USER_SHARES * USERS;
        options.users = options.users.start + share..options.users.start + share + USERS;
        options.free_floor_bytes = self.settings.disk_floor / 2;
        options.image.clone_from(&self.layer.image);
        options.show = self.layer.show.clone().unwrap_or_default();
        Ground::prepare(options)
    }

    fn backends(ground: &Arc<Ground>) -> Result<Vec<Arc<dyn Backend>>, SandboxError> {
        Ok(vec![Arc::new(Bubblewrap::new(ground)?), Arc::new(Podman::new(ground)?)])
    }

    /// The backends that work, each tried by running something in it.
    async fn tried(ground: &Arc<Ground>) -> Result<Vec<Tried>, SandboxError> {
        let mut working = Vec::new();
        for backend in Self::backends(ground)? {
            match backend.probe().await {
                Ok(version) => working.push(Tried { backend, version }),
                Err(error) => {
                    tracing::warn!(event = "backend.missing", backend = ?backend.kind(), error = format!("{:#}", anyhow::Error::from(error)), "it does not work here");
                }
            }
        }
        Ok(working)
    }

    async fn join(&self, flags: Join) -> anyhow::Result<()> {
        let token = match (&flags.token_file, flags.token_stdin) {
            (Some(path), _) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?,
            (None, true) => {
                let mut text = String::new();
                std::io::stdin().take(4096).read_to_string(&mut text)?;
                text
            }
            (None, false) => bail!("give the one-time token with --token-file or --token-stdin"),
        };
        let token = SecretString::from(token.trim().to_owned());
        let host = report::facts().remove("host").unwrap_or_default();
        let name = flags.name.clone().unwrap_or(host);
        let tried = Self::tried(&self.trial()?).await?;
        let agents = match tried.first() {
            Some(first) => crate::node::Workshop::found(&self.workshop(), &first.backend).await,
            None => Vec::new(),
        };
        let backends = tried.iter().map(|tried| BackendReport {
            backend: tried.backend.kind(),
            version: tried.version.clone(),
        });
        let report = report::measure(&self.store, self.settings.slots, backends.collect(), agents);
        let url = flags.url.trim_end_matches('/');
        let identity = join::join(&self.store, url, &token, name, report).await?;
        say(&format!("{} ({}) is a node of {}", identity.name, identity.node_id, identity.url))
    }

    async fn run(self, url: Option<String>) -> anyhow::Result<()> {
        let identity = self.store.identity()?;
        let mut identity =
            identity.context("this machine is no node yet: use `cynode-node join`")?;
        let _held = self.store.hold()?;
        if let Some(url) = url.map(|url| url.trim_end_matches('/').to_owned())
            && url != identity.url
        {
            Caller::new(&url)?;
            tracing::info!(
                event = "orchestrator.moved",
                from = identity.url,
                to = url,
                "it has another address now"
            );
            identity.url = url;
            self.store.set_identity(&identity)?;
        }
        let key = Key::read(&self.store.key_file())?;
        let ground = self.ground()?;
        let backends = Self::tried(&ground).await?;
        ensure!(!backends.is_empty(), "no sandbox works here; `cynode-node doctor` says why");
        let workshop = Arc::new(self.workshop());
        let agents_url = self.layer.agents_url.clone().unwrap_or_else(|| identity.url.clone());
        let node = Node::new(Parts {
            client: Client::new(&identity.url, identity.node_id, key)?,
            settings: self.settings,
            store: self.store,
            host: self.host,
            agents_url,
            backends,
            workshop,
        })?;
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let working = supervise(Arc::new(node), stop.clone());
        let asked = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            stop.cancel();
            std::future::pending::<()>().await;
        };
        let worked = tokio::select! {
            worked = working => worked,
            () = asked => Ok(()),
        };
        ground.close().await;
        Ok(worked?)
    }

    fn list_agents(&self) -> anyhow::Result<()> {
        let agents = self.store.agents();
        for recipe in self.recipes.iter() {
            let there = if install::is_installed(recipe, &agents) { "installed" } else { "-" };
            say(&format!("{:<12}{there}", recipe.name))?;
        }
        Ok(())
    }

    async fn install(&self, name: &str) -> anyhow::Result<()> {
        let recipe = self.recipes.get(name);
        let recipe = recipe.with_context(|| format!("there is no recipe for `{name}`"))?;
        let place = install::install(recipe, &self.store.agents()).await?;
        say(&format!("{name} is in {}", place.display()))
    }

    async fn doctor(&self) -> anyhow::Result<()> {
        let backends = self.trial().and_then(|ground| Self::backends(&ground));
        let workshop = self.workshop();
        let findings =
            doctor::examine(&self.store, &self.settings, &self.host, backends, &workshop).await;
        for finding in &findings {
            say(&finding.to_string())?;
        }
        ensure!(
            !findings.iter().any(doctor::Finding::is_bad),
            "this machine cannot take jobs like this"
        );
        Ok(())
    }
}

/// A state directory for a while, on the disk where the real one would be.
fn passing(state: &Path) -> anyhow::Result<tempfile::TempDir> {
    let state = std::path::absolute(state)?;
    let above = state.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("/"));
    tempfile::Builder::new()
        .prefix("cynode-node-doctor-")
        .tempdir_in(above)
        .with_context(|| format!("nothing can be made in {}", above.display()))
}

fn say(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}").context("nobody reads what is written")
}
