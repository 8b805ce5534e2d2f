//! Nodes of a world: the real program, each in its own network namespace behind a link that can be cut, with a disk that can be
//! filled. Needs root.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use cynode_testkit::pause;
use rustix::process::{Pid, Signal, kill_process};

use crate::world::{log, set_mode};

/// Runs a system program to its end.
fn system(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {}: {said}", arguments.join(" "));
}

/// A network namespace, and a link from the host into it.
pub struct Cable {
    namespace: String,
    link: String,
    /// Address of the host's end.
    pub host: Ipv4Addr,
}

impl Cable {
    /// Creates the link. The name is that of the namespace and must be free.
    pub fn lay(namespace: &str) -> Self {
        let number: u16 = rand::random_range(0..1 << 14);
        let link = format!("cy{:08x}", rand::random::<u32>());
        // A range that is reserved for benchmarks.
        let base = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + u32::from(number) * 4;
        let (host, inside) = (Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2));
        let cable = Self { namespace: namespace.to_owned(), link, host };
        system("ip", &["netns", "add", namespace]);
        let (link, peer) = (cable.link.as_str(), ["peer", "name", "eth0", "netns", namespace]);
        system("ip", &[&["link", "add", link, "type", "veth"], &peer[..]].concat());
        system("ip", &["address", "add", &format!("{host}/30"), "dev", link]);
        let within = |arguments: &[&str]| system("ip", &[&["-n", namespace], arguments].concat());
        within(&["address", "add", &format!("{inside}/30"), "dev", "eth0"]);
        within(&["link", "set", "lo", "up"]);
        within(&["link", "set", "eth0", "up"]);
        cable.mend();
        cable
    }

    /// Cuts the link silently: packets are dropped, and no process gets an error.
    pub fn cut(&self) {
        system("ip", &["link", "set", &self.link, "down"]);
    }

    /// Restores the link.
    pub fn mend(&self) {
        system("ip", &["link", "set", &self.link, "up"]);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.namespace]).status();
        // It goes with the namespace, which a process may still be in.
        let _ =
            Command::new("ip").args(["link", "delete", &self.link]).stderr(Stdio::null()).status();
    }
}

/// Setup of a node.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    /// Path of `cynode-node`.
    pub program: PathBuf,
    /// Name of the node.
    pub name: String,
    /// Unique name of its namespace and its disk on this machine.
    pub tag: String,
    /// Directory of its state and its log.
    pub directory: PathBuf,
    /// Size of its disk in MiB; without it, the node uses the machine's disk.
    pub disk_mib: Option<u32>,
    /// Flags of `cynode-node run`.
    pub flags: Vec<String>,
}

/// A node in its own namespace.
pub struct Machine {
    /// Name of the node.
    pub name: String,
    /// Its network link.
    pub cable: Cable,
    /// Its state directory.
    pub state: PathBuf,
    setup: NodeSetup,
    child: Mutex<Option<Child>>,
    environment: Mutex<Vec<(String, String)>>,
    /// Parents of the cgroups of its jobs.
    cgroup_parents: Mutex<BTreeSet<PathBuf>>,
}

impl Machine {
    /// Creates the machine; nothing runs on it yet.
    pub fn new(setup: NodeSetup) -> Self {
        let tag = format!("{}-{}", setup.tag, setup.name);
        let state = setup.directory.join(&setup.name);
        fs::create_dir_all(&state).unwrap();
        set_mode(&setup.directory, 0o755);
        if let Some(size) = setup.disk_mib {
            let options = format!("size={size}m,mode=0755");
            system("mount", &["-t", "tmpfs", "-o", &options, &tag, state.to_str().unwrap()]);
        }
        let name = setup.name.clone();
        let cable = Cable::lay(&tag);
        Self {
            name,
            cable,
            state,
            setup,
            child: Mutex::default(),
            environment: Mutex::default(),
            cgroup_parents: Mutex::default(),
        }
    }

    /// Returns `cynode-node` in its namespace. It dies with this process.
    fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--", "nsenter"]);
        // Only the network namespace: other ways to enter hide the cgroups.
        command.arg(format!("--net=/run/netns/{}", self.cable.namespace)).arg("--");
        command.arg(&self.setup.program).arg("--state").arg(&self.state);
        // Faults are injected between two messages on the cable, which needs clear text.
        command.env("CYNODE_NODE_INSECURE", "true");
        command.stdin(Stdio::null());
        command
    }

    /// Joins the machine as a node of the orchestrator at `url`.
    pub fn join(&self, url: &str, token: &str) {
        let file = self.setup.directory.join(format!("{}.token", self.name));
        fs::write(&file, token).unwrap();
        let mut command = self.command();
        command.args(["join", "--url", url, "--name", &self.name, "--token-file"]).arg(&file);
        command.args(&self.setup.flags);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// Sets its environment from the next start on.
    pub fn set_environment(&self, environment: Vec<(String, String)>) {
        *self.environment.lock().unwrap() = environment;
    }

    /// Starts it, unless it runs.
    pub fn start(&self) {
        let mut child = self.child.lock().unwrap();
        if child.is_none() {
            let mut command = self.command();
            command.arg("run").args(&self.setup.flags);
            command.envs(self.environment.lock().unwrap().iter().cloned());
            command.stdout(Stdio::null()).stderr(log(&self.log()));
            *child = Some(command.spawn().unwrap());
        }
    }

    /// Returns whether it has exited by itself.
    pub fn has_ended(&self) -> bool {
        let mut child = self.child.lock().unwrap();
        child.as_mut().is_some_and(|child| child.try_wait().ok().flatten().is_some())
    }

    /// Kills it at once.
    pub fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            let _ = kill_process(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
        }
    }

    /// Asks it to end and waits. Returns whether it ended in time.
    pub async fn stop(&self, timeout: Duration) -> bool {
        let Some(mut child) = self.child.lock().unwrap().take() else { return true };
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < timeout {
            if child.try_wait().ok().flatten().is_some() {
                return true;
            }
            pause(Duration::from_millis(20)).await;
        }
        let _ = child.kill();
        let _ = child.wait();
        false
    }

    /// Returns its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.lock().unwrap().as_ref().map(Child::id)
    }

    /// Returns the path of its log.
    pub fn log(&self) -> PathBuf {
        self.setup.directory.join(format!("{}.log", self.name))
    }

    /// Returns the directory of a job.
    pub fn job(&self, job: &str) -> PathBuf {
        self.state.join("jobs").join(job)
    }

    /// Fills its disk to the last byte.
    pub fn fill(&self) {
        let mut file = fs::File::create(self.state.join("filler")).unwrap();
        let piece = vec![0; 1 << 20];
        while file.write_all(&piece).is_ok() {}
        while file.write_all(&[0; 512]).is_ok() {}
    }

    /// Frees the disk again.
    pub fn unfill(&self) {
        let _ = fs::remove_file(self.state.join("filler"));
    }

    /// Returns the traces of jobs: processes, cgroups, directories.
    pub fn traces(&self, jobs: &[String], mark: &str) -> Traces {
        Traces {
            processes: self.processes(jobs, mark),
            groups: self.groups(jobs),
            directories: jobs.iter().map(|job| self.job(job)).filter(|dir| dir.exists()).collect(),
        }
    }

    /// Returns the processes of jobs: in one of their cgroups, or with their directory or the mark on their command line.
    fn processes(&self, jobs: &[String], mark: &str) -> Vec<(u32, String)> {
        let places = jobs.iter().map(|job| self.job(job).display().to_string());
        let words: Vec<_> = places.chain((!mark.is_empty()).then(|| mark.to_owned())).collect();
        self.others(|line, group| {
            jobs.iter().any(|job| group.contains(job.as_str()))
                || words.iter().any(|word| line.contains(word))
        })
    }

    /// Returns the processes beside the node itself that refer to its directory.
    pub fn companions(&self) -> Vec<(u32, String)> {
        let state = self.state.display().to_string();
        self.others(|line, _| line.contains(&state))
    }

    /// Returns other processes than this one and the node, by their command lines and cgroups.
    fn others(&self, wanted: impl Fn(&str, &str) -> bool) -> Vec<(u32, String)> {
        let own = [Some(std::process::id()), self.pid()];
        let mut found = Vec::new();
        for (pid, directory) in everybody().filter(|(pid, _)| !own.contains(&Some(*pid))) {
            let line = fs::read(directory.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let group = fs::read_to_string(directory.join("cgroup")).unwrap_or_default();
            if wanted(&line, &group) {
                found.push((pid, line.chars().take(100).collect()));
            }
        }
        found
    }

    /// Returns the cgroups whose name contains that of a job.
    fn groups(&self, jobs: &[String]) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(Path::new("/sys/fs/cgroup"), &mut |path, name| {
            if jobs.iter().any(|job| name.contains(job.as_str())) {
                found.push(path.to_owned());
            }
        });
        let above = found.iter().filter_map(|group| group.parent().map(Path::to_owned));
        self.cgroup_parents.lock().unwrap().extend(above);
        found
    }

    /// Returns the processes in a job's cgroups.
    pub fn members(&self, job: &str) -> BTreeSet<i32> {
        let groups = self.groups(&[job.to_owned()]);
        let texts = groups.iter().map(|group| fs::read_to_string(group.join("cgroup.procs")));
        let texts: Vec<_> = texts.flatten().collect();
        texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
        // The node's own cgroups would stay for its next start, and there is none.
        for parent in self.cgroup_parents.lock().unwrap().iter() {
            let _ = fs::remove_dir(parent);
        }
        if self.setup.disk_mib.is_some() {
            let _ = Command::new("umount").arg("--lazy").arg(&self.state).status();
        }
    }
}

/// Traces of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    /// Processes, with the beginning of their command lines.
    pub processes: Vec<(u32, String)>,
    /// Remaining cgroups.
    pub groups: Vec<PathBuf>,
    /// Remaining directories.
    pub directories: Vec<PathBuf>,
}

impl Traces {
    /// Returns whether there are no traces.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

fn everybody() -> impl Iterator<Item = (u32, PathBuf)> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, entry.path()))
    })
}

fn walk(directory: &Path, see: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            see(&entry.path(), &entry.file_name().to_string_lossy());
            walk(&entry.path(), see);
        }
    }
}

/// Kills a process by its number.
pub fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
}
