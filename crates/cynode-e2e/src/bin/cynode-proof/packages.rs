//! The package proxy of a node by itself, so that real package clients can use it without a sandbox.

use std::{
    collections::BTreeMap, fs::OpenOptions, io::Write, net::SocketAddr, path::PathBuf, sync::Arc,
    sync::Mutex,
};

use anyhow::Context;
use clap::{Args, Subcommand};
use cynode_core::environments::{PackageFetch, PackagePolicy, PackageSource};
use cynode_packages::{JobPackages, PackageProxy, PackageProxyOptions, Upstreams};
use cynode_sandbox::bind_socket_server;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, UnixStream},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[derive(Subcommand)]
pub(crate) enum PackagesCommand {
    /// Serves a job's packages on a port of loopback, until it is killed.
    Serve(ServePackages),
    /// Writes a cache into a tar file.
    Export {
        #[command(flatten)]
        cache: PackageCache,
        /// The tar file.
        file: PathBuf,
    },
    /// Takes a tar file over into a cache.
    Import {
        #[command(flatten)]
        cache: PackageCache,
        /// The tar file.
        file: PathBuf,
    },
}

/// Where packages are and where they come from.
#[derive(Args)]
pub(crate) struct PackageCache {
    /// Directory of the cache.
    #[arg(long)]
    directory: PathBuf,
    /// Size of the cache.
    #[arg(long, default_value_t = 4096)]
    cache_mib: u64,
    /// Address of a registry, as KEY=VALUE; the others are those of the machine.
    #[arg(long = "upstream", value_parser = parse_pair)]
    upstreams: Vec<(String, String)>,
    /// File of advisories.
    #[arg(long)]
    advisories: Option<PathBuf>,
    /// Fetches nothing.
    #[arg(long)]
    offline: bool,
}

#[derive(Args)]
pub(crate) struct ServePackages {
    #[command(flatten)]
    cache: PackageCache,
    /// Port of loopback.
    #[arg(long)]
    listen: SocketAddr,
    /// Package policy, as JSON.
    #[arg(long, default_value = "{}")]
    policy: String,
    /// File that each fetch is appended to, as a line of JSON.
    #[arg(long)]
    report: PathBuf,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it is KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl PackageCache {
    #[expect(clippy::disallowed_methods, reason = "the program has no configuration of its own")]
    fn open(self) -> anyhow::Result<Arc<PackageProxy>> {
        let env: BTreeMap<String, String> = std::env::vars().collect();
        let home = PathBuf::from(env.get("HOME").context("HOME is not set")?);
        let overrides = self.upstreams.into_iter().collect();
        let (upstreams, warnings) = Upstreams::from_machine(&overrides, &home, &env);
        for warning in warnings {
            println!("{warning}");
        }
        Ok(PackageProxy::open(PackageProxyOptions {
            directory: self.directory,
            max_cache_bytes: self.cache_mib << 20,
            min_free_bytes: 512 << 20,
            upstreams,
            advisories: self.advisories,
            offline: self.offline,
        })?)
    }
}

pub(crate) async fn run(command: PackagesCommand) -> anyhow::Result<bool> {
    match command {
        PackagesCommand::Serve(serve) => serve_packages(serve).await?,
        PackagesCommand::Export { cache, file } => cache.open()?.export_cache(&file)?,
        PackagesCommand::Import { cache, file } => cache.open()?.import_cache(&file)?,
    }
    Ok(true)
}

async fn serve_packages(serve: ServePackages) -> anyhow::Result<()> {
    let proxy = serve.cache.open()?;
    let report = OpenOptions::new().create(true).append(true).open(&serve.report)?;
    let report = Mutex::new(report);
    let job = JobPackages {
        sources: PackageSource::ALL.to_vec(),
        policy: serde_json::from_str::<PackagePolicy>(&serve.policy)?,
        locked: [].into(),
        report: Arc::new(move |fetch: PackageFetch| {
            let line = serde_json::to_string(&fetch).unwrap();
            writeln!(report.lock().unwrap(), "{line}").unwrap();
        }),
    };
    let folder = tempfile::tempdir()?;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let handler = proxy.job_handler(job);
    let socket = bind_socket_server(folder.path(), "packages", 0, handler, &tasks, &stop)?.host;
    let listener = TcpListener::bind(serve.listen).await?;
    println!("listening on {}", serve.listen);
    loop {
        let (mut stream, _) = listener.accept().await?;
        let socket = socket.clone();
        tasks.spawn(async move {
            if let Ok(mut inner) = UnixStream::connect(&socket).await {
                let _ = copy_bidirectional(&mut stream, &mut inner).await;
            }
        });
    }
}
