//! The command line.

mod kept_files;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{Read, Write},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail, ensure};
use clap::{Args, Parser, Subcommand};
use cynode_core::{nodes::BackendReport, workflow::jobs::SandboxBackend};
use cynode_packages::{PackageProxy, PackageProxyError, PackageProxyOptions, Upstreams};
use data_encoding::HEXLOWER;
use secrecy::SecretString;
use sha2::{Digest, Sha256};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::kept_files::{EnvironmentsCommand, PackagesCommand};
use crate::{
    client::NodeClient,
    config::{self, ConfigLayer, NodeEnvironment},
    doctor::{self, PackageDiagnosis},
    host::{self, Confinement, HostCommands},
    join,
    key::NodeKey,
    node::{AvailableBackend, NodeContext, NodeParts, NodeSettings},
    report,
    sandbox::{
        Backend, BubblewrapBackend, DEFAULT_USERS, HostEnv, PodmanBackend, SandboxError,
        SandboxOptions, VisiblePaths,
    },
    store::{NodeIdentity, NodeStore},
    supervisor::supervise_node,
    trust,
    worker_factory::LocalWorkerFactory,
    workers::{AgentRecipes, install},
};

/// Number of host users of one node: one for git, and the others for its jobs.
const USERS_PER_NODE: u32 = 1000;

/// Number of disjoint user ranges on one machine, and so of nodes with their own users.
const USER_RANGE_COUNT: u32 = 60;

/// Run jobs of a CyNode installation on this machine, each in a sandbox.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct NodeCli {
    /// State directory of the node.
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Configuration file; defaults to `node.toml` in the state directory.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: NodeSubcommand,
}

#[derive(Debug, Subcommand)]
enum NodeSubcommand {
    /// Join an installation as a node.
    Join(NodeJoinArgs),
    /// Run jobs until stopped.
    Run(NodeRunArgs),
    /// Manage the coding agents of this machine.
    Agents {
        #[command(subcommand)]
        command: AgentsCommand,
    },
    /// Manage the package cache of this machine.
    Packages {
        #[command(subcommand)]
        command: PackagesCommand,
        /// Print JSON.
        #[arg(long, global = true)]
        json: bool,
    },
    /// Manage the kept environments of this machine.
    Environments {
        #[command(subcommand)]
        command: EnvironmentsCommand,
        /// Print JSON.
        #[arg(long, global = true)]
        json: bool,
    },
    /// Check this machine and show how to fix what is missing.
    Doctor(ConfigLayer),
    /// Print every configuration key with its default.
    Config,
    /// Run a program that ends with the node.
    #[command(hide = true)]
    Hold {
        /// Confine the program: it reads data of agents.
        #[arg(long)]
        confine: bool,
        /// User of a confined program.
        #[arg(long, requires = "confine")]
        user: Option<u32>,
        #[arg(last = true)]
        argv: Vec<OsString>,
    },
}

#[derive(Args, Debug)]
struct NodeJoinArgs {
    /// URL of the orchestrator.
    #[arg(long, value_name = "URL")]
    url: String,
    /// File with the one-time join token.
    #[arg(long, value_name = "FILE", conflicts_with = "token_stdin")]
    token_file: Option<PathBuf>,
    /// Read the one-time join token from standard input.
    #[arg(long)]
    token_stdin: bool,
    /// Name of the node; defaults to the hostname.
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    layer: ConfigLayer,
}

#[derive(Args, Debug)]
struct NodeRunArgs {
    /// URL of the orchestrator, if it has changed since this machine joined.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    layer: ConfigLayer,
}

#[derive(Debug, Subcommand)]
enum AgentsCommand {
    /// List the agents that have a recipe, and which are installed.
    List,
    /// Install an agent in the version that its recipe pins.
    Install {
        /// Name of the agent.
        name: String,
    },
}

impl NodeCli {
    /// Executes the selected command.
    pub fn run_command(self) -> anyhow::Result<()> {
        if let NodeSubcommand::Hold { confine, user, argv } = &self.command {
            let confinement =
                if *confine { Confinement::Confined(*user) } else { Confinement::Unconfined };
            std::process::exit(host::run_until_stdin_closes(argv, confinement)?);
        }
        if let NodeSubcommand::Config = &self.command {
            return print_line(config::DEFAULT_CONFIG.trim_end());
        }
        let environment = NodeEnvironment::from_process_env()?;
        let mut state = environment.state_dir(self.state.as_deref())?;
        // A read-only command leaves no state behind.
        let passing = match &self.command {
            NodeSubcommand::Doctor(_) if !state.exists() => Some(create_temp_state_dir(&state)?),
            _ => None,
        };
        if let Some(passing) = &passing {
            passing.path().clone_into(&mut state);
        }
        let flags = match &self.command {
            NodeSubcommand::Doctor(layer)
            | NodeSubcommand::Run(NodeRunArgs { layer, .. })
            | NodeSubcommand::Join(NodeJoinArgs { layer, .. }) => layer.clone(),
            NodeSubcommand::Agents { .. }
            | NodeSubcommand::Packages { .. }
            | NodeSubcommand::Environments { .. }
            | NodeSubcommand::Config
            | NodeSubcommand::Hold { .. } => ConfigLayer::default(),
        };
        let package_clients = environment.package_clients();
        let layer = environment.merge_layers(flags, self.config.as_deref(), &state)?;
        let filter = tracing_subscriber::EnvFilter::try_new(layer.log_filter())?;
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match &self.command {
            NodeSubcommand::Run(_) => log.json().flatten_event(true).init(),
            // A person reads this output.
            _ => log.without_time().with_target(false).compact().init(),
        }
        let place = CommandContext::new(&state, layer, package_clients)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            match self.command {
                NodeSubcommand::Join(flags) => place.run_join(flags).await,
                NodeSubcommand::Run(flags) => Box::pin(place.run_node(flags.url)).await,
                NodeSubcommand::Agents { command: AgentsCommand::List } => place.list_agents(),
                NodeSubcommand::Agents { command: AgentsCommand::Install { name } } => {
                    place.install_agent(&name).await
                }
                NodeSubcommand::Packages { command, json } => {
                    place.run_packages_command(&command, json)
                }
                NodeSubcommand::Environments { command, json } => {
                    place.run_environments_command(&command, json)
                }
                NodeSubcommand::Doctor(_) => place.run_doctor().await,
                NodeSubcommand::Config | NodeSubcommand::Hold { .. } => Ok(()),
            }
        })
    }
}

/// Context shared by all commands: state directory and configuration.
struct CommandContext {
    store: NodeStore,
    layer: ConfigLayer,
    settings: NodeSettings,
    host: HostCommands,
    recipes: AgentRecipes,
    shown: VisiblePaths,
    /// Home directory and variables that configure the machine's package clients.
    package_clients: (PathBuf, BTreeMap<String, String>),
}

impl CommandContext {
    fn new(
        state: &Path,
        layer: ConfigLayer,
        package_clients: (PathBuf, BTreeMap<String, String>),
    ) -> anyhow::Result<Self> {
        let store = NodeStore::open_state_dir(state)?;
        let settings = layer.to_settings()?;
        let own = std::env::current_exe().context("the node's own program cannot be found")?;
        let recipes = AgentRecipes::built_in()?;
        let recipes = match &layer.recipes {
            Some(folder) => recipes.with_folder(folder)?,
            None => recipes,
        };
        let shown = VisiblePaths::check_entries(layer.show.as_deref().unwrap_or_default());
        let mut host = HostCommands::new(own);
        // Where the node is root, git is not.
        if rustix::process::geteuid().is_root() {
            host = host.with_git_user(node_users(&store).end);
        }
        Ok(Self { store, layer, settings, host, recipes, shown, package_clients })
    }

    /// Returns the options of the package proxy, and warnings about configuration that cannot be used.
    fn package_options(&self) -> (PackageProxyOptions, Vec<String>) {
        let settings = &self.settings.packages;
        let (home, env) = &self.package_clients;
        let (upstreams, warnings) = Upstreams::from_machine(&settings.upstreams, home, env);
        let options = PackageProxyOptions {
            directory: self.store.packages_dir(),
            max_cache_bytes: settings.max_cache_bytes,
            min_free_bytes: self.settings.min_free_disk_bytes,
            upstreams,
            advisories: settings.advisories.clone(),
            offline: settings.offline,
        };
        (options, warnings)
    }

    /// Opens the package proxy of the node.
    fn open_package_proxy(&self) -> Result<Arc<PackageProxy>, PackageProxyError> {
        PackageProxy::open(self.package_options().0)
    }

    /// Opens the package proxy of a node that starts, or returns a warning. Without it the node works.
    fn start_package_proxy(&self) -> Result<Arc<PackageProxy>, String> {
        let (options, warnings) = self.package_options();
        for warning in &warnings {
            tracing::warn!(event = "packages.upstream_skipped", "{warning}");
        }
        PackageProxy::open(options).map_err(|error| {
            let error = format!("{:#}", anyhow::Error::from(error));
            tracing::warn!(event = "packages.unavailable", error, "the package proxy cannot be opened");
            format!("environments that need packages are not set up: the package proxy cannot be opened: {error}")
        })
    }

    fn build_worker_factory(&self) -> LocalWorkerFactory {
        LocalWorkerFactory {
            recipes: self.recipes.clone(),
            agents: self.store.agents_dir(),
            job_limits: self.settings.job_limits,
        }
    }

    /// Prepares the host environment of the node's sandboxes. Must be called within a tokio runtime.
    fn prepare_host_env(&self) -> Result<Arc<HostEnv>, SandboxError> {
        self.prepare_env_of("")
    }

    /// Prepares a separate host environment for probing sandboxes. The node may run at the same time, and its environment must not be
    /// removed.
    fn prepare_trial_env(&self) -> Result<Arc<HostEnv>, SandboxError> {
        self.prepare_env_of(&format!("-trial{}", std::process::id()))
    }

    fn prepare_env_of(&self, whose: &str) -> Result<Arc<HostEnv>, SandboxError> {
        let digest = digest_state_dir(&self.store);
        let instance = format!("{}{whose}", HEXLOWER.encode(&digest[..8]));
        let mut options = SandboxOptions::new(instance, self.store.sandboxes_dir());
        options.users = node_users(&self.store);
        options.free_floor_bytes = self.settings.min_free_disk_bytes / 2;
        options.image.clone_from(&self.layer.default_image);
        options.show.clone_from(&self.shown.readable);
        HostEnv::prepare_env(options)
    }

    fn build_backends(ground: &Arc<HostEnv>) -> Result<Vec<Arc<dyn Backend>>, SandboxError> {
        Ok(vec![Arc::new(BubblewrapBackend::new(ground)?), Arc::new(PodmanBackend::new(ground)?)])
    }

    /// Probes each backend by running a command in it. Returns the working backends and the reasons why the others fail.
    async fn probe_backends(
        ground: &Arc<HostEnv>,
    ) -> Result<(Vec<AvailableBackend>, Vec<(SandboxBackend, String)>), SandboxError> {
        let (mut working, mut missing) = (Vec::new(), Vec::new());
        for backend in Self::build_backends(ground)? {
            match backend.probe_backend().await {
                Ok(version) => working.push(AvailableBackend { backend, version }),
                Err(error) => {
                    missing.push((
                        backend.backend_kind(),
                        format!("{:#}", anyhow::Error::from(error)),
                    ));
                }
            }
        }
        Ok((working, missing))
    }

    async fn run_join(&self, flags: NodeJoinArgs) -> anyhow::Result<()> {
        let url = flags.url.trim_end_matches('/');
        trust::check_address(url, self.layer.allows_clear_text())?;
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
        let host = report::collect_host_facts().remove("host").unwrap_or_default();
        let name = flags.name.clone().unwrap_or(host);
        let (tried, missing) = Self::probe_backends(&self.prepare_trial_env()?).await?;
        for (backend, why) in missing {
            let name = format!("{backend:?}").to_lowercase();
            print_note(&format!(
                "{name} does not work here, so jobs that ask for it go elsewhere: {why}"
            ));
        }
        for warning in &self.shown.warnings {
            print_note(warning);
        }
        let agents = match tried.first() {
            Some(first) => {
                crate::node::WorkerFactory::detect_agents(
                    &self.build_worker_factory(),
                    &first.backend,
                )
                .await
            }
            None => Vec::new(),
        };
        let backends = tried.iter().map(|tried| BackendReport {
            backend: tried.backend.backend_kind(),
            version: tried.version.clone(),
        });
        let (settings, warnings) = (&self.settings, &self.shown.warnings);
        let report =
            report::build_node_report(&self.store, settings, backends.collect(), agents, warnings);
        let ca_file = self.layer.ca_file.as_deref();
        let identity =
            join::join_installation(&self.store, url, &token, name, report, ca_file).await?;
        print_line(&format!(
            "{} ({}) is a node of {}",
            identity.name, identity.node_id, identity.url
        ))
    }

    async fn run_node(self, url: Option<String>) -> anyhow::Result<()> {
        let identity = self.store.load_identity()?;
        let mut identity =
            identity.context("this machine is no node yet: use `cynode-node join`")?;
        let _held = self.store.acquire_lock()?;
        if let Some(url) = url.map(|url| url.trim_end_matches('/').to_owned())
            && url != identity.url
        {
            trust::check_address(&url, self.layer.allows_clear_text())?;
            tracing::info!(
                event = "orchestrator.url_changed",
                from = identity.url,
                to = url,
                "the orchestrator has another URL"
            );
            identity.url = url;
            self.store.save_identity(&identity)?;
        }
        let client = self.open_client(&identity).await?;
        let ground = self.prepare_host_env()?;
        let (backends, missing) = Self::probe_backends(&ground).await?;
        for (backend, error) in missing {
            tracing::warn!(
                event = "backend.unavailable",
                ?backend,
                error,
                "the sandbox backend does not work here"
            );
        }
        for warning in &self.shown.warnings {
            tracing::warn!(event = "host_path.skipped", "{warning}");
        }
        ensure!(!backends.is_empty(), "no sandbox works here; `cynode-node doctor` says why");
        let mut warnings = self.shown.warnings.clone();
        let packages = self.start_package_proxy().map_err(|warning| warnings.push(warning)).ok();
        let workshop = Arc::new(self.build_worker_factory());
        let agents_url = self.layer.agents_url.clone().unwrap_or_else(|| identity.url.clone());
        let node = NodeContext::new(NodeParts {
            client,
            settings: self.settings,
            store: self.store,
            host: self.host,
            agents_url,
            backends,
            workshop,
            warnings,
            packages,
        })?;
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let node = Arc::new(node);
        let working = supervise_node(Arc::clone(&node), stop.clone());
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
            () = trust::keep_renewed(&node.store, &node.client) => Ok(()),
        };
        ground.shut_down().await;
        Ok(worked?)
    }

    /// Returns the client of a node that has joined, with its trust and a client certificate that was renewed just now.
    async fn open_client(&self, identity: &NodeIdentity) -> anyhow::Result<NodeClient> {
        let insecure = self.layer.allows_clear_text();
        for url in [Some(identity.url.as_str()), self.layer.agents_url.as_deref()] {
            url.map(|url| trust::check_address(url, insecure)).transpose()?;
        }
        if let Some(path) = &self.layer.ca_file {
            trust::adopt_authority(&self.store, path)?;
        }
        let key = NodeKey::load_key(&self.store.key_file())?;
        let open = || -> anyhow::Result<NodeClient> {
            let tls = trust::open_tls(&self.store, &key)?;
            Ok(NodeClient::with_tls(&identity.url, identity.node_id, key.clone(), tls)?)
        };
        trust::renew_at_start(&self.store, &open()?).await?;
        open()
    }

    fn list_agents(&self) -> anyhow::Result<()> {
        let agents = self.store.agents_dir();
        for recipe in self.recipes.iter() {
            let there = if install::is_installed(recipe, &agents) { "installed" } else { "-" };
            print_line(&format!("{:<12}{there}", recipe.name))?;
        }
        Ok(())
    }

    async fn install_agent(&self, name: &str) -> anyhow::Result<()> {
        let recipe = self.recipes.get(name);
        let recipe = recipe.with_context(|| format!("there is no recipe for `{name}`"))?;
        let place = install::install_agent(recipe, &self.store.agents_dir()).await?;
        print_line(&format!("{name} is in {}", place.display()))
    }

    async fn run_doctor(&self) -> anyhow::Result<()> {
        let backends = self.prepare_trial_env().and_then(|ground| Self::build_backends(&ground));
        let workshop = self.build_worker_factory();
        let (options, package_warnings) = self.package_options();
        let findings = doctor::run_diagnostics(
            &self.store,
            &self.settings,
            &self.host,
            backends,
            &workshop,
            &self.shown.warnings,
            PackageDiagnosis { upstreams: &options.upstreams, warnings: &package_warnings },
        )
        .await;
        for finding in &findings {
            print_line(&finding.to_string())?;
        }
        ensure!(
            !findings.iter().any(doctor::DoctorFinding::is_failure),
            "this machine cannot take jobs like this"
        );
        Ok(())
    }
}

/// Returns the digest of the path of the state directory, which tells the nodes of a machine apart.
fn digest_state_dir(store: &NodeStore) -> [u8; 32] {
    Sha256::digest(store.root_dir().as_os_str().as_encoded_bytes()).into()
}

/// Returns the host users of the node's jobs. The user after them is that of git. Nodes on one machine get different ranges with high
/// probability, without coordination.
fn node_users(store: &NodeStore) -> Range<u32> {
    let share = u32::from(digest_state_dir(store)[8]) % USER_RANGE_COUNT * USERS_PER_NODE;
    let first = DEFAULT_USERS.start + share;
    first..first + USERS_PER_NODE - 1
}

/// Creates a temporary state directory on the same file system as the real one.
fn create_temp_state_dir(state: &Path) -> anyhow::Result<tempfile::TempDir> {
    let state = std::path::absolute(state)?;
    let above = state.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("/"));
    tempfile::Builder::new()
        .prefix("cynode-node-doctor-")
        .tempdir_in(above)
        .with_context(|| format!("nothing can be made in {}", above.display()))
}

/// Prints a note to stderr, separate from the command's output.
fn print_note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "note: {line}");
}

fn print_line(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}").context("nobody reads what is written")
}
